"""The run directory: who may use it, and whether it belongs to this configuration."""

import contextlib
import dataclasses
import fcntl
import json
import platform
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax

from whale_jax.config import ConfigError, RunConfig, all_settings
from whale_jax.journal import canonical, write_once

_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "tokenizers", "bm25s", "google-jetstream")


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Hashes of what a run reads beside its settings."""

    data: str
    harness: str
    weights: str
    tokenizer: str


@contextlib.contextmanager
def claim(directory: Path) -> Iterator[None]:
    """Makes the directory this process's own while the context lasts.

    Raises:
      ConfigError: it cannot be written, holds something that is no run, or another process uses it.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        foreign = sorted(path.name for path in directory.iterdir() if not path.name.startswith("."))
        if foreign and not (directory / "config.json").is_file():
            raise ConfigError(
                f"--run_dir={directory}: holds {', '.join(foreign[:3])} and is no run directory; name a fresh one"
            )
        lock = open(directory / ".lock", "w")  # noqa: SIM115 - held until the context ends
    except OSError as error:
        raise ConfigError(f"--run_dir={directory}: cannot be written: {error.strerror or error}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"--run_dir={directory}: another process is working on this run") from None
        yield


def open_config(directory: Path, config: RunConfig, inputs: Inputs) -> list[str]:
    """Writes config.json into a fresh run directory, or checks that this run is the one it belongs to.

    Returns:
      What changed and does not forbid to go on (versions, hardware), one line each.

    Raises:
      ConfigError: settings, data, harness or checkpoint differ from the run's; every difference is named.
    """
    path = directory / "config.json"
    record = {
        "settings": config.values(),
        "hash": config.hash(),
        "inputs": dataclasses.asdict(inputs),
        "environment": _environment(),
    }
    if not path.exists():
        write_once(path, canonical(record))
        return []
    try:
        old = json.loads(path.read_bytes())
    except ValueError as error:
        raise ConfigError(f"{path}: not JSON ({error}); the run directory is damaged") from error
    defaults = {spec.name: spec.default for _, spec in all_settings() if spec.metadata["late"]}
    before = {**defaults, **old["settings"]}  # a run made before a setting existed had its default
    differences = [
        f"--{name} was {_shown(before.get(name))}, is {_shown(value)}"
        for name, value in config.hashed_values().items()
        if before.get(name) != value
    ]
    names = {
        "data": "the data",
        "harness": "the initial harness",
        "weights": "the checkpoint",
        "tokenizer": "the tokenizer",
    }
    differences += [
        f"{names[name]} changed (SHA-256 was {old['inputs'][name][:12]}, is {value[:12]})"
        for name, value in dataclasses.asdict(inputs).items()
        if old["inputs"][name] != value
    ]
    if differences:
        raise ConfigError(
            f"--run_dir={directory} belongs to a run with other settings: "
            + "; ".join(differences)
            + ". Use a fresh run directory, or the settings that it was started with"
        )
    return _changes(old["environment"], record["environment"])


def _shown(value: Any) -> str:
    return "unset" if value is None else str(value)


def _environment() -> dict[str, str]:
    found = {"python": platform.python_version(), "machine": platform.machine(), "cpus": _cpu_model()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    devices = jax.devices()
    return found | {"devices": f"{len(devices)} x {devices[0].device_kind}", "platform": sys.platform}


def _cpu_model() -> str:
    """The processor's name: on another one, the same program may round differently."""
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _changes(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    return [
        f"{name} was {old.get(name)}, is {value}: bit-equality with the run so far is not promised"
        for name, value in new.items()
        if old.get(name) != value
    ]
