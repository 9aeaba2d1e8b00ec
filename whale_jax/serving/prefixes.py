"""States at common beginnings of sequences, computed once.

A harness's head is the same in every episode, and the samples of a group share their whole first prompt. The store
keeps states at chunk boundaries of first extensions, so a new sequence starts from the longest beginning that is kept
and computes the rest with the very chunks it would have had: its numbers are the same bits. The hidden state at the
boundary is kept too: where a whole prompt is found, the first sampled id comes from it.

Recurrent state cannot be cut back, so a state serves its own boundary alone. States are kept on the device, then in
host memory, then computed again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from whale_jax.serving.host_states import HostStates
from whale_jax.serving.memory import SlotMemory
from whale_jax.serving.rows import Kept, RowState

_SEEN = 4096
"""Boundaries that are remembered without a state, to find out which ones several prompts share."""


class PrefixStore:
    """The least recently used states leave the device first when a bound on memory is reached. One thread calls it."""

    def __init__(self, memory: SlotMemory, host: HostStates, max_bytes: int) -> None:
        """Keeps at most `max_bytes` of states on the device, and others in `host`."""
        self._memory = memory
        self._host = host
        self._max_bytes = max_bytes
        self._bytes = 0
        self._states: OrderedDict[bytes, Kept] = OrderedDict()
        self._seen: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        """States on the device."""
        return len(self._states)

    def find(self, keys: Sequence[bytes]) -> tuple[int, Kept | RowState] | None:
        """The longest of these beginnings that is kept: how many chunks it holds, and its state."""
        for count in range(len(keys), 0, -1):
            key = keys[count - 1]
            if key in self._states:
                self._states.move_to_end(key)
                return count, self._states[key]
            if (state := self._host.get(key)) is not None:
                return count, state
        return None

    def worth_keeping(self, keys: Sequence[bytes]) -> set[bytes]:
        """The whole of a new prompt, and the longest part of it that an earlier prompt had too."""
        worth = set(keys[-1:])
        if keys and keys[-1] not in self._seen:
            worth.update([key for key in keys if key in self._seen][-1:])
        for key in keys:
            self._seen[key] = None
            self._seen.move_to_end(key)
        while len(self._seen) > _SEEN:
            self._seen.popitem(last=False)
        return worth

    def keep(self, key: bytes, state: Kept) -> None:
        """Takes a state over; the least recently used ones beyond the bound go to the host."""
        if key in self._states:
            self._memory.drop(state)
            return
        self._states[key] = state
        self._bytes += self._size(state)
        while self._bytes > self._max_bytes:
            self.shrink()

    def shrink(self) -> bool:
        """Moves the least recently used state to the host; False if there is none."""
        if not self._states:
            return False
        key, state = self._states.popitem(last=False)
        self._bytes -= self._size(state)
        self._host.put(key, self._memory.kept_to_host(state))
        self._memory.drop(state)
        return True

    def clear(self, *, tainted: bool = False) -> None:
        """Forgets all states on the device: the weights changed, or (`tainted`) something in them is not finite."""
        for state in self._states.values():
            self._memory.drop(state, tainted=tainted)
        self._states.clear()
        self._bytes = 0

    def _size(self, state: Kept) -> int:
        return self._memory.row_bytes + len(state.pages) * self._memory.page_bytes


def boundaries(chunks: Sequence[Sequence[int]]) -> list[bytes]:
    """A key for the end of each chunk: the ids from the first on, and where they were cut.

    The cuts belong to it because rounding differs with them.
    """
    keys, so_far = [], b""
    for chunk in chunks:
        so_far += np.asarray([len(chunk), *chunk], np.int32).tobytes()
        keys.append(so_far)
    return keys
