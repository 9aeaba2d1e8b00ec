"""States in host memory, the least recently used of which go first when a bound is reached."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from whale_jax.serving.driver import Session
from whale_jax.serving.rows import RowState


class HostStates:
    """States by session, or by the key of a beginning. What is dropped here can be computed again."""

    def __init__(self, max_bytes: int) -> None:
        """Keeps at most `max_bytes`."""
        self._max_bytes = max_bytes
        self._states: OrderedDict[Hashable, RowState] = OrderedDict()
        self.bytes = 0
        self.evictions = 0

    def __contains__(self, key: Hashable) -> bool:
        return key in self._states

    def __len__(self) -> int:
        return len(self._states)

    def put(self, key: Hashable, state: RowState) -> None:
        """Keeps a state; those of closed sessions go, then the least recently used ones."""
        for other in [other for other in self._states if isinstance(other, Session) and other.closed]:
            self.take(other)
        self.take(key)
        self._states[key] = state
        self.bytes += state.nbytes
        while self.bytes > self._max_bytes:
            _, dropped = self._states.popitem(last=False)
            self.bytes -= dropped.nbytes
            self.evictions += 1

    def get(self, key: Hashable) -> RowState | None:
        """The state, which stays and becomes the most recently used one."""
        state = self._states.get(key)
        if state is not None:
            self._states.move_to_end(key)
        return state

    def take(self, key: Hashable) -> RowState | None:
        """The state, which goes."""
        state = self._states.pop(key, None)
        if state is not None:
            self.bytes -= state.nbytes
        return state

    def clear(self) -> None:
        """Forgets everything: the weights changed, or something in it is not finite."""
        self._states.clear()
        self.bytes = 0
