"""One step compiled for a mesh of chips: what fits, what moves, and how fast it can be at best."""

import dataclasses
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax

from whale_jax.plan import hlo
from whale_jax.plan.chips import Chip, Topology
from whale_jax.plan.cost import Cost, cost_of
from whale_jax.plan.programs import Planned, Work, default_mesh, programs
from whale_jax.qwen3_5.sharding import AXES


class PlanError(ValueError):
    """A question that no plan can answer."""


@dataclass(frozen=True)
class Plan:
    """What a step needs. Sizes and movements are per chip, FLOPs of the whole step on all chips.

    Attributes:
        mesh: sizes of data, fsdp and tensor.
        bytes_limit: main memory of a chip; None if unknown.
        bytes_per_chip: by kind, and their `total`: the peak over the step's programs with all state there. When the
            program does not fit, the total is what the compiler says that it needs.
        model_flops, executed_flops: see `model_cost` and `cost`; None where the program does not compile.
        mxu_flops: executed, weighted by passes of the bf16 matrix unit.
        floor_hbm_bytes: the least bytes of main memory a decode step must move.
        step_seconds_bound: the slowest of matrix unit, main memory and links, per program; None without rates.
        mfu_bound: model FLOPs over what the chips could do in that time.
    """

    mesh: tuple[int, int, int]
    bytes_limit: float | None
    bytes_per_chip: Mapping[str, int]
    model_flops: float
    floor_hbm_bytes: float | None
    compile_seconds: float
    executed_flops: float | None = None
    mxu_flops: float | None = None
    hbm_bytes: float | None = None
    collectives: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    collective_bytes: float | None = None
    step_seconds_bound: float | None = None
    mfu_bound: float | None = None
    bound_by: str | None = None

    @property
    def fits(self) -> bool | None:
        """None when the memory of a chip is not known."""
        return None if self.bytes_limit is None else self.bytes_per_chip["total"] <= self.bytes_limit

    @property
    def spare_bytes(self) -> float | None:
        """Memory left; negative: missing."""
        return None if self.bytes_limit is None else self.bytes_limit - self.bytes_per_chip["total"]

    def as_json(self, work: Work, topology: Topology, model: str) -> dict[str, Any]:
        """Everything, with what was asked for."""
        return {
            "model": model,
            "topology": topology.name,
            "chips": len(topology.devices),
            "step": work.step.value,
            "batch": work.batch,
            "seq_len": work.seq_len,
            "remat": work.remat.value,
            "optimizer": work.optimizer.value,
            "mesh": dict(zip(AXES, self.mesh, strict=True)),
            "fits": self.fits,
            "spare_bytes": self.spare_bytes,
            **{name: value for name, value in dataclasses.asdict(self).items() if name != "mesh"},
        }


def memory_limit(topology: Topology) -> float | None:
    """Bytes of main memory that a program may use on a chip; None if unknown (host CPUs)."""
    if topology.chip is not None:
        return topology.chip.hbm_bytes
    return (topology.devices[0].memory_stats() or {}).get("bytes_limit")


def plan(work: Work, topology: Topology, mesh: tuple[int, int, int] | None = None) -> Plan:
    """Lowers, compiles and counts.

    Args:
        mesh: (data, fsdp, tensor); None chooses as `programs.default_mesh` says.

    Raises:
        ShardingError: the mesh does not divide chips, model or batch.
    """
    chips, chip = len(topology.devices), topology.chip
    limit = memory_limit(topology)
    mesh = mesh or default_mesh(work, chips, limit)
    began = time.perf_counter()
    planned = programs(work, mesh, topology.devices)
    compiled: dict[str, jax.stages.Compiled] = {}
    for name, lowered in planned.lowered.items():
        try:
            compiled[name] = lowered.compile()
        except jax.errors.JaxRuntimeError as error:
            needed, limit = _overflow(error)
            return Plan(
                mesh=mesh,
                bytes_limit=limit,
                bytes_per_chip=_by_kind(planned, {name: int(needed)}),
                model_flops=work.model_flops,
                floor_hbm_bytes=planned.floor_bytes,
                compile_seconds=time.perf_counter() - began,
            )
    seconds = time.perf_counter() - began
    costs = {
        name: cost_of(hlo.parse(program.as_text() or ""), unknown_trips=planned.unknown_trips, kernels=planned.kernels)
        for name, program in compiled.items()
    }
    cost = sum(costs.values(), Cost())
    bounds = [_seconds(one, chip) for one in costs.values()] if chip else []
    bound = sum(max(parts.values()) for parts in bounds) if bounds else None
    return Plan(
        mesh=mesh,
        bytes_limit=limit,
        bytes_per_chip=_by_kind(planned, {name: _peak(program) for name, program in compiled.items()}),
        model_flops=work.model_flops,
        executed_flops=cost.flops * chips,
        mxu_flops=cost.mxu_flops * chips,
        hbm_bytes=cost.hbm_bytes,
        floor_hbm_bytes=planned.floor_bytes,
        collectives={kind: dataclasses.asdict(one) for kind, one in cost.collectives.items()},
        collective_bytes=cost.collective_bytes,
        step_seconds_bound=bound,
        mfu_bound=work.model_flops / (bound * chips * chip.flops) if bound and chip else None,
        bound_by=_slowest(bounds),
        compile_seconds=seconds,
    )


def largest_batch(work: Work, topology: Topology, mesh: tuple[int, int, int] | None = None) -> tuple[Work, Plan] | None:
    """The largest batch that fits, in multiples of `work.batch`; None if not even that one does.

    The multiple doubles until it does not fit; then the gap is halved.

    Raises:
        ShardingError: as `plan`.
        PlanError: the memory of a chip is not known, so everything would fit.
    """
    if memory_limit(topology) is None:
        raise PlanError(f"--fit: the memory of the devices of --topology={topology.name} is not known")
    best: tuple[Work, Plan] | None = None
    fits, too_large = 0, None
    while too_large is None or too_large - fits > 1:
        multiple = max(1, 2 * fits) if too_large is None else (fits + too_large) // 2
        tried = dataclasses.replace(work, batch=work.batch * multiple)
        result = plan(tried, topology, mesh)
        if result.fits:
            fits, best = multiple, (tried, result)
        else:
            too_large = multiple
    return best


def _seconds(cost: Cost, chip: Chip) -> dict[str, float]:
    return {
        "matrix unit": cost.mxu_flops / chip.flops,
        "main memory": cost.hbm_bytes / chip.hbm_rate,
        "links": cost.collective_bytes / chip.link_rate,
    }


def _slowest(bounds: list[dict[str, float]]) -> str | None:
    """The resource that bounds the longest program."""
    if not bounds:
        return None
    longest = max(bounds, key=lambda parts: max(parts.values()))
    return max(longest, key=lambda name: longest[name])


def _by_kind(planned: Planned, peaks: Mapping[str, int]) -> dict[str, int]:
    """Bytes by kind: what lives on a chip throughout, and the most that a program takes beside it."""
    total = max(peak + _beside(planned, name) for name, peak in peaks.items())
    return {**planned.state_bytes, "activations": total - sum(planned.state_bytes.values()), "total": total}


def _peak(program: jax.stages.Compiled) -> int:
    """Arguments, results that do not take an argument's place, temporaries and code."""
    sizes = program.memory_analysis()
    if sizes is None:
        raise RuntimeError("the compiler of these devices tells no memory sizes")
    return (
        sizes.argument_size_in_bytes
        + sizes.output_size_in_bytes
        - sizes.alias_size_in_bytes
        + sizes.temp_size_in_bytes
        + sizes.generated_code_size_in_bytes
    )


def _beside(planned: Planned, name: str) -> int:
    """State that is on the chip while a program runs that is not given it."""
    given = planned.argument_kinds[name]
    return sum(size for kind, size in planned.state_bytes.items() if kind not in given)


_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def _overflow(error: Exception) -> tuple[float, float]:
    """Bytes needed and bytes there are, from the compiler's message; any other error passes on."""
    found = re.search(r"Used ([\d.]+)([KMGT]?) of ([\d.]+)([KMGT]?) hbm", str(error)) or re.search(
        r"temporaries \(([\d.]+)([KMGT]?)\) exceeds available HBM \(([\d.]+)([KMGT]?)\)", str(error)
    )
    if found is None:
        raise error
    return float(found[1]) * _UNITS[found[2]], float(found[3]) * _UNITS[found[4]]
