"""Requests in slots: what both drivers share.

A `SlotTable` turns requests on sessions into extend and decode steps of the engine. How an extension is cut into chunks
depends on the extension alone, so results do not depend on what else the table holds. It is not thread-safe: the one
thread that owns the engine calls it, except `check`, which reads constants.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from whale_jax.serving.driver import ContextOverflow, Generation, Sampling, ServingError, Session
from whale_jax.serving.engine import DecodeRow, Engine, ExtendRow, SampledIds
from whale_jax.serving.prefixes import PrefixStore, boundaries


@dataclass(eq=False)
class Request:
    """One call of `generate` on its way through a slot.

    Attributes:
      session: to be extended.
      extensions: new ids, cut at the points where they were added.
      max_tokens: bound on sampled ids.
      sampling: settings.
      key: of the sampled ids; each id folds in its absolute position.
      deliver: called once, on the engine's thread, with the outcome.
      cancelled: set by any thread; the request leaves its slot before the next step and nothing is delivered.
      chunks: pieces of the extension not computed yet.
      beginnings: of a first extension, the keys of its chunk boundaries that are not computed yet.
      keep: those of them whose states go into the prefix store.
      awaits: one of them that another request is computing; this one goes on when that is done.
      ids, logprobs, model_logprobs: sampled so far.
    """

    session: Session
    extensions: Sequence[Sequence[int]]
    max_tokens: int
    sampling: Sampling
    key: tuple[int, int]
    deliver: Callable[[Generation | ServingError], None]
    cancelled: bool = False
    chunks: deque[list[int]] = field(default_factory=deque)
    beginnings: deque[bytes] = field(default_factory=deque)
    keep: set[bytes] = field(default_factory=set)
    awaits: bytes | None = None
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    model_logprobs: list[float] = field(default_factory=list)

    @property
    def budget(self) -> int:
        return self.max_tokens - len(self.ids)


class SlotTable:
    """Who is in which slot, and the steps that take everybody forward."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.running: list[Request | None] = [None] * engine.slots
        self.counters = {"moves_to_host": 0, "moves_to_device": 0, "prefix_hits": 0, "prefix_tokens": 0}
        self._owner: list[Session | None] = [None] * engine.slots
        self._last_used = [0] * engine.slots
        self._tick = 0
        self._extending: deque[int] = deque()
        self._prefixes = PrefixStore(engine.prefix_bytes) if engine.slot_bytes <= engine.prefix_bytes else None
        self._computing: dict[bytes, Request] = {}

    def stats(self) -> dict[str, int]:
        """Counters since the start."""
        return {**self.engine.counters, **self.counters}

    def check(self, session: Session, extensions: Sequence[Sequence[int]], max_tokens: int, sampling: Sampling) -> int:
        """Validates a request against the engine and its session.

        Returns:
          `max_tokens`, or less where the session's ids reach `max_len` first.

        Raises:
          ServingError, ContextOverflow, ValueError: as documented for `Driver.generate`.
        """
        if session.closed:
            raise ServingError("the session is closed, or an earlier request on it failed: open another one")
        if session.busy:
            raise ServingError("a request is in flight on this session: await it first")
        if max_tokens < 1:
            raise ValueError(f"max_tokens must be >= 1, got {max_tokens}")
        if sampling.top_k > self.engine.max_top_k:
            raise ValueError(f"top_k {sampling.top_k} exceeds the engine's max_top_k {self.engine.max_top_k}")
        new = [token for extension in extensions for token in extension]
        if not session.ids and not new:
            raise ValueError("the first request of a session needs at least one id")
        if bad := [token for token in new if not 0 <= token < self.engine.vocab_size]:
            raise ValueError(f"ids outside the vocabulary of {self.engine.vocab_size}: {bad[:5]}")
        room = self.engine.max_len - len(session.ids) - len(new)
        if room < 1:
            raise ContextOverflow(
                f"{len(session.ids)} ids in the session and {len(new)} new ones leave no room to sample: "
                f"max_len is {self.engine.max_len}"
            )
        return min(max_tokens, room)

    def choose(self, session: Session) -> int | None:
        """The slot for the session's next request: its own, else a free one, else the longest idle one, else None."""
        if session.slot is not None:
            return session.slot
        idle = [slot for slot, request in enumerate(self.running) if request is None]
        return min(idle, key=lambda slot: (self._kept(slot), self._last_used[slot]), default=None)

    def attach(self, request: Request, slot: int) -> None:
        """Starts a request in a slot that runs none, moving kept states as needed."""
        session = request.session
        if session.version != self.engine.version:
            self._forget(session)
        if session.slot != slot:
            self._move_to_host(session)
            if self._kept(slot) and (other := self._owner[slot]) is not None:
                self._move_to_host(other)
            self._owner[slot] = session
            session.slot = slot
            if session.state is not None:
                self.engine.write_slot(slot, session.state)
                session.state = None
                self.counters["moves_to_device"] += 1
        session.version = self.engine.version
        extensions = [list(extension) for extension in request.extensions]
        # What the state has not seen, such as the id sampled last, belongs to the first extension.
        extensions[0] = session.ids[session.consumed :] + extensions[0]
        for extension in request.extensions:
            session.ids.extend(extension)
        size = self.engine.extend_chunk
        request.chunks.extend(
            extension[start : start + size] for extension in extensions for start in range(0, len(extension), size)
        )
        self.engine.configure(slot, request.sampling, request.key)
        self.running[slot] = request
        if self._prefixes is not None and session.consumed == 0:
            keys = boundaries(request.chunks)
            request.beginnings.extend(keys)
            request.keep.update(self._prefixes.worth_keeping(keys))
            self._begin(self._prefixes, request, slot)
        else:
            self._extending.append(slot)

    def waiting_to_extend(self) -> int:
        """How many running requests have chunks left."""
        return len(self._extending)

    def drop_cancelled(self) -> None:
        """Frees the slots of cancelled requests."""
        for slot, request in enumerate(self.running):
            if request is not None and request.cancelled:
                self._release(slot)

    def extend(self) -> None:
        """One extend step: the next chunk of the R longest waiting requests."""
        slots = [self._extending.popleft() for _ in range(min(len(self._extending), self.engine.extend_rows))]
        rows, last = [], []
        for slot in slots:
            request = self._at(slot)
            chunk = self._next_chunk(request)
            rows.append(ExtendRow(slot, chunk, fresh=request.session.consumed == len(chunk)))
            last.append(not request.chunks)
        result = self.engine.extend(rows)
        self._extending.extendleft(reversed([slot for slot, done in zip(slots, last, strict=True) if not done]))
        if self._prefixes is not None:
            for slot in slots:
                self._keep_beginning(self._prefixes, slot)
        for index, slot in enumerate(slots):
            if last[index]:
                self.engine.counters["sampled_tokens"] += 1
                self._add(slot, result.row(index))

    def decode(self, quota: Sequence[int] | None = None) -> None:
        """One decode step for every request past its extension.

        Args:
          quota: per slot, a bound on the ids sampled in this step, where a driver needs one.
        """
        rows = []
        for slot, request in enumerate(self.running):
            if request is None or request.chunks:  # what waits for another's beginning has chunks too
                continue
            budget = request.budget if quota is None else min(request.budget, quota[slot])
            if budget > 0:
                rows.append(DecodeRow(slot, request.ids[-1], budget))
        if not rows:
            return
        for row, sampled in zip(rows, self.engine.decode(rows), strict=True):
            self._at(row.slot).session.consumed += len(sampled.ids)
            self._add(row.slot, sampled)

    def set_weights(self, params: Any, version: int) -> None:
        """Replaces the engine's weights and forgets the states in all slots.

        A session whose state was computed with other weights computes it again from its ids, as one extension, when it
        goes on.

        Raises:
          ServingError: a request is running.
          ValueError: the weights differ in structure, shapes or dtypes.
        """
        self.drop_cancelled()
        if count := sum(request is not None for request in self.running):
            raise ServingError(f"weights can be replaced between rollouts only: {count} requests are in flight")
        self.engine.set_weights(params, version)
        if self._prefixes is not None:
            self._prefixes.clear()
        for session in self._owner:
            if session is not None:
                self._forget(session)

    def _next_chunk(self, request: Request) -> list[int]:
        chunk = request.chunks.popleft()
        request.session.consumed += len(chunk)
        return chunk

    def _begin(self, prefixes: PrefixStore, request: Request, slot: int) -> None:
        """Starts a first extension from the longest beginning that is kept; one that is being computed is awaited."""
        if found := prefixes.find(request.beginnings):
            count, state = found
            self.engine.paste_slot(slot, state)
            for _ in range(count):
                request.beginnings.popleft()
                self.counters["prefix_tokens"] += len(self._next_chunk(request))
            self.counters["prefix_hits"] += 1
        request.awaits = next((key for key in reversed(request.beginnings) if key in self._computing), None)
        if request.awaits is None:
            self._computing.update((key, request) for key in request.beginnings if key in request.keep)
            self._extending.append(slot)

    def _keep_beginning(self, prefixes: PrefixStore, slot: int) -> None:
        """After a chunk: keeps the state if others need it, and lets those go on that wait for it."""
        request = self._at(slot)
        if request.beginnings and self._computing.get(key := request.beginnings.popleft()) is request:
            prefixes.keep(key, self.engine.copy_slot(slot))
            self._resume(prefixes, [key])

    def _resume(self, prefixes: PrefixStore, keys: Sequence[bytes]) -> None:
        """Beginnings are computed, or will not be by who promised: those that wait for them begin anew."""
        for key in keys:
            del self._computing[key]
        for slot, request in enumerate(self.running):
            if request is not None and request.awaits in keys:
                self._begin(prefixes, request, slot)

    def _add(self, slot: int, sampled: SampledIds) -> None:
        request = self._at(slot)
        if not sampled.finite:
            # The keys and values of this slot may hold NaN, which masks do not stop.
            self.engine.reset_slot(slot)
            self._fail(slot, ServingError("the model's logits are not finite for this request"))
            return
        request.ids.extend(sampled.ids)
        request.logprobs.extend(sampled.logprobs)
        request.model_logprobs.extend(sampled.model_logprobs)
        stopped = request.ids[-1] in self.engine.stop_ids
        if not stopped and request.budget > 0:
            return
        request.session.ids.extend(request.ids)
        request.session.busy = False
        self.running[slot] = None
        self._tick += 1
        self._last_used[slot] = self._tick
        request.deliver(
            Generation(
                tuple(request.ids),
                tuple(request.logprobs),
                tuple(request.model_logprobs),
                "stop" if stopped else "length",
                self.engine.version,
            )
        )

    def _fail(self, slot: int, error: ServingError) -> None:
        request = self._at(slot)
        self._release(slot)
        request.deliver(error)

    def _release(self, slot: int) -> None:
        request = self._at(slot)
        session = request.session
        session.busy, session.closed = False, True
        self._forget(session)
        self.running[slot] = None
        if slot in self._extending:
            self._extending.remove(slot)
        if self._prefixes is not None:
            self._resume(self._prefixes, [key for key, by in self._computing.items() if by is request])

    def _forget(self, session: Session) -> None:
        if session.slot is not None:
            self._owner[session.slot] = None
        session.slot = session.state = None
        session.consumed = 0

    def _move_to_host(self, session: Session) -> None:
        if session.slot is None:
            return
        session.state = self.engine.read_slot(session.slot)
        self._owner[session.slot] = None
        session.slot = None
        self.counters["moves_to_host"] += 1

    def _kept(self, slot: int) -> bool:
        """Whether the slot holds the state of a session that may go on."""
        owner = self._owner[slot]
        return owner is not None and not owner.closed

    def _at(self, slot: int) -> Request:
        request = self.running[slot]
        assert request is not None, f"slot {slot} runs no request"
        return request
