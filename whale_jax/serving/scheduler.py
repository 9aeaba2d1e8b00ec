"""The rollout scheduler: continuous batching over the engine's slots, on a thread of its own.

The thread makes every JAX call of serving. Callers live in an asyncio loop; they post requests to the thread's inbox
and get their results back through their loop.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Self

from whale_jax.serving.admission import attach
from whale_jax.serving.compilations import CompilationMeter
from whale_jax.serving.driver import DriverStopped, Generation, Sampling, ServingError, Session
from whale_jax.serving.engine import Engine
from whale_jax.serving.inflight import InFlight, Outcome, resolve
from whale_jax.serving.slots import Request, SlotTable

_log = logging.getLogger(__name__)

FULL_EXTENDS = 8
"""Extend steps that fill a lot and may run between two decode steps. Without a bound, long prompts in as many slots as
a lot has rows would hold up everybody else to their end."""

STOP_SECONDS = 60.0
"""How long `stop` waits for a step to end before it leaves the thread behind."""


@dataclass(frozen=True)
class _Between:
    """Something to do while no request is in flight; `what` names it for who is refused."""

    what: str
    action: Callable[[], None]
    done: Future[None]


@dataclass(frozen=True)
class _Stop:
    pass


class RolloutScheduler:
    """`Driver` with first come, first served admission.

    Extends go before decodes while they fill a lot, since a lot of a decode step costs the same however many of its
    rows are active, but for `FULL_EXTENDS` steps at most; one that does not is run at most once between two decodes.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._table = SlotTable(engine)
        self._inbox: queue.SimpleQueue[Request | _Between | _Stop] = queue.SimpleQueue()
        self._waiting: deque[Request] = deque()
        self._in_flight = InFlight("rollout scheduler")
        self._compilations = CompilationMeter()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._thread is not None:
            return
        started: Future[None] = Future()
        # What reached a thread that had ended, its stop among it, is not for this one.
        self._inbox = queue.SimpleQueue()
        thread = threading.Thread(target=self._run, args=(started,), name="rollout-scheduler", daemon=True)
        thread.start()
        started.result()
        self._thread = thread

    def stop(self) -> None:
        """Releases who waits at once, then ends the thread.

        Raises:
          ServingError: the thread is stuck in a step; it is left behind, and this driver cannot be started again.
        """
        if self._thread is None:
            return
        self._in_flight.fail("the rollout scheduler was stopped")
        self._inbox.put(_Stop())
        self._thread.join(STOP_SECONDS)
        if self._thread.is_alive():
            raise ServingError(f"the rollout scheduler's thread is stuck: its step takes more than {STOP_SECONDS} s")
        self._thread = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def open(self) -> Session:
        return Session()

    async def generate(
        self, session: Session, new_ids: Sequence[int], *, max_tokens: int, sampling: Sampling, key: tuple[int, int]
    ) -> Generation:
        extensions = [tuple(new_ids)]
        max_tokens = self._table.check(session, extensions, max_tokens, sampling)
        loop = asyncio.get_running_loop()
        result: asyncio.Future[Generation] = loop.create_future()

        def deliver(outcome: Outcome) -> None:
            self._in_flight.discard(request)
            resolve(loop, result, outcome)

        request = Request(session, extensions, max_tokens, sampling, key, deliver)
        self._in_flight.add(request, self._inbox.put)
        try:
            return await result
        except asyncio.CancelledError:
            self._in_flight.cancel(request)
            raise

    def close(self, session: Session) -> None:
        self._in_flight.close(session)

    def set_weights(self, params: Any, version: int) -> None:
        self._between("weights can be replaced", lambda: self._table.set_weights(params, version))

    def suspend(self) -> None:
        self._between("memory can be given up", self._table.suspend)

    def _between(self, what: str, action: Callable[[], None]) -> None:
        item = _Between(what, action, Future())
        self._in_flight.do(lambda: self._inbox.put(item))
        item.done.result()

    def stats(self) -> dict[str, int]:
        return {
            **self._table.stats(),
            "requests_in_flight": len(self._in_flight),
            "requests_waiting": len(self._waiting) + self._inbox.qsize(),
            "compilations_after_warm_up": self._compilations.count,
        }

    def _run(self, started: Future[None]) -> None:
        try:
            self._engine.warm_up()
            self._in_flight.start()
        except BaseException as error:  # start() raises it in the caller's thread
            started.set_exception(error)
            return
        started.set_result(None)
        try:
            with self._compilations.watch():
                self._serve()
        except Exception as error:
            _log.exception("the rollout scheduler failed")
            self._in_flight.fail(f"the rollout scheduler failed: {type(error).__name__}: {error}", error)
        else:
            self._in_flight.fail("the rollout scheduler was stopped")
        self._waiting.clear()
        self._refuse_late()

    def _serve(self) -> None:
        table, engine = self._table, self._engine
        while self._receive():
            self._admit()
            full = 0
            while table.waiting_to_extend() >= engine.extend_lot and full < FULL_EXTENDS:
                table.extend()
                full += 1
                self._admit()
            if table.waiting_to_extend() and full < FULL_EXTENDS:
                table.extend()
            table.decode()

    def _receive(self) -> bool:
        """Takes what is in the inbox, waiting for something if there is nothing to do; False means stop."""
        while True:
            try:
                item = self._inbox.get(block=not self._waiting and not any(self._table.running))
            except queue.Empty:
                return True
            if isinstance(item, Request):
                self._waiting.append(item)
            elif isinstance(item, _Between):
                self._do_between(item)
            else:
                return False

    def _admit(self) -> None:
        self._table.drop_cancelled()
        while self._waiting:
            request = self._waiting[0]
            if not request.cancelled:
                slot = self._table.choose(request.session, sum(map(len, request.extensions)))
                if slot is None:
                    return
                attach(self._table, request, slot)
            self._waiting.popleft()

    def _do_between(self, item: _Between) -> None:
        try:
            known = [*self._waiting, *(request for request in self._table.running if request is not None)]
            if count := sum(not request.cancelled for request in known):
                raise ServingError(f"{item.what} between rollouts only: {count} requests are in flight")
            item.action()
        except (ServingError, ValueError) as error:
            item.done.set_exception(error)
        else:
            item.done.set_result(None)

    def _refuse_late(self) -> None:
        """Answers who came too late to be served; after `InFlight.fail` nothing is added to the inbox."""
        while not self._inbox.empty():
            item = self._inbox.get()
            if isinstance(item, _Between):
                item.done.set_exception(DriverStopped("the rollout scheduler ended before it came to this"))
