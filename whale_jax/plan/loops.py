"""How often the loops of a compiled program run.

XLA's own cost figures count the body of a loop once. Its text does not always carry trip counts either, so the loop's
integers are run here: start values, the step of the body and the condition, through copies and fusions. A loop whose
bound the program computes from data has no count.
"""

import operator
import re
from collections.abc import Mapping

from whale_jax.plan.hlo import Computation, Instruction, Program

Known = Mapping[tuple[int, int | None], int]
"""Integers among a computation's parameters: (parameter number, index in its tuple or None) to value."""

MOST_TURNS = 10_000_000

_SAME = ("copy", "bitcast", "convert", "reshape", "copy-done", "copy-start", "optimization-barrier")
_ARITHMETIC = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "and": operator.and_,
    "minimum": min,
    "maximum": max,
}
_COMPARISONS = {
    "LT": operator.lt,
    "LE": operator.le,
    "GT": operator.gt,
    "GE": operator.ge,
    "EQ": operator.eq,
    "NE": operator.ne,
}


def trip_count(program: Program, where: Computation, loop: Instruction, known: Known) -> int | None:
    """How often the body of a `while` runs; None if the program decides that while it runs.

    Args:
        where: the computation that holds `loop`.
        known: what is known of the parameters of `where`.
    """
    if note := re.search(r'known_trip_count"?:\{"?n"?:"?(\d+)', loop.attributes):
        return int(note[1])
    condition, body = _parts(program, loop)
    if body.root.opcode != "tuple":
        return None
    values = dict(enumerate(_starts(program, where, loop, known)))
    moving = [index for index in values if not _passes(body, index)]
    for turn in range(MOST_TURNS):
        now: dict[tuple[int, int | None], int] = {
            (0, index): value for index, value in values.items() if value is not None
        }
        goes_on = value_of(program, condition, condition.root.name, now)
        if goes_on is None:
            return None
        if not goes_on:
            return turn
        moved = {index: value_of(program, body, body.root.operands[index], now) for index in moving}
        moving = [index for index in moving if moved[index] is not None]
        values.update(moved)
    return None


def known_inside(program: Program, where: Computation, loop: Instruction, known: Known) -> Known:
    """The integers that the body of a loop sees unchanged at every turn."""
    _, body = _parts(program, loop)
    if body.root.opcode != "tuple":
        return {}
    starts = enumerate(_starts(program, where, loop, known))
    return {(0, index): value for index, value in starts if value is not None and _passes(body, index)}


def value_of(program: Program, where: Computation, name: str, known: Known) -> int | None:
    """The integer that an instruction gives, where it can be told."""
    instruction = where.by_name[name]
    opcode = instruction.opcode

    def operand(index: int) -> int | None:
        return value_of(program, where, instruction.operands[index], known)

    if opcode == "constant":
        return _constant(instruction)
    if opcode == "parameter":
        return known.get((int(instruction.literal), None))
    if opcode in _SAME:
        return operand(0)
    if opcode in _ARITHMETIC or opcode == "compare":
        left, right = operand(0), operand(1)
        if left is None or right is None:
            return None
        function = _ARITHMETIC.get(opcode) or _COMPARISONS[instruction.attribute("direction") or ""]
        return int(function(left, right))
    if opcode == "get-tuple-element":
        index = int(instruction.attribute("index") or 0)
        return _element(program, where, instruction.operands[0], index, known)
    if opcode in ("fusion", "call") and len(instruction.shapes) == 1:
        called = program.computations[instruction.called("calls", "to_apply")[0]]
        values = [value_of(program, where, operand_name, known) for operand_name in instruction.operands]
        inside: dict[tuple[int, int | None], int] = {
            (number, None): value for number, value in enumerate(values) if value is not None
        }
        return value_of(program, called, called.root.name, inside)
    return None


def _element(program: Program, where: Computation, name: str, index: int, known: Known) -> int | None:
    source = where.by_name[name]
    if source.opcode == "parameter":
        return known.get((int(source.literal), index))
    if source.opcode == "tuple":
        return value_of(program, where, source.operands[index], known)
    if source.opcode in _SAME:
        return _element(program, where, source.operands[0], index, known)
    if source.opcode == "while":
        _, body = _parts(program, source)
        if body.root.opcode == "tuple" and _passes(body, index):
            return _element(program, where, source.operands[0], index, known)
    return None


def _starts(program: Program, where: Computation, loop: Instruction, known: Known) -> list[int | None]:
    """The integers that enter a loop, one per element of its tuple; None where unknown or not a scalar integer."""
    return [
        None if shape.dims or shape.dtype[0] not in "su" else _element(program, where, loop.operands[0], index, known)
        for index, shape in enumerate(loop.shapes)
    ]


def _parts(program: Program, loop: Instruction) -> tuple[Computation, Computation]:
    """Condition and body."""
    return program.computations[loop.called("condition")[0]], program.computations[loop.called("body")[0]]


def _passes(body: Computation, index: int) -> bool:
    """Whether a loop hands an element of its tuple on unchanged."""
    instruction = body.by_name[body.root.operands[index]]
    while instruction.opcode in _SAME:
        instruction = body.by_name[instruction.operands[0]]
    return (
        instruction.opcode == "get-tuple-element"
        and int(instruction.attribute("index") or -1) == index
        and body.by_name[instruction.operands[0]].opcode == "parameter"
    )


def _constant(instruction: Instruction) -> int | None:
    literal = instruction.literal.strip()
    if literal in ("true", "false"):
        return int(literal == "true")
    return int(literal) if re.fullmatch(r"-?\d+", literal) else None
