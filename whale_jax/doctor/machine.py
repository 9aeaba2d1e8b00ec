"""The machine: devices, versions, sandbox, memory of the host, disk."""

import re
import shutil
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax

import whale_jax
from harness_search.sandbox.backends import BackendName, SandboxUnavailable, detect
from harness_search.sandbox.preflight import PreflightReport, preflight
from whale_jax.config import RunConfig
from whale_jax.doctor.page import Verdict, fail, ok, warn
from whale_jax.plan.chips import GIB
from whale_jax.storage.opening import on_this_disk
from whale_jax.training.optimizer import OptimizerName

PACKAGES = ("jax", "jaxlib", "libtpu", "flax", "optax", "orbax-checkpoint", "tokenizers", "transformers")
"""Those on which the numbers of a run depend, and the peer that they are compared with."""

_NEEDED_BY_TPU = "libtpu"
_OPTIONAL = frozenset([_NEEDED_BY_TPU, "transformers"])


def devices(config: RunConfig, found: Sequence[Any] | None = None) -> Verdict:
    """What JAX sees here, and whether there are as many devices as replicas."""
    found = jax.local_devices() if found is None else found
    kind, platform = found[0].device_kind, found[0].platform
    memory = (found[0].memory_stats() or {}).get("bytes_limit")
    seen = f"{len(found)} x {kind} ({platform})" + (f", {memory / GIB:.2f} GiB each" if memory else "")
    if jax.process_count() > 1:
        seen += f", {jax.device_count()} in {jax.process_count()} processes"
    grid = {tuple(device.coords) for device in found if hasattr(device, "coords")}
    if grid:
        sizes = [1 + max(axis) - min(axis) for axis in zip(*grid, strict=True)]
        seen += f", grid {'x'.join(map(str, sizes))}"
    replicas = config.rollout.replicas
    if replicas > len(found):
        return fail("devices", seen, f"--replicas={replicas} needs as many devices; lower it, or 0 for all of them")
    if platform == "cpu":
        return warn("devices", seen, "no accelerator: right for the demo, far too slow for a real model")
    return ok("devices", seen)


def pins(path: Path | None = None) -> dict[str, str]:
    """Versions that the tests ran with, from constraints.txt beside the package; empty where it was not installed from
    its repository."""
    path = path or Path(whale_jax.__file__).parents[1] / "constraints.txt"
    if not path.is_file():
        return {}
    return dict(re.findall(r"^([\w.\-]+)==(\S+)$", path.read_text(encoding="utf-8"), re.MULTILINE))


def versions(platform: str, tested: dict[str, str] | None = None) -> Verdict:
    """Installed packages against those that the tests ran with."""
    tested = pins() if tested is None else tested
    installed = {name: found for name in PACKAGES if (found := _version(name)) is not None}
    seen = ", ".join(f"{name} {number}" for name, number in installed.items())
    missing = [name for name in PACKAGES if name not in installed and name not in _OPTIONAL]
    if platform == "tpu" and _NEEDED_BY_TPU not in installed:
        missing.append(_NEEDED_BY_TPU)
    if missing:
        return fail("versions", seen, f"install {', '.join(missing)}: bash launch/local.sh, or pip install -e '.[tpu]'")
    if installed["jax"] != installed["jaxlib"]:
        return fail("versions", seen, "jax and jaxlib must be of one version; install both with -c constraints.txt")
    if not tested:
        return warn("versions", f"{seen}; constraints.txt is not there to compare", "install from the repository")
    other = [
        f"{name} {number} (tested {tested[name]})" for name, number in installed.items() if tested.get(name) != number
    ]
    if other:
        return warn(
            "versions", seen, f"not what the tests ran with: {', '.join(other)}; install with -c constraints.txt"
        )
    return ok("versions", f"{seen}: as tested")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def sandbox(kind: str) -> Verdict:
    """The sandbox's own check of itself: what it enforces, and every attempt to break it."""
    try:
        backend = detect(kind)
        if backend.name is BackendName.NONE:
            return warn("sandbox", "none: harness code runs with this user's rights", "leave out --sandbox=none")
        return of_report(preflight(backend))
    except SandboxUnavailable as error:
        return fail(
            "sandbox", str(error), "install bubblewrap; `python -m harness_search.sandbox` says what is enforced"
        )


def of_report(report: PreflightReport) -> Verdict:
    """The verdict on a preflight."""
    seen = f"{report.backend}: {len(report.attempts)} attempts to break out, {len(report.escapes)} escaped"
    if report.escapes:
        return fail("sandbox", f"{seen} ({', '.join(report.escapes)})", "see `python -m harness_search.sandbox`")
    if report.backend != BackendName.BUBBLEWRAP:
        return warn("sandbox", seen, "install bubblewrap: it adds namespaces and a file system of its own")
    return ok("sandbox", seen)


def room(config: RunConfig, parameters: int, checkpoint_bytes: int) -> Iterator[Verdict]:
    """Disk and host memory against what a run of this model needs.

    Args:
        parameters: of the model.
        checkpoint_bytes: of the source's files, which an export repeats.
    """
    state = parameters * (4 + OptimizerName(config.training.optimizer).state_bytes)
    kept = config.training.keep_last + 3  # the best pair's, the one being written, and what a preempted job leaves
    yield disk(on_this_disk(config.run), kept * state + checkpoint_bytes, config.training.keep_every > 0)
    needed = state + 4 * parameters  # a snapshot that is written while the run goes on; the initial weights in fp32
    total = _memory_total()
    seen = f"{total / GIB:.0f} GiB in all; a checkpoint's copy and the initial weights take {needed / GIB:.1f}"
    if needed > total:
        yield fail("host memory", seen, "a machine with more, a smaller model, or --optimizer=lion")
    elif needed > 0.7 * total:
        yield warn("host memory", seen, "little is left for harnesses, tools and data")
    else:
        yield ok("host memory", seen)


def disk(run_dir: Path, needed: int, grows: bool) -> Verdict:
    """Free space where the run directory is or will be."""
    place = run_dir.absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    seen = f"{free / GIB:.1f} GiB free at {place}; checkpoints and export take {needed / GIB:.1f}, and traces beside"
    if grows:
        seen += ", and one checkpoint more for every --keep_every steps"
    if free < needed:
        return fail("disk", seen, "another --run_dir, a smaller --keep_last, or more disk")
    if free < 1.5 * needed:
        return warn("disk", seen, "traces of a long run may need the rest")
    return ok("disk", seen)


def _memory_total() -> int:
    """Bytes of this host, or of the control group that this process may use."""
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines())
    total, limit = int(fields["MemTotal"].split()[0]) * 1024, Path("/sys/fs/cgroup/memory.max")
    if limit.is_file() and (text := limit.read_text(encoding="utf-8").strip()) != "max":
        total = min(total, int(text))
    return total
