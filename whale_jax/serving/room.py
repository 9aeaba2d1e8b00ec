"""Who gives up pages when they run short, and where the states go.

Common beginnings leave the device first, then the states of sessions that run no request, the least recently used
before others; then the youngest requests are paused. The oldest request always goes on.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

from whale_jax.serving.driver import Session
from whale_jax.serving.engine import Engine
from whale_jax.serving.host_states import HostStates
from whale_jax.serving.prefixes import PrefixStore
from whale_jax.serving.requests import Request


class SlotRoom:
    """Slots, who owns what lies in them, and what lies elsewhere. The base of `slots.SlotTable`."""

    def __init__(self, engine: Engine) -> None:
        engine.reset()
        self.engine = engine
        self.running: list[Request | None] = [None] * engine.slots
        self.counters = dict.fromkeys(
            ("moves_to_host", "moves_to_device", "prefix_hits", "prefix_tokens", "replayed_tokens", "pauses"), 0
        )
        self._owner: list[Session | None] = [None] * engine.slots
        self._last_used = [0] * engine.slots
        self._host = HostStates(engine.host_bytes)
        enough = engine.slot_bytes <= engine.prefix_bytes
        self._prefixes = PrefixStore(engine, self._host, engine.prefix_bytes) if enough else None

    def _with_pages(self, counts: Mapping[int, int]) -> list[int]:
        """Those slots that can take so many more ids, the oldest request first; the others are paused."""
        ready = []
        for slot in sorted(counts, key=lambda slot: self._at(slot).seniority):
            request = self._at(slot)
            if request.paused:  # for the sake of an older one
                continue
            length = request.session.consumed + counts[slot]
            while not self.engine.grow(slot, length):
                if not (self._free_kept() or self._pause_younger(request)):
                    self._pause(slot)
                    break
            else:
                ready.append(slot)
        return ready

    def _free_kept(self) -> bool:
        """Moves one kept state to host memory; False if there is none on the device."""
        if self._prefixes is not None and self._prefixes.shrink():
            return True
        idle = [slot for slot, request in enumerate(self.running) if request is None and self._owner[slot] is not None]
        if not idle:
            return False
        session = self._owner[min(idle, key=lambda slot: (self._kept(slot), self._last_used[slot]))]
        assert session is not None
        self._move_to_host(session)
        return True

    def _pause_younger(self, request: Request) -> bool:
        """Pauses the youngest request that is younger than this one and has pages; False if there is none."""
        younger = {
            other.seniority: slot
            for slot, other in enumerate(self.running)
            if other is not None
            and other.seniority > request.seniority
            and not other.paused
            and self.engine.held_pages(slot)
        }
        if not younger:
            return False
        self._pause(younger[max(younger)])
        return True

    def _pause(self, slot: int) -> None:
        """Takes a running request's pages; its state waits in host memory, whatever the bound there is."""
        request = self._at(slot)
        if request.paused:
            return
        request.paused = True
        self.counters["pauses"] += 1
        if request.session.consumed:
            request.parked = self.engine.to_host(slot, request.session.consumed)
            self.counters["moves_to_host"] += 1
        self.engine.clear(slot)

    def _unpause(self, slot: int) -> bool:
        """Gives a paused request its state back and room for the next step; False if pages are short."""
        request = self._at(slot)
        ahead = max(self.engine.extend_chunk, self.engine.decode_steps)
        length = min(request.session.consumed + ahead, self.engine.max_len)
        while self.engine.missing_pages(slot, length):
            if not self._free_kept():
                return False
        if request.parked is not None:
            self.engine.from_host(slot, request.parked)
            self.counters["moves_to_device"] += 1
        request.paused, request.parked = False, None
        return True

    def _unpause_all(self, among: Container[int] | None = None) -> None:
        """Lets paused requests go on, the oldest first, until pages are short again; `among` are the slots that may."""
        paused = [
            slot
            for slot, request in enumerate(self.running)
            if request is not None and request.paused and (among is None or slot in among)
        ]
        for slot in sorted(paused, key=lambda slot: self._at(slot).seniority):
            if not self._unpause(slot):
                return

    def _move_to_host(self, session: Session) -> None:
        """Takes a session that runs no request out of its slot; its state is kept in host memory."""
        slot = session.slot
        if slot is None:
            return
        if session.consumed and not session.closed:
            self._host.put(session, self.engine.to_host(slot, session.consumed))
            self.counters["moves_to_host"] += 1
        self.engine.clear(slot)
        self._owner[slot] = None
        session.slot = None

    def _idle_sessions(self) -> list[Session]:
        """Sessions that are in a slot and run no request."""
        owners = zip(self._owner, self.running, strict=True)
        return [session for session, request in owners if session is not None and request is None]

    def _forget(self, session: Session) -> None:
        """Drops a session's state and how it came about."""
        if session.slot is not None:
            self.engine.clear(session.slot)
            self._owner[session.slot] = None
        self._host.take(session)
        session.slot = None
        session.consumed = 0
        session.pieces.clear()

    def _kept(self, slot: int) -> bool:
        """Whether the slot holds the state of a session that may go on."""
        owner = self._owner[slot]
        return owner is not None and not owner.closed

    def _at(self, slot: int) -> Request:
        request = self.running[slot]
        assert request is not None, f"slot {slot} runs no request"
        return request
