"""Requests in slots: what both drivers share.

A `SlotTable` turns requests on sessions into extend and decode steps of the engine. How an extension is cut into chunks
depends on the extension alone, so results do not depend on what else the table holds. It is not thread-safe: the one
thread that owns the engine calls it, except `check`, which reads constants.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Container, Mapping, Sequence
from typing import Any

from whale_jax.serving.checks import check_request
from whale_jax.serving.driver import Sampling, ServingError, Session
from whale_jax.serving.engine import DecodeRow, Engine, ExtendRow, SampledIds
from whale_jax.serving.prefixes import PrefixStore, boundaries
from whale_jax.serving.requests import Chunk, Request, plan_work
from whale_jax.serving.room import SlotRoom
from whale_jax.serving.rows import Kept, RowState

__all__ = ["Request", "SlotTable"]


class SlotTable(SlotRoom):
    """Who is in which slot, and the steps that take everybody forward."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._tick = 0
        self._extending: deque[int] = deque()
        self._begun: deque[tuple[int, Any]] = deque()  # slots whose whole prompt was found, and its hidden state
        self._computing: dict[bytes, Request] = {}

    def stats(self) -> dict[str, int]:
        """Counters since the start, and what is held now."""
        held = {
            "free_pages": self.engine.free_pages,
            "host_state_bytes": self._host.bytes,
            "host_evictions": self._host.evictions,
        }
        return {**self.engine.counters, **self.counters, **held}

    def check(self, session: Session, extensions: Sequence[Sequence[int]], max_tokens: int, sampling: Sampling) -> int:
        """Validates a request; see `checks.check_request`."""
        return check_request(self.engine, session, extensions, max_tokens, sampling)

    def choose(self, session: Session, new: int = 0) -> int | None:
        """The slot for the session's next request: its own, else a free one, else the longest idle one, else None.

        Also None while a request is paused for want of pages, and where the pages that no request holds do not reach
        for the session with `new` more ids: it would only push out others.
        """
        if session.slot is not None:
            return session.slot
        idle = [slot for slot, request in enumerate(self.running) if request is None]
        if not idle or any(request is not None and request.paused for request in self.running):
            return None
        if len(idle) < self.engine.slots:
            wanted = self.engine.pages_for(min(len(session.ids) + new + self.engine.extend_chunk, self.engine.max_len))
            held = sum(self.engine.held_pages(slot) for slot in range(self.engine.slots) if self.running[slot])
            if wanted > self.engine.page_count - held:
                return None
        return min(idle, key=lambda slot: (self._kept(slot), self._last_used[slot]))

    def attach(self, request: Request, slot: int) -> None:
        """Starts a request in a slot that runs none, moving kept states as needed."""
        if self.engine.suspended:
            self.engine.resume()
        session = request.session
        if session.version != self.engine.version:
            self._forget(session)
        if session.slot != slot:
            self._move_to_host(session)
            if (other := self._owner[slot]) is not None:
                self._move_to_host(other)
            self._owner[slot] = session
            session.slot = slot
            request.parked = self._host.take(session)
            if request.parked is None:
                session.consumed = 0  # lost: it is computed again
        session.version = self.engine.version
        request.work.extend(plan_work(session, request.extensions, self.engine.extend_chunk))
        if session.consumed == 0:
            self.counters["replayed_tokens"] += sum(map(abs, session.pieces))
            session.pieces.clear()
        for extension in request.extensions:
            session.ids.extend(extension)
        stop_from = len(session.ids) + request.sampling.min_tokens
        self.engine.configure(slot, request.sampling, request.key, stop_from=stop_from)
        self.running[slot] = request
        self._tick += 1
        request.seniority = self._tick
        if request.parked is not None:
            request.paused = True
            self._extending.append(slot)
            if not any(other is not None and other.paused for other in self.running if other is not request):
                self._unpause(slot)
        elif self._prefixes is not None and session.consumed == 0:
            leading = itertools.takewhile(lambda chunk: not chunk.sampled, request.work)
            keys = boundaries([chunk.ids for chunk in leading])
            request.beginnings.extend(keys)
            request.keep.update(self._prefixes.worth_keeping(keys))
            self._begin(self._prefixes, request, slot)
        else:
            self._extending.append(slot)

    def waiting_to_extend(self) -> int:
        """How many requests an extend step can take forward."""
        return len(self._begun) + sum(not self._at(slot).paused for slot in self._extending)

    def drop_cancelled(self) -> None:
        """Frees the slots of cancelled requests."""
        for slot, request in enumerate(self.running):
            if request is not None and request.cancelled:
                self._release(slot)

    def extend(self, among: Container[int] | None = None) -> None:
        """One extend step: the next chunk of the R longest waiting requests.

        Args:
          among: of those that are paused, only these slots may go on.
        """
        self._unpause_all(among)
        if self._begun:
            self._sample_begun()
            return
        waiting = [slot for slot in self._extending if not self._at(slot).paused]
        replaying = [slot for slot in waiting if self._at(slot).work[0].sampled]
        if replaying and len(replaying) == len(waiting):
            self._replay(replaying)
            return
        slots = self._with_pages(
            {
                slot: len(self._at(slot).work[0].ids)
                for slot in [slot for slot in waiting if slot not in replaying][: self.engine.extend_rows]
            }
        )
        if not slots:
            return
        rows = []
        for slot in slots:
            self._extending.remove(slot)
            request = self._at(slot)
            chunk = self._next_chunk(request)
            last = not request.work and not request.ids
            rows.append(ExtendRow(slot, chunk.ids, fresh=request.session.consumed == len(chunk.ids), last=last))
        result = self.engine.extend(rows)
        self._extending.extendleft(reversed([slot for slot in slots if self._at(slot).work]))
        if self._prefixes is not None:
            for index, slot in enumerate(slots):
                self._keep_beginning(self._prefixes, slot, result.hidden, index)
        for index, row in enumerate(rows):
            if row.last:
                self.engine.counters["sampled_tokens"] += 1
                self._add(row.slot, result.row(index))

    def decode(self, quota: Sequence[int] | None = None) -> None:
        """One decode step for every request past its extension.

        Args:
          quota: per slot, so many ids are sampled before this returns, unless the request ends first: for a driver
            that takes fewer ids for the end. Steps are repeated as far as it takes.
        """
        if quota is None:
            self._decode({slot: request.budget for slot, request in enumerate(self.running) if request is not None})
            return
        wanted = {
            slot: (request, len(request.ids) + quota[slot])
            for slot, request in enumerate(self.running)
            if request is not None
        }
        while True:
            missing = {
                slot: min(request.budget, until - len(request.ids))
                for slot, (request, until) in wanted.items()
                if self.running[slot] is request and len(request.ids) < until
            }
            if not missing:
                return
            if self.waiting_to_extend():
                self.extend(missing)
            elif not self._decode(missing):
                for slot in range(self.engine.slots):  # who has its ids makes room for those who wait for pages
                    if slot not in missing and self.running[slot] is not None:
                        self._pause(slot)

    def set_weights(self, params: Any, version: int, *, in_flight: bool = False) -> None:
        """Replaces the engine's weights and forgets the states in all slots.

        A session whose state was computed with other weights computes it again from its ids, as one extension, when it
        goes on.

        Args:
          in_flight: requests that are running go on in the same way; otherwise they are an error.

        Raises:
          ServingError: a request is running.
          ValueError: the weights differ in structure or shapes.
        """
        self.drop_cancelled()
        running = [(slot, request) for slot, request in enumerate(self.running) if request is not None]
        if running and not in_flight:
            raise ServingError(f"weights can be replaced between rollouts only: {len(running)} requests are in flight")
        self.engine.set_weights(params, version)
        if self._prefixes is not None:
            self._prefixes.clear()
        self._host.clear()
        self._computing.clear()
        self._begun.clear()
        self._extending.clear()
        for session in self._idle_sessions():
            self._forget(session)
        for slot, request in running:
            self._start_over(slot, request)

    def suspend(self) -> None:
        """Gives the device memory of all states up, for training: they wait in host memory.

        The next request takes it again; requests that run go on, to the bit as if nothing had been, after `resume`.
        """
        self.drop_cancelled()
        for slot, request in enumerate(self.running):
            if request is not None:
                self._pause(slot)
        for session in self._idle_sessions():
            self._move_to_host(session)
        while self._prefixes is not None and self._prefixes.shrink():
            pass
        self.engine.suspend()

    def resume(self) -> None:
        """Takes the memory again after `suspend`."""
        self.engine.resume()

    # Steps ------------------------------------------------------------------------------------------------------------

    def _decode(self, budgets: Mapping[int, int]) -> bool:
        """One decode step of the slots that can; False if none can."""
        self._unpause_all(budgets)
        counts = {}
        for slot, budget in budgets.items():
            request = self.running[slot]
            if request is not None and not request.paused and not request.work and request.ids and budget > 0:
                # A stop string must be seen before the state runs past it.
                counts[slot] = min(budget, 1 if request.sampling.stop_strings else self.engine.decode_steps)
        slots = self._with_pages(counts)
        if not slots:
            return False
        rows = [DecodeRow(slot, self._at(slot).ids[-1], counts[slot]) for slot in slots]
        for row, sampled in zip(rows, self.engine.decode(rows), strict=True):
            self._consumed_sampled(self._at(row.slot).session, len(sampled.ids))
            self._add(row.slot, sampled)
        return True

    def _replay(self, slots: Sequence[int]) -> None:
        """Decode steps that take sampled ids in again, as they were taken in the first time."""
        steps = self.engine.decode_steps
        counts = {slot: min(steps, len(self._at(slot).work[0].ids)) for slot in slots}
        rows = []
        for slot in self._with_pages(counts):
            request, count = self._at(slot), counts[slot]
            chunk = request.work.popleft()
            if len(chunk.ids) > count:
                request.work.appendleft(Chunk(chunk.ids[count:], True, chunk.following[count:]))
            if not request.work:
                self._extending.remove(slot)
            rows.append(DecodeRow(slot, chunk.ids[0], count, chunk.following[:count]))
        for row in rows:
            self._consumed_sampled(self._at(row.slot).session, row.budget)
        if rows:
            self.engine.decode(rows)

    def _sample_begun(self) -> None:
        """The first ids of those who found their whole prompt."""
        rows = [self._begun.popleft() for _ in range(min(len(self._begun), self.engine.extend_rows))]
        asked = [(slot, hidden, self._at(slot).session.consumed) for slot, hidden in rows]
        for (slot, _), sampled in zip(rows, self.engine.first(asked), strict=True):
            self.engine.counters["sampled_tokens"] += 1
            self._add(slot, sampled)

    def _add(self, slot: int, sampled: SampledIds) -> None:
        request = self._at(slot)
        if not sampled.finite:
            self._fail_not_finite(slot)
            return
        request.ids.extend(sampled.ids)
        request.logprobs.extend(sampled.logprobs)
        request.model_logprobs.extend(sampled.model_logprobs)
        request.versions.extend([self.engine.version] * len(sampled.ids))
        stopped = request.ids[-1] in self.engine.stop_ids or request.ids[-1] in request.sampling.stop_ids
        if self.engine.token_bytes is not None and request.said(self.engine.token_bytes):
            stopped = True
        if not stopped and request.budget > 0:
            return
        request.session.ids.extend(request.ids)
        request.session.busy = False
        self.running[slot] = None
        self._tick += 1
        self._last_used[slot] = self._tick
        request.deliver(request.generation(stopped=stopped))

    def _next_chunk(self, request: Request) -> Chunk:
        chunk = request.work.popleft()
        request.session.consumed += len(chunk.ids)
        request.session.pieces.append(len(chunk.ids))
        return chunk

    def _consumed_sampled(self, session: Session, count: int) -> None:
        session.consumed += count
        if session.pieces[-1] < 0:
            session.pieces[-1] -= count
        else:
            session.pieces.append(-count)

    # Common beginnings ------------------------------------------------------------------------------------------------

    def _begin(self, prefixes: PrefixStore, request: Request, slot: int) -> None:
        """Starts a first extension from the longest beginning that is kept; one that is being computed is awaited."""
        request.awaits = None
        found = prefixes.find(request.beginnings)
        if found and self._paste(prefixes, slot, found[1]):
            count, state = found
            for _ in range(count):
                request.beginnings.popleft()
                self.counters["prefix_tokens"] += len(self._next_chunk(request).ids)
            self.counters["prefix_hits"] += 1
            if not request.work:
                self._begun.append((slot, state.hidden))
                return
        request.awaits = next((key for key in reversed(request.beginnings) if key in self._computing), None)
        if request.awaits is None:
            self._computing.update((key, request) for key in request.beginnings if key in request.keep)
            self._extending.append(slot)

    def _paste(self, prefixes: PrefixStore, slot: int, state: Kept | RowState) -> bool:
        """Puts a state that was just found into a slot; others leave the device for it.

        False, and the slot is as it was, if there are too few free pages.
        """
        while not self.engine.has_pages_for(slot, state):
            if len(prefixes) < 2:  # the last one is the state itself: it was used last
                return False
            prefixes.shrink()
        self.engine.clear(slot)
        if isinstance(state, Kept):
            return self.engine.start(slot, state)
        return self.engine.from_host(slot, state)

    def _keep_beginning(self, prefixes: PrefixStore, slot: int, hidden: Any, index: int) -> None:
        """After a chunk: keeps the state if others need it, and lets those go on that wait for it."""
        request = self._at(slot)
        if request.beginnings and self._computing.get(key := request.beginnings.popleft()) is request:
            state = self.engine.keep(slot, request.session.consumed, hidden(index))
            if state is not None:
                prefixes.keep(key, state)
            self._resume_waiting(prefixes, [key])

    def _resume_waiting(self, prefixes: PrefixStore, keys: Sequence[bytes]) -> None:
        """Beginnings are computed, or will not be by who promised: those that wait for them begin anew."""
        for key in keys:
            self._computing.pop(key, None)
        # The oldest first: who computes a beginning must never be younger, and so paused before those who wait for it.
        waiting = [
            (request.seniority, slot, request)
            for slot, request in enumerate(self.running)
            if request is not None and request.awaits in keys
        ]
        for _, slot, request in sorted(waiting, key=lambda entry: entry[0]):
            if request.awaits in keys:
                if request.paused:  # it goes on from its own state when there is room
                    request.awaits = None
                    self._extending.append(slot)
                else:
                    self._begin(prefixes, request, slot)

    # Ends -------------------------------------------------------------------------------------------------------------

    def _start_over(self, slot: int, request: Request) -> None:
        """New weights under way: the state is computed again from all ids, as one extension; sampling goes on."""
        session = request.session
        self.engine.clear(slot)
        session.consumed, session.version = 0, self.engine.version
        session.pieces.clear()
        request.work.clear()
        request.beginnings.clear()
        request.keep.clear()
        request.awaits = request.parked = None
        request.work.extend(plan_work(session, [request.ids[:-1]], self.engine.extend_chunk))
        self._extending.append(slot)

    def _fail_not_finite(self, slot: int) -> None:
        """Ends a request whose numbers are not finite: its keys and values may hold NaN, which masks do not stop."""
        request = self._at(slot)
        if self._prefixes is not None:
            self._prefixes.clear(tainted=True)
        self._host.clear()
        self.engine.clear(slot, tainted=True)
        self._release(slot)
        request.deliver(ServingError("the model's logits are not finite for this request"))

    def _release(self, slot: int) -> None:
        request = self._at(slot)
        session = request.session
        session.busy, session.closed = False, True
        self._forget(session)
        self.running[slot] = None
        if slot in self._extending:
            self._extending.remove(slot)
        self._begun = deque((other, hidden) for other, hidden in self._begun if other != slot)
        if self._prefixes is not None:
            promised = [key for key, by in self._computing.items() if by is request]
            self._resume_waiting(self._prefixes, promised)
