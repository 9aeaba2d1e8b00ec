"""Who is waiting for a driver: so that nobody waits for ever."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable

from whale_jax.serving.driver import DriverStopped, Generation, ServingError, Session
from whale_jax.serving.slots import Request

Outcome = Generation | ServingError


class InFlight:
    """The requests that were accepted and not answered yet, shared by callers and the driver's threads."""

    def __init__(self, name: str) -> None:
        self._lock = threading.Lock()
        self._requests: set[Request] = set()
        self._reason: str | None = f"the {name} is not started"
        self._cause: Exception | None = None

    def __len__(self) -> int:
        with self._lock:
            return len(self._requests)

    def start(self) -> None:
        """Accepts requests from now on."""
        with self._lock:
            self._reason = self._cause = None

    def do(self, action: Callable[[], None]) -> None:
        """Runs a short action unless the driver has failed; a failure that comes later sees its effect.

        Raises:
          DriverStopped: the driver has failed or is not started.
        """
        with self._lock:
            if self._reason is not None:
                raise DriverStopped(self._reason) from self._cause
            action()

    def add(self, request: Request, submit: Callable[[Request], None]) -> None:
        """Registers a request and hands it to the driver's thread.

        Raises:
          DriverStopped: the driver has failed or is not started.
        """

        def accept() -> None:
            request.session.busy = True
            self._requests.add(request)
            submit(request)

        self.do(accept)

    def discard(self, request: Request) -> None:
        """The request was answered."""
        with self._lock:
            self._requests.discard(request)

    def cancel(self, request: Request) -> None:
        """Its slot is freed at the next step, and its session can take no other request."""
        request.session.closed = True
        request.cancelled = True
        self.discard(request)

    def close(self, session: Session) -> None:
        """Cancels what is in flight on a session and releases who waits for it."""
        session.closed = True
        with self._lock:
            mine = [request for request in self._requests if request.session is session]
        for request in mine:
            self.cancel(request)
            request.deliver(ServingError("the session was closed while a request was in flight"))

    def fail(self, reason: str, cause: Exception | None = None) -> None:
        """Accepts no more requests and releases all who wait with `DriverStopped`. The first reason stays."""
        with self._lock:
            if self._reason is None:
                self._reason, self._cause = reason, cause
            left, self._requests = list(self._requests), set()
        for request in left:
            request.session.busy, request.session.closed = False, True
            request.cancelled = True
            stopped = DriverStopped(reason)
            stopped.__cause__ = cause
            request.deliver(stopped)


def resolve(loop: asyncio.AbstractEventLoop, future: asyncio.Future[Generation], outcome: Outcome) -> None:
    """Resolves an asyncio future from any thread. Where the loop has ended, nobody waits any more."""

    def settle() -> None:
        if future.done():
            return
        if isinstance(outcome, ServingError):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(settle)
