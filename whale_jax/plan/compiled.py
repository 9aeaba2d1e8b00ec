"""Plans kept on disk: a program that was compiled once for a topology is not compiled again.

A plan is found again by everything that it depends on: the work, devices and mesh, the rates of the chip, versions of
the compiler, and the source of the modules that make the programs and count them.
"""

import dataclasses
import hashlib
import json
import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from whale_jax.plan.chips import Topology
from whale_jax.plan.plan import Plan, plan
from whale_jax.plan.programs import Work

_SOURCES = (
    "qwen3_5/*.py",
    "plan/chips.py",
    "plan/cost.py",
    "plan/hlo.py",
    "plan/live.py",
    "plan/loops.py",
    "plan/model_cost.py",
    "plan/movement.py",
    "plan/plan.py",
    "plan/products.py",
    "plan/programs.py",
    "serving/sampling.py",
    "training/loss.py",
    "training/optimizer.py",
    "training/sharded_loss.py",
    "training/step.py",
)
_VERSIONS = ("jax", "jaxlib", "libtpu", "optax")


def default_folder() -> Path:
    """Where plans are kept unless the user says otherwise."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "whale_jax" / "plan"


def cached_plan(work: Work, topology: Topology, mesh: tuple[int, int, int], folder: Path) -> Plan:
    """`plan`, or what it said the last time.

    Raises:
        ShardingError, HloError: as `plan`.
        OSError: the folder cannot be written.
    """
    path = folder / f"{_key(work, topology, mesh)}.json"
    if path.is_file():
        fields = json.loads(path.read_text(encoding="utf-8"))["plan"]
        return Plan(**{**fields, "mesh": tuple(fields["mesh"])})
    made = plan(work, topology, mesh)
    folder.mkdir(parents=True, exist_ok=True)
    record = {"work": _described(work, topology, mesh), "plan": dataclasses.asdict(made)}
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps(record, indent=1), encoding="utf-8")
    temporary.replace(path)
    return made


def _key(work: Work, topology: Topology, mesh: tuple[int, int, int]) -> str:
    described = {**_described(work, topology, mesh), "versions": _versions(), "sources": _sources()}
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:32]


def _described(work: Work, topology: Topology, mesh: tuple[int, int, int]) -> dict[str, Any]:
    return {
        "work": dataclasses.asdict(work),
        "topology": topology.name,
        "devices": [topology.devices[0].device_kind, len(topology.devices)],
        "chip": None if topology.chip is None else dataclasses.asdict(topology.chip),
        "mesh": list(mesh),
    }


def _versions() -> dict[str, str]:
    found = {}
    for name in _VERSIONS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    return found


def _sources() -> str:
    root = Path(__file__).parents[1]
    files = sorted(path for pattern in _SOURCES for path in root.glob(pattern))
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()
