"""A compiled program's text (optimised HLO) as data: computations, instructions, shapes.

This reads what `jax.stages.Compiled.as_text` gives. The grammar is XLA's HLO text format; only what `loops` and `cost`
need is kept.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property


class HloError(ValueError):
    """Text that is not a compiled program."""


_BITS = {"pred": 8, "token": 0, "opaque": 0}
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,<= ]*)\](?:\{([^{}]*)\})?")


@dataclass(frozen=True)
class Shape:
    """An array's shape in a program.

    Attributes:
        dtype: XLA's name (`f32`, `bf16`, `s32`, `pred`, …).
        dims: sizes.
        space: memory space; 0 is the chip's main memory (HBM), others are on the core.
    """

    dtype: str
    dims: tuple[int, ...]
    space: int = 0

    @property
    def elements(self) -> int:
        count = 1
        for size in self.dims:
            count *= size
        return count

    @property
    def bytes(self) -> int:
        """Size without tiling."""
        if self.dtype in _BITS:
            bits = _BITS[self.dtype]
        else:
            digits = re.search(r"\d+", self.dtype)
            bits = int(digits[0]) if digits else 0
        return self.elements * bits // 8


@dataclass(frozen=True)
class Instruction:
    """One instruction.

    Attributes:
        shapes: the arrays of its result; several for a tuple.
        operands: names of its operands.
        attributes: the text after the operands.
        literal: the text between the parentheses, for constants and parameter numbers.
        is_root: its result is that of its computation.
    """

    name: str
    opcode: str
    shapes: tuple[Shape, ...]
    operands: tuple[str, ...]
    attributes: str
    literal: str
    is_root: bool

    def attribute(self, name: str) -> str | None:
        """The value of a plain attribute: a word, or what stands in its braces."""
        found = re.search(rf"\b{name}=(?:\{{([^{{}}]*)\}}|([^\s,]+))", self.attributes)
        return None if found is None else (found[1] if found[1] is not None else found[2])

    def called(self, *names: str) -> tuple[str, ...]:
        """The computations under these attributes."""
        values = (self.attribute(name) for name in names)
        return tuple(part.strip().lstrip("%") for value in values if value for part in value.split(","))

    def numbers(self, name: str) -> list[int]:
        """The integers of a list attribute; empty where there is none."""
        return [int(number) for number in (self.attribute(name) or "").split(",") if number.strip()]

    @property
    def op_name(self) -> str:
        """Where in the traced program it comes from; may be empty."""
        found = re.search(r'op_name="([^"]*)"', self.attributes)
        return found[1] if found else ""


@dataclass(frozen=True)
class Computation:
    """A list of instructions with one result."""

    name: str
    instructions: tuple[Instruction, ...] = field(repr=False)

    @cached_property
    def by_name(self) -> Mapping[str, Instruction]:
        return {instruction.name: instruction for instruction in self.instructions}

    def operand_shapes(self, instruction: Instruction) -> list[tuple[Shape, ...]]:
        """The shapes of each operand of one of its instructions."""
        return [self.by_name[name].shapes for name in instruction.operands]

    @cached_property
    def root(self) -> Instruction:
        return next(instruction for instruction in self.instructions if instruction.is_root)

    @cached_property
    def parameters(self) -> tuple[Instruction, ...]:
        """By number."""
        found = [instruction for instruction in self.instructions if instruction.opcode == "parameter"]
        return tuple(sorted(found, key=lambda instruction: int(instruction.literal)))

    @cached_property
    def users(self) -> Mapping[str, tuple[Instruction, ...]]:
        """Instructions by the name of what they use."""
        found: dict[str, list[Instruction]] = {}
        for instruction in self.instructions:
            for operand in set(instruction.operands):
                found.setdefault(operand, []).append(instruction)
        return {name: tuple(users) for name, users in found.items()}


@dataclass(frozen=True)
class Program:
    """A compiled program of one device."""

    computations: Mapping[str, Computation] = field(repr=False)
    entry: Computation = field(repr=False)


_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .*\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*)$")
_COMMENT = re.compile(r"/\*.*?\*/")


def parse(text: str) -> Program:
    """Reads a program.

    Raises:
        HloError: no entry computation, or an instruction that does not have the form of one.
    """
    computations: dict[str, Computation] = {}
    entry = None
    name, is_entry, body = None, False, []
    for line in text.splitlines():
        if header := _HEADER.match(line):
            name, is_entry, body = header[2], bool(header[1]), []
        elif line.startswith("}") and name is not None:
            computations[name] = Computation(name, tuple(body))
            entry = computations[name] if is_entry else entry
            name = None
        elif name is not None and (found := _INSTRUCTION.match(line)):
            body.append(_instruction(found[2], _COMMENT.sub("", found[3]), bool(found[1])))
    if entry is None:
        raise HloError("the text has no entry computation; it must be a compiled program's HLO")
    return Program(computations, entry)


def _instruction(name: str, text: str, is_root: bool) -> Instruction:
    shape_end = _closing(text, 0) if text.startswith("(") else text.find(" ")
    opcode = re.match(r"\s*([\w\-]+)\(", text[shape_end:])
    if opcode is None:
        raise HloError(f"instruction {name}: cannot find an operation in {text[:120]!r}")
    start = shape_end + opcode.end() - 1
    end = _closing(text, start)
    inside = text[start + 1 : end - 1]
    return Instruction(
        name=name,
        opcode=opcode[1],
        shapes=tuple(_shapes(text[:shape_end])),
        operands=tuple(re.findall(r"%([\w.\-]+)", inside)),
        attributes=text[end:],
        literal=inside,
        is_root=is_root,
    )


def _closing(text: str, start: int) -> int:
    """The place after the parenthesis that closes the one at `start`."""
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] == "(") - (text[place] == ")")
        if depth == 0:
            return place + 1
    raise HloError(f"unbalanced parentheses in {text[:120]!r}")


def _shapes(text: str) -> Iterator[Shape]:
    for dtype, dims, layout in _ARRAY.findall(text):
        space = re.search(r"S\((\d+)\)", layout)
        sizes = tuple(int(size.strip("<= ")) for size in dims.split(",") if size.strip("<= "))
        yield Shape(dtype, sizes, int(space[1]) if space else 0)
