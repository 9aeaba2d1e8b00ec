"""What one run of a compiled program costs on one chip: matrix FLOPs, bytes of main memory, collectives.

Every body is counted as often as it runs. Definitions:

    flops        2 x multiply-adds of the matrix products (dot, convolution), and what custom calls declare
    mxu_flops    the same, times the passes of the bf16 matrix unit that the product's precision takes (fp32: 6 at
                 `highest`, 3 at `high`); this is what the time bound uses
    hbm_bytes    read and written by the instructions outside fusions, arrays in on-core memory left out; where a
                 fusion reads or writes a slice of an operand, the slice counts
    collectives  bytes a chip must receive, by kind, for a ring over the group
"""

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from whale_jax.plan.hlo import Computation, HloError, Instruction, Program
from whale_jax.plan.loops import Known, known_inside, trip_count
from whale_jax.plan.movement import COLLECTIVES, fusion_bytes, goes_on, moved, received
from whale_jax.plan.products import convolution_flops, dot_flops, passes

_NOTHING = ("parameter", "constant", "get-tuple-element", "tuple", "bitcast", "iota", "after-all", "partition-id")
_FREE = frozenset((*_NOTHING, "replica-id", "optimization-barrier"))
"""Instructions that move nothing."""


@dataclass(frozen=True)
class Collective:
    """Collectives of one kind.

    Attributes:
        count: how many run.
        bytes: received per chip.
    """

    count: int = 0
    bytes: float = 0.0


@dataclass(frozen=True)
class Kernel:
    """What one call of a kernel does that the program's text does not tell.

    Attributes:
        hbm_bytes: read of arrays that it reads in part: those operands count with their share of this at most.
        flops: of its matrix products.
    """

    hbm_bytes: float
    flops: float


@dataclass(frozen=True)
class Cost:
    """See the module docstring. `unknown_loops` are the op names of loops that were counted as the caller said."""

    flops: float = 0.0
    mxu_flops: float = 0.0
    hbm_bytes: float = 0.0
    collectives: Mapping[str, Collective] = field(default_factory=dict)
    unknown_loops: tuple[str, ...] = ()

    def __add__(self, other: "Cost") -> "Cost":
        kinds = {*self.collectives, *other.collectives}
        none = Collective()
        return Cost(
            self.flops + other.flops,
            self.mxu_flops + other.mxu_flops,
            self.hbm_bytes + other.hbm_bytes,
            {
                kind: Collective(
                    self.collectives.get(kind, none).count + other.collectives.get(kind, none).count,
                    self.collectives.get(kind, none).bytes + other.collectives.get(kind, none).bytes,
                )
                for kind in sorted(kinds)
            },
            self.unknown_loops + other.unknown_loops,
        )

    def times(self, count: int) -> "Cost":
        """The cost of `count` runs."""
        return Cost(
            self.flops * count,
            self.mxu_flops * count,
            self.hbm_bytes * count,
            {kind: Collective(c.count * count, c.bytes * count) for kind, c in self.collectives.items()},
            self.unknown_loops,
        )

    @property
    def collective_bytes(self) -> float:
        return sum(collective.bytes for collective in self.collectives.values())


def cost_of(program: Program, *, unknown_trips: int | None = None, kernels: Mapping[str, Kernel] | None = None) -> Cost:
    """The cost of one run of `program`.

    Args:
        unknown_trips: turns of a loop whose bound is computed from data.
        kernels: by a part of the op name, kernels that read only a part of two of their operands.

    Raises:
        HloError: there is such a loop and `unknown_trips` is None.
    """
    return _Counter(program, unknown_trips, kernels or {}).computation(program.entry, {})


class _Counter:
    def __init__(self, program: Program, unknown_trips: int | None, kernels: Mapping[str, Kernel]) -> None:
        self._program = program
        self._kernels = kernels
        self._unknown_trips = unknown_trips

    def computation(self, computation: Computation, known: Known) -> Cost:
        total = Cost()
        for instruction in computation.instructions:
            total += self._instruction(computation, instruction, known)
        return total

    def _instruction(self, where: Computation, instruction: Instruction, known: Known) -> Cost:
        opcode = instruction.opcode
        if opcode == "while":
            return self._loop(where, instruction, known)
        if opcode in _FREE or opcode.endswith(("-done", "-update")):  # what is on its way was counted at its start
            return Cost()
        if opcode == "conditional":
            branches = instruction.called("branch_computations", "true_computation", "false_computation")
            costs = [self.computation(self._program.computations[name], {}) for name in branches]
            return max(costs, key=lambda cost: (cost.mxu_flops, cost.hbm_bytes))
        if opcode in ("call", "async-start"):
            called = instruction.called("to_apply", "calls", "called_computation")
            return sum((self.computation(self._program.computations[name], {}) for name in called), Cost())
        if opcode == "fusion":
            called = self._program.computations[instruction.called("calls")[0]]
            inside = self._inside_fusion(called)
            return dataclasses.replace(inside, hbm_bytes=fusion_bytes(self._program, where, instruction))
        if opcode == "custom-call":
            for name, kernel in self._kernels.items():
                if name in (instruction.op_name or ""):
                    read = moved(where, instruction, at_most=kernel.hbm_bytes / 2)
                    return Cost(flops=kernel.flops, mxu_flops=kernel.flops, hbm_bytes=read)
            if declared := re.search(r'"bytes_accessed":"?(\d+)', instruction.attributes):
                return dataclasses.replace(_work(where, instruction), hbm_bytes=float(declared[1]))
        own = _work(where, instruction)
        return dataclasses.replace(own, hbm_bytes=moved(where, instruction))

    def _loop(self, where: Computation, loop: Instruction, known: Known) -> Cost:
        turns = trip_count(self._program, where, loop, known)
        body = self._program.computations[loop.called("body")[0]]
        one = self.computation(body, known_inside(self._program, where, loop, known))
        if turns is not None:
            return one.times(turns)
        if self._unknown_trips is None:
            raise HloError(
                f"loop {loop.name} ({loop.op_name}): its bound is computed from data, and no count was given"
            )
        return dataclasses.replace(
            one.times(self._unknown_trips), unknown_loops=(*one.unknown_loops, loop.op_name or loop.name)
        )

    def _inside_fusion(self, called: Computation) -> Cost:
        """FLOPs and collectives of a fusion; its bytes are those of its edges."""
        total = Cost()
        begun_before = goes_on(called)
        for instruction in called.instructions:
            if instruction.opcode == "fusion":
                total += self._inside_fusion(self._program.computations[instruction.called("calls")[0]])
            elif not (begun_before and instruction.opcode in COLLECTIVES):
                total += _work(called, instruction)
        return total


def _work(where: Computation, instruction: Instruction) -> Cost:
    """FLOPs and collectives of one instruction."""
    opcode = instruction.opcode
    if opcode in ("dot", "convolution"):
        flops = dot_flops(where, instruction) if opcode == "dot" else convolution_flops(where, instruction)
        return Cost(flops=flops, mxu_flops=flops * passes(where, instruction))
    if opcode == "custom-call":
        declared = re.search(r'"flops":"?(\d+)', instruction.attributes)
        flops = float(declared[1]) if declared else 0.0
        return Cost(flops=flops, mxu_flops=flops)
    kind = opcode.removesuffix("-start")
    if kind in COLLECTIVES:
        return Cost(collectives={kind: Collective(1, received(where, instruction, kind))})
    return Cost()
