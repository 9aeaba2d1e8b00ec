"""States at common beginnings of sequences, computed once.

A harness's head is the same in every episode, and the samples of a group share their whole first prompt. The store
keeps states at chunk boundaries of first extensions, so a new sequence starts from the longest beginning that is kept
and computes the rest with the very chunks it would have had: its numbers are the same bits.

Recurrent state cannot be cut back, so a state serves its own boundary alone. The last chunk of a prompt is always
computed: its last position gives the first sampled id.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from whale_jax.serving.rows import RowState

_SEEN = 4096
"""Boundaries that are remembered without a state, to find out which ones several prompts share."""


class PrefixStore:
    """The least recently used states go first when a bound on memory is reached. One thread calls it."""

    def __init__(self, max_bytes: int) -> None:
        """Keeps at most `max_bytes` of states."""
        self._max_bytes = max_bytes
        self._bytes = 0
        self._states: OrderedDict[bytes, RowState] = OrderedDict()
        self._seen: OrderedDict[bytes, None] = OrderedDict()

    def find(self, keys: Sequence[bytes]) -> tuple[int, RowState] | None:
        """The longest of these beginnings that is kept: how many chunks it holds, and its state."""
        for count in range(len(keys), 0, -1):
            state = self._states.get(keys[count - 1])
            if state is not None:
                self._states.move_to_end(keys[count - 1])
                return count, state
        return None

    def worth_keeping(self, keys: Sequence[bytes]) -> set[bytes]:
        """The whole beginning of a new prompt, and the longest part of it that an earlier prompt had too."""
        worth = set(keys[-1:])
        if keys and keys[-1] not in self._seen:
            worth.update([key for key in keys if key in self._seen][-1:])
        for key in keys:
            self._seen[key] = None
            self._seen.move_to_end(key)
        while len(self._seen) > _SEEN:
            self._seen.popitem(last=False)
        return worth

    def keep(self, key: bytes, state: RowState) -> None:
        """Stores a state, and drops the least recently used ones beyond the bound."""
        if key in self._states:
            return
        self._states[key] = state
        self._bytes += _size(state)
        while self._bytes > self._max_bytes:
            _, dropped = self._states.popitem(last=False)
            self._bytes -= _size(dropped)

    def clear(self) -> None:
        """Forgets all states: the weights changed."""
        self._states.clear()
        self._bytes = 0


def boundaries(chunks: Sequence[Sequence[int]]) -> list[bytes]:
    """A key for the end of each chunk but the last: the ids from the first on, and where they were cut.

    The cuts belong to it because rounding differs with them.
    """
    keys, so_far = [], b""
    for chunk in list(chunks)[:-1]:
        so_far += np.asarray([len(chunk), *chunk], np.int32).tobytes()
        keys.append(so_far)
    return keys


def _size(state: RowState) -> int:
    return sum(leaf.nbytes for leaf in state)
