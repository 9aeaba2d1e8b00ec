"""Sequences of many lengths into rows of one fixed shape.

Several sequences share a row; the model restarts its state, convolution window, attention and positions at each segment
boundary, so a packed sequence gives the numbers it gives alone. A batch has one of a few shapes, each compiled once:
with one shape, the last batch of a mini-batch is mostly empty rows; with a ladder of them, it is as small as it can be.

Letters: R rows of a batch, T positions of a row.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import NamedTuple

import numpy as np

from whale_jax.training.rsft import TrainSequence

Shape = tuple[int, int]
"""Rows and positions of a row."""

_ODD = 3
"""Batches of a mini-batch that are not of the largest shape, at most."""


class PackingError(ValueError):
    """A sequence does not fit into a row; it is never cut."""


class Batch(NamedTuple):
    """One micro-batch, numpy arrays of [R, T]. Position t predicts the id at t + 1 of its own segment.

    Attributes:
        tokens: int32 input ids; 0 in padding.
        segment_ids: int32; 1, 2, … number the sequences of a row from the left, 0 is padding (always on the right).
        targets: int32 next ids; 0 where nothing is predicted.
        weights: fp32; 1 where the target was sampled, otherwise 0.
        sampler_logprobs: fp32 log-probability that the sampler gave the target; 0 where the weight is 0.
    """

    tokens: np.ndarray
    segment_ids: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    sampler_logprobs: np.ndarray


@dataclass(frozen=True)
class Packed:
    """What `pack` made.

    Attributes:
        batches: micro-batches, each of a shape of `ladder`.
        targets: tokens that carry loss.
        tokens: input positions in use.
        positions: positions in all, padding included.
        dropped: sequences left out because no id of theirs was sampled.
    """

    batches: tuple[Batch, ...]
    targets: int
    tokens: int
    positions: int
    dropped: int

    @property
    def fill_rate(self) -> float:
        """Share of positions in use; 1.0 when there are none."""
        return self.tokens / self.positions if self.positions else 1.0


def ladder(rows: int, row_len: int, shapes: int = 1, multiple: int = 1) -> tuple[Shape, ...]:
    """The shapes that a batch may have, the largest first.

    One shape is [rows, row_len]. With more, the first holds as many positions in rows that are twice as long where that
    many rows remain, since less is left over at the ends of long rows (rows that are longer still cost more attention
    than they save). Each further one is half of the one before it: half as many rows, then rows of half the length.

    Args:
        shapes: at most how many, >= 1.
        multiple: the rows of every batch are a multiple of this (the shards of a mesh).

    Raises:
        ValueError: a number out of range, or `rows` is no multiple of `multiple`.
    """
    if min(rows, row_len, shapes, multiple) < 1 or rows % multiple:
        raise ValueError(
            f"pack: row_len, rows and shapes must be >= 1, and rows a multiple of {multiple}; got {row_len}, {rows} "
            f"and {shapes}"
        )
    if shapes == 1:
        return ((rows, row_len),)
    if rows % (2 * multiple) == 0:
        rows, row_len = rows // 2, 2 * row_len
    found = []
    while len(found) < shapes and row_len:
        found.append((rows, row_len))
        rows, row_len = (rows // 2, row_len) if rows % (2 * multiple) == 0 else (rows, row_len // 2)
    return tuple(found)


def pack(sequences: Sequence[TrainSequence], *, row_len: int, rows: int, shapes: int = 1, multiple: int = 1) -> Packed:
    """First-fit decreasing: longest first (ties in the order given), each into the first row with room.

    A sequence takes one position per id up to its last target; later ids predict nothing that is trained, so leaving
    them out changes no number. Sequences without a target are dropped and counted. With several shapes, rows are those
    of the choice of batches that holds all sequences in the fewest positions.

    Args:
        sequences: what to pack; the result is a pure function of them and their order.
        row_len: positions that the longest sequence may need.
        rows: such rows of the largest batch.
        shapes, multiple: see `ladder`.

    Raises:
        PackingError: sequences need more than `row_len` positions; every one is named.
    """
    choice = ladder(rows, row_len, shapes, multiple)
    trainable = [sequence for sequence in sequences if sequence.targets]
    lengths = [_positions(sequence) for sequence in trainable]
    too_long = [
        f"{sequence.name} needs {length}"
        for sequence, length in zip(trainable, lengths, strict=True)
        if length > row_len
    ]
    if too_long:
        raise PackingError(f"a packed row has {row_len} positions (--row_len), but " + "; ".join(too_long))
    filled = _first_fit_decreasing(lengths, rows, row_len) if shapes == 1 else _fill(lengths, choice)
    batches = []
    for shape, members_of_rows in filled:
        batch = _empty_batch(*shape)
        for row, members in enumerate(members_of_rows):
            _fill_row(batch, row, [trainable[member] for member in members])
        batches.append(batch)
    return Packed(
        batches=tuple(batches),
        targets=sum(sequence.targets for sequence in trainable),
        tokens=sum(lengths),
        positions=sum(batch.tokens.size for batch in batches),
        dropped=len(sequences) - len(trainable),
    )


def _positions(sequence: TrainSequence) -> int:
    """Inputs needed: all ids before the last target."""
    return int(np.flatnonzero(sequence.target_mask)[-1])


_Filled = list[tuple[Shape, list[list[int]]]]
"""Per batch: its shape, and for each of its rows the indices into the lengths."""


def _first_fit_decreasing(lengths: Sequence[int], rows: int, row_len: int) -> _Filled:
    """As many batches of one shape as are needed."""
    filled: list[list[int]] = []
    room: list[int] = []
    for index in _longest_first(lengths):
        row = next((row for row, free in enumerate(room) if free >= lengths[index]), len(filled))
        if row == len(filled):
            filled.append([])
            room.append(row_len)
        filled[row].append(index)
        room[row] -= lengths[index]
    return [((rows, row_len), filled[start : start + rows]) for start in range(0, len(filled), rows)]


def _fill(lengths: Sequence[int], choice: Sequence[Shape]) -> _Filled:
    """The batches with the fewest positions (of equal ones the fewest batches) into which everything goes."""
    for shapes in _selections(sum(lengths), choice) if lengths else ():
        rows = [(row_len, batch) for batch, (count, row_len) in enumerate(shapes) for _ in range(count)]
        order = sorted(range(len(rows)), key=lambda row: rows[row])  # a short row that has room comes first
        found = _into(lengths, [rows[row][0] for row in order])
        if found is not None:
            batches: _Filled = [(shape, []) for shape in shapes]
            for row, members in sorted(zip(order, found, strict=True)):
                batches[rows[row][1]][1].append(members)
            return batches
    return []


def _selections(total: int, choice: Sequence[Shape]) -> Iterator[tuple[Shape, ...]]:
    """Batches that hold `total` positions, by positions: some of the largest shape, and at most `_ODD` smaller ones."""
    largest, *smaller = choice
    capacity = largest[0] * largest[1]
    fewest = total // capacity
    found = [
        (*(largest,) * full, *odd)
        for full in range(max(0, fewest - 1), fewest + 2)
        for count in range(_ODD + 1)
        for odd in combinations_with_replacement(smaller, count)
    ]
    by_size = sorted((sum(rows * row_len for rows, row_len in shapes), len(shapes), shapes) for shapes in found)
    yield from (shapes for positions, _, shapes in by_size if positions >= total and shapes)
    full = fewest + 2
    while True:  # sequences that leave much of every row empty
        yield (largest,) * full
        full += 1


def _into(lengths: Sequence[int], room: list[int]) -> list[list[int]] | None:
    """First-fit decreasing into rows of these lengths; None if something finds no place."""
    free = list(room)
    filled: list[list[int]] = [[] for _ in room]
    for index in _longest_first(lengths):
        row = next((row for row, left in enumerate(free) if left >= lengths[index]), None)
        if row is None:
            return None
        filled[row].append(index)
        free[row] -= lengths[index]
    return filled


def _longest_first(lengths: Sequence[int]) -> list[int]:
    return sorted(range(len(lengths)), key=lambda index: -lengths[index])


def _empty_batch(rows: int, row_len: int) -> Batch:
    shape = (rows, row_len)
    return Batch(
        tokens=np.zeros(shape, np.int32),
        segment_ids=np.zeros(shape, np.int32),
        targets=np.zeros(shape, np.int32),
        weights=np.zeros(shape, np.float32),
        sampler_logprobs=np.zeros(shape, np.float32),
    )


def _fill_row(batch: Batch, row: int, members: Sequence[TrainSequence]) -> None:
    start = 0
    for segment, sequence in enumerate(members, start=1):
        length = _positions(sequence)
        here = slice(start, start + length)
        mask = sequence.target_mask[1 : length + 1]
        batch.tokens[row, here] = sequence.ids[:length]
        batch.segment_ids[row, here] = segment
        batch.targets[row, here] = sequence.ids[1 : length + 1]
        batch.weights[row, here] = mask
        batch.sampler_logprobs[row, here] = np.where(mask, sequence.logprobs[1 : length + 1], 0.0)
        start += length
