"""Bytes that the instructions of a compiled program move: to and from main memory, and between chips."""

import math
import re

from whale_jax.plan.hlo import Computation, HloError, Instruction, Program, Shape

COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")

_FREE_CALLS = ("AllocateBuffer", "ConcatBitcast")
"""Custom calls that move nothing."""


def goes_on(called: Computation) -> bool:
    """Whether the collectives in a fusion started before it.

    One that runs beside other work appears in every fusion it runs beside; it counts where it starts.
    """
    targets = [i.attributes for i in called.instructions if i.opcode == "custom-call"]
    if any("AsyncCollectiveStart" in attributes for attributes in targets):
        return False
    return called.name.startswith("async_collective_fusion") or any("AsyncCollectiveDone" in a for a in targets)


def received(where: Computation, instruction: Instruction, kind: str) -> float:
    """Bytes a chip receives for a collective over a ring of its group.

    Raises:
        HloError: its group cannot be read.
    """
    operands = sum(shape.bytes for shapes in where.operand_shapes(instruction) for shape in shapes)
    if kind == "collective-permute":
        return operands
    group = _group_size(instruction)
    share = (group - 1) / group
    if kind == "all-gather":
        return operands * (group - 1)
    if kind == "all-reduce":
        return 2 * operands * share
    return operands * share


def _group_size(instruction: Instruction) -> int:
    text = instruction.attributes
    if mesh := re.search(r"replica_groups=mesh\[([^\]]*)\]\s*\{([^}]*)\}", text):
        sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", mesh[1])}
        group = 1
        for axis in re.findall(r"'(\w+)'", mesh[2]):
            group *= sizes[axis]
        return group
    if listed := re.search(r"replica_groups=\[\d+,(\d+)\]", text):
        return int(listed[1])
    if explicit := re.search(r"replica_groups=\{\{([\d,]+)\}", text):
        return explicit[1].count(",") + 1
    raise HloError(f"{instruction.opcode} {instruction.name}: cannot read its replica_groups")


def moved(where: Computation, instruction: Instruction, *, at_most: float = math.inf) -> float:
    """Bytes of main memory read and written by an instruction outside any fusion; `at_most` of each operand."""
    opcode = instruction.opcode
    written = _in_hbm(instruction.shapes)
    read = [min(_in_hbm(shapes), at_most) for shapes in where.operand_shapes(instruction)]
    if opcode in ("dynamic-slice", "slice", "gather"):
        return written + min(read[0], written)
    if opcode == "dynamic-update-slice":
        return 2 * read[1]
    if opcode == "scatter":
        return 3 * sum(read[len(read) // 2 + 1 :])
    if opcode == "custom-call" and any(f'"{name}"' in instruction.attributes for name in _FREE_CALLS):
        return 0.0
    if opcode == "copy-start":  # its result names destination and source
        return read[0] + _in_hbm(instruction.shapes[:1])
    if opcode.endswith("-start"):  # its result names operands, results and what it waits for
        result = instruction.shapes[len(read) : 2 * len(read)]
        taken = float(sum(shape.bytes for shape in result)) if "slice" in opcode else math.inf
        return min(sum(read), taken) + _in_hbm(result)
    return written + sum(read)


def _in_hbm(shapes: tuple[Shape, ...]) -> float:
    return float(sum(shape.bytes for shape in shapes if shape.space == 0))


def fusion_bytes(program: Program, where: Computation, fusion: Instruction) -> float:
    """Bytes of main memory that a fusion reads and writes at its edges; of a slice only its own."""
    total = 0.0
    called = program.computations[fusion.called("calls")[0]]
    going_on = COLLECTIVES if goes_on(called) else ()
    for shapes, parameter in zip(where.operand_shapes(fusion), called.parameters, strict=True):
        total += min(_in_hbm(shapes), _read_of(program, called, parameter.name, going_on))
    roots = [called.root]
    if called.root.opcode == "tuple":
        roots = [called.by_name[name] for name in called.root.operands]
    aliased = {int(index) for index in re.findall(r"\{(\d+)\}: \(", fusion.attributes)}
    for index, (root, shape) in enumerate(zip(roots, fusion.shapes, strict=False)):
        passed = index in aliased and root.opcode == "parameter"
        if shape.space == 0 and not passed and root.opcode not in going_on:
            total += _written_by(program, called, root, shape)
    return total


def _read_of(program: Program, called: Computation, name: str, ignored: tuple[str, ...]) -> float:
    """Bytes of a fusion's operand that its users read, those of the operations `ignored` left out."""
    total = 0.0
    for user in called.users.get(name, ()):
        if user.opcode in ("bitcast", "reshape", "copy", "convert") and user.name in called.users:
            total += _read_of(program, called, user.name, ignored)
        elif user.opcode == "fusion":  # fusions inside fusions
            inner = program.computations[user.called("calls")[0]]
            for operand, parameter in zip(user.operands, inner.parameters, strict=True):
                if operand == name:
                    total += _read_of(program, inner, parameter.name, ignored)
        elif user.opcode in ("dynamic-slice", "slice", "gather") and user.operands[0] == name:
            total += user.shapes[0].bytes
        elif user.opcode in ignored or (user.opcode == "dynamic-update-slice" and user.operands[0] == name):
            continue  # updated in place
        else:
            return float(sum(shape.bytes for shape in called.by_name[name].shapes))
    return total


def _written_by(program: Program, called: Computation, root: Instruction, shape: Shape) -> float:
    while root.opcode in ("bitcast", "convert", "reshape", "fusion"):
        if root.opcode == "fusion":
            called = program.computations[root.called("calls")[0]]
            root = called.root
        else:
            root = called.by_name[root.operands[0]]
    if root.opcode == "dynamic-update-slice":
        return float(called.by_name[root.operands[1]].shapes[0].bytes)
    return float(shape.bytes)
