"""Sequences of many lengths into rows of one fixed shape.

Several sequences share a row; the model restarts its state, convolution window, attention and positions at each segment
boundary, so a packed sequence gives the numbers it gives alone. One shape means one compilation.

Letters: R rows of a batch, T positions of a row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from whale_jax.training.rsft import TrainSequence


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
        batches: micro-batches, all of one shape.
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


def pack(sequences: Sequence[TrainSequence], *, row_len: int, rows: int) -> Packed:
    """First-fit decreasing: longest first (ties in the order given), each into the first row with room.

    A sequence takes one position per id up to its last target; later ids predict nothing that is trained, so leaving
    them out changes no number. Sequences without a target are dropped and counted.

    Args:
        sequences: what to pack; the result is a pure function of them and their order.
        row_len: T, positions of a row.
        rows: R, rows of each batch; the last batch is filled up with empty rows.

    Raises:
        PackingError: sequences need more than `row_len` positions; every one is named.
    """
    if row_len < 1 or rows < 1:
        raise ValueError(f"pack: row_len and rows must be >= 1, got {row_len} and {rows}")
    trainable = [sequence for sequence in sequences if sequence.targets]
    lengths = [_positions(sequence) for sequence in trainable]
    too_long = [
        f"{sequence.name} needs {length}"
        for sequence, length in zip(trainable, lengths, strict=True)
        if length > row_len
    ]
    if too_long:
        raise PackingError(f"a packed row has {row_len} positions (--row_len), but " + "; ".join(too_long))
    filled = _first_fit_decreasing(lengths, row_len)
    batches = []
    for start in range(0, len(filled), rows):
        batch = _empty_batch(rows, row_len)
        for row, members in enumerate(filled[start : start + rows]):
            _fill_row(batch, row, [trainable[member] for member in members])
        batches.append(batch)
    return Packed(
        batches=tuple(batches),
        targets=sum(sequence.targets for sequence in trainable),
        tokens=sum(lengths),
        positions=len(batches) * rows * row_len,
        dropped=len(sequences) - len(trainable),
    )


def _positions(sequence: TrainSequence) -> int:
    """Inputs needed: all ids before the last target."""
    return int(np.flatnonzero(sequence.target_mask)[-1])


def _first_fit_decreasing(lengths: Sequence[int], row_len: int) -> list[list[int]]:
    """Indices into `lengths` per row."""
    filled: list[list[int]] = []
    room: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        row = next((row for row, free in enumerate(room) if free >= lengths[index]), len(filled))
        if row == len(filled):
            filled.append([])
            room.append(row_len)
        filled[row].append(index)
        room[row] -= lengths[index]
    return filled


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
