"""The run directory: who may use it, and whether it belongs to this configuration."""

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import platform
import sys
from collections.abc import Container, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax

from whale_jax.config import ConfigError, RunConfig, all_settings
from whale_jax.journal import canonical, write_once

INPUT_NAMES = {
    "data": "the data",
    "harness": "the initial harness",
    "weights": "the checkpoint",
    "tokenizer": "the tokenizer",
    "template": "the chat template",
}
"""What messages call the fields of `Inputs`."""

_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "tokenizers", "bm25s", "google-jetstream")


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Hashes of what a run reads beside its settings."""

    data: str
    harness: str
    weights: str
    tokenizer: str
    template: str

    @classmethod
    def of(cls, *, data: str, harness: str, weights: str, checkpoint: Path, template: str) -> "Inputs":
        """Hashes what is given as itself: a harness's source and the tokenizer in a checkpoint folder."""
        tokenizer = hashlib.sha256((checkpoint / "tokenizer.json").read_bytes()).hexdigest()
        return cls(data, hashlib.sha256(harness.encode()).hexdigest(), weights, tokenizer, template)


def fresh_run_dir(root: Path = Path("runs")) -> Path:
    """The next unused numbered folder, created: runs/0000, runs/0001, …

    Raises:
      ConfigError: it cannot be created.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        taken = [int(path.name) for path in root.iterdir() if path.name.isdecimal()]
        number = max(taken, default=-1) + 1
        while True:
            try:
                (root / f"{number:04d}").mkdir()
            except FileExistsError:
                number += 1
                continue
            return root / f"{number:04d}"
    except OSError as error:
        raise ConfigError(f"{root.absolute()}: cannot be written ({error.strerror}); name a --run_dir") from error


def refuse_inside(directory: Path, checkpoint: Path) -> None:
    """Raises ConfigError for a run directory in the checkpoint's folder: an export would copy itself."""
    if directory.resolve().is_relative_to(checkpoint.resolve()):
        raise ConfigError(f"--run_dir={directory}: lies in the checkpoint's folder {checkpoint}; name one outside it")


@contextlib.contextmanager
def claim(directory: Path, *, copy: bool = False) -> Iterator[None]:
    """Makes the directory this process's own while the context lasts.

    Args:
      copy: it is a working copy of a bucket's, so whatever it holds may go.

    Raises:
      ConfigError: it cannot be written, holds something that is no run, or another process uses it.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if not copy:
            _refuse_foreign(directory)
        lock = open(directory / ".lock", "w")  # noqa: SIM115 - held until the context ends
    except OSError as error:
        raise ConfigError(f"--run_dir={directory}: cannot be written: {error.strerror or error}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"--run_dir={directory}: another process is working on this run") from None
        yield


def open_config(directory: Path, config: RunConfig, inputs: Inputs, fork: Mapping[str, Any] | None = None) -> list[str]:
    """Writes config.json into a fresh run directory, or checks that this run is the one it belongs to.

    Args:
      fork: what a branch starts from (`fork.ForkPoint.record`).

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
        "environment": environment(),
    }
    if fork is not None:
        record["fork"] = dict(fork)
    if not path.exists():
        write_once(path, canonical(record))
        return []
    old = read_record(path)
    if different := differences(old, config, inputs):
        raise ConfigError(
            f"--run_dir={directory} belongs to a run with other settings: "
            + "; ".join(different)
            + ". Use a fresh run directory, or the settings that it was started with"
        )
    return _changes(old["environment"], record["environment"]) + _mesh_changes(old["settings"], config.values())


def differences(record: Mapping[str, Any], config: RunConfig, inputs: Inputs, free: Container[str] = ()) -> list[str]:
    """What differs from the run of a config.json, one line each.

    Args:
      free: names of settings that may differ.
    """
    defaults = {spec.name: spec.default for _, spec in all_settings() if spec.metadata["late"]}
    before = {**defaults, **record["settings"]}  # a run made before a setting existed had its default
    found = [
        f"--{name} was {_shown(before.get(name))}, is {_shown(value)}"
        for name, value in config.hashed_values().items()
        if name not in free and before.get(name) != value
    ]
    return found + [
        f"{INPUT_NAMES[name]} changed (SHA-256 was {str(record['inputs'][name])[:12]}, is {value[:12]})"
        for name, value in dataclasses.asdict(inputs).items()
        if record["inputs"].get(name, value) != value
    ]


def is_begun(directory: Path) -> bool:
    """Whether a run lives there already."""
    return (directory / "config.json").is_file()


def inherited(directory: Path) -> int:
    """Journal entries that a branch shares with the run that it came from; 0 for a run of its own."""
    if not is_begun(directory):
        return 0
    fork = read_record(directory / "config.json").get("fork")
    return fork["entry"] + 1 if fork else 0


def check_same_fork(directory: Path, spec: str) -> None:
    """Raises ConfigError unless the run that lives in a directory is the branch that `--fork_from` asks for."""
    fork = read_record(directory / "config.json").get("fork")
    path, _, number = spec.rpartition("@")
    if fork is None or (Path(path).resolve(), number) != (Path(fork["run_dir"]), str(fork["entry"])):
        was = f"branches from {fork['run_dir']}@{fork['entry']}" if fork else "is no branch"
        raise ConfigError(f"--fork_from={spec}: the run in {directory} {was}; name a fresh --run_dir")


def look(directory: Path, config: RunConfig, inputs: Inputs) -> None:
    """Checks a run directory as `claim` and `open_config` do, and writes nothing.

    Raises:
      ConfigError: as they do.
    """
    there = next(place for place in (directory, *directory.absolute().parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"--run_dir={directory}: cannot be written: {there} is no folder that may be written")
    if there == directory:
        _refuse_foreign(directory)
        if (directory / "config.json").exists():
            open_config(directory, config, inputs)


def _refuse_foreign(directory: Path) -> None:
    foreign = sorted(path.name for path in directory.iterdir() if not path.name.startswith("."))
    if (directory / "config.json").is_file():
        read_record(directory / "config.json")
    elif foreign:
        raise ConfigError(
            f"--run_dir={directory}: holds {', '.join(foreign[:3])} and is no run directory; name a fresh one"
        )


def remember(directory: Path, warnings: Sequence[str]) -> list[str]:
    """Adds a job's warnings to those of the run's earlier jobs, and returns them all: a report rests on every job."""
    path = directory / "warnings.txt"
    earlier = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    fresh = [warning for warning in warnings if warning not in earlier]
    if fresh:
        with path.open("a", encoding="utf-8") as file:
            file.writelines(f"{warning}\n" for warning in fresh)
    return [*earlier, *fresh]


def read_record(path: Path) -> dict[str, Any]:
    """The config.json of a run: `settings`, `hash`, `inputs`, `environment`.

    Raises:
      ConfigError: it is not there, is damaged, or is something else's.
    """
    try:
        record = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); --run_dir must name a run directory") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not JSON ({error}); the run directory is damaged") from error
    parts = ("settings", "inputs", "environment")
    if not isinstance(record, dict) or not all(isinstance(record.get(part), dict) for part in parts):
        raise ConfigError(f"{path}: is not the record of a run; name a fresh --run_dir")
    return record


def read_returned(directory: Path, steps: str) -> tuple[int, str]:
    """The training step and the harness's SHA-256 of the pair that a finished run returned.

    Args:
        steps: what may be named with --step, for messages.

    Raises:
        ConfigError: no pair was returned yet, or the summary is damaged.
    """
    path = directory / "summary.json"
    try:
        returned = json.loads(path.read_bytes())["returned"]
        return returned["step"], returned["harness"]
    except OSError as error:
        raise ConfigError(
            f"{directory}: has no summary.json, so no pair was returned yet; finish the run, or name a --step ({steps})"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: is damaged ({error!r}); name a --step") from error


def _shown(value: Any) -> str:
    return "unset" if value is None else str(value)


def environment() -> dict[str, str]:
    """Versions and hardware that may decide a bit."""
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


def _mesh_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    return [
        f"--{name} was {old.get(name, 0)}, is {new[name]}: training agrees with the run so far up to rounding"
        for name in ("mesh_data", "mesh_fsdp", "mesh_tensor")
        if old.get(name, 0) != new[name]
    ]


def _changes(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    return [
        f"{name} was {old.get(name)}, is {value}: bit-equality with the run so far is not promised"
        for name, value in new.items()
        if old.get(name) != value
    ]
