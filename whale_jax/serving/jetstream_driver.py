"""`Driver` on google-jetstream's own orchestrator.

The package's rough edges that show here:

- a failing thread would leave everybody waiting: who waits is released, and the driver no longer counts as live;
- its threads inherit no contexts (`jax.default_matmul_precision`, `jax.enable_x64` and the like hold for the thread
  that set them), and what was compiled under one is not found without it: all that compiles runs on such bare threads;
- its return channels raise in the orchestrator's thread when the caller's event loop is gone: here they drop the
  result;
- a request given up by its caller is computed to its end: here it leaves its slot before the next step;
- on stop it forgets requests without releasing who waits for them, and waits for its threads for ever: they are
  released here, and the wait has a bound.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

from whale_jax.serving.driver import DriverStopped, Generation, Sampling, ServingError, Session
from whale_jax.serving.engine import Engine
from whale_jax.serving.inflight import InFlight, Outcome
from whale_jax.serving.jetstream import JetStreamEngine
from whale_jax.serving.jetstream_package import async_multifuture, log, orchestrator, tokenizer_api
from whale_jax.serving.slots import Request

STOP_SECONDS = 60.0
"""How long `stop` waits for a step to end before it leaves the threads behind."""


class _Channel(async_multifuture.AsyncMultifuture[list[Any]]):
    """A return channel that drops what comes after its event loop has ended."""

    def add_result(self, result: list[Any]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            super().add_result(result)

    def set_exception(self, exception: Exception) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            super().set_exception(exception)


class Orchestrator(orchestrator.Driver):
    """The package's driver on one engine; requests of rollouts pass through it as they are."""

    def __init__(self, engine: JetStreamEngine, failed: Callable[[str, Exception], None]) -> None:
        self._failed = failed
        super().__init__(
            prefill_engines=[engine],
            generate_engines=[engine],
            prefill_params=[engine.load_params()],
            generate_params=[engine.load_params()],
            interleaved_mode=True,
            jax_padding=False,
        )

    def _process_prefill_content(
        self, request: Any, tokenizer: tokenizer_api.Tokenizer, is_bos: bool, max_prefill_length: int
    ) -> tuple[Any, int]:
        if isinstance(request.prefill_content, Request):
            return request.prefill_content, 0
        return super()._process_prefill_content(request, tokenizer, is_bos, max_prefill_length)

    def thread_failed(self, name: str, error: Exception) -> None:
        """Releases who waits: without this thread nothing is answered any more."""
        if self.live:
            log.error("thread %s failed", name, exc_info=error)
        self.live = False
        self._failed(f"google-jetstream's thread {name} failed: {type(error).__name__}: {error}", error)


class Reply:
    """One request on its way: iterate for its ids as they are sampled; `generation` is the whole when they ended.

    Iterating raises the request's `ServingError` where it failed.
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        self.channel = _Channel()
        self._outcome: Outcome | None = None

    def settle(self, outcome: Outcome) -> None:
        """The engine's answer, from any thread."""
        self._outcome = outcome
        if isinstance(outcome, ServingError):
            self.channel.set_exception(outcome)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[int]:
        samples = await anext(self.channel)
        return samples[0].token_ids

    def generation(self) -> Generation:
        """The outcome, once the ids have ended."""
        if self._outcome is None:
            raise RuntimeError("the reply has not ended: iterate over its ids first")
        if isinstance(self._outcome, ServingError):
            raise self._outcome
        return self._outcome


class JetStreamDriver:
    """`Driver` whose requests are scheduled by google-jetstream's orchestrator."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._adapter = JetStreamEngine(engine)
        self._in_flight = InFlight("JetStream driver")
        self._orchestrator: Orchestrator | None = None
        self._replies: weakref.WeakSet[Reply] = weakref.WeakSet()

    @property
    def live(self) -> bool:
        """Whether requests are accepted."""
        return self._orchestrator is not None and self._orchestrator.live

    @property
    def in_flight(self) -> int:
        """Requests accepted and not answered."""
        return len(self._in_flight)

    def start(self) -> None:
        if self._orchestrator is None:
            _on_a_bare_thread(self._engine.warm_up)
            self._orchestrator = Orchestrator(self._adapter, self._fail)
            self._in_flight.start()

    def stop(self) -> None:
        """Releases who waits at once, then ends the threads.

        Raises:
          ServingError: a thread is stuck in a step; it is left behind, and this driver cannot be started again.
        """
        if self._orchestrator is None:
            return
        self._fail("the JetStream driver was stopped")
        # The package's own `stop` waits for ever.
        stopping = threading.Thread(target=self._orchestrator.stop, name="jetstream-stop", daemon=True)
        stopping.start()
        stopping.join(STOP_SECONDS)
        if stopping.is_alive():
            raise ServingError(f"google-jetstream's threads are stuck: a step takes more than {STOP_SECONDS} s")
        self._orchestrator = None

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
        reply = self.submit(session, new_ids, max_tokens=max_tokens, sampling=sampling, key=key)
        ids: list[int] = []
        try:
            async for piece in reply:
                ids.extend(piece)
        except asyncio.CancelledError:
            self.cancel(reply)
            raise
        generation = reply.generation()
        if tuple(ids) != generation.ids:
            raise ServingError(f"google-jetstream returned {len(ids)} ids where the engine sampled {generation.ids}")
        return generation

    def submit(
        self, session: Session, new_ids: Sequence[int], *, max_tokens: int, sampling: Sampling, key: tuple[int, int]
    ) -> Reply:
        """Hands a request to the orchestrator; the arguments and errors of `Driver.generate`.

        To be called from the event loop that is to iterate over the reply. A reply that is given up must be cancelled.
        """
        extensions = [tuple(new_ids)]
        max_tokens = self._adapter.table.check(session, extensions, max_tokens, sampling)

        def deliver(outcome: Outcome) -> None:
            self._in_flight.discard(reply.request)
            reply.settle(outcome)

        reply = Reply(Request(session, extensions, max_tokens, sampling, key, deliver))
        self._in_flight.add(reply.request, lambda request: self._place(request, reply))
        return reply

    def cancel(self, reply: Reply) -> None:
        """Frees the slot of a reply before the next step, if it has not ended, and closes its session."""
        self._in_flight.cancel(reply.request)

    def close(self, session: Session) -> None:
        self._in_flight.close(session)

    def set_weights(self, params: Any, version: int) -> None:
        self._between("weights can be replaced", lambda: self._adapter.table.set_weights(params, version))

    def suspend(self) -> None:
        self._between("memory can be given up", self._adapter.table.suspend)

    def _between(self, what: str, action: Callable[[], None]) -> None:
        def run() -> None:
            # The lock of the engine comes first, as in a step that answers a request.
            with self._adapter.lock, self._adapter.compilations.watch():
                self._in_flight.do(action)

        if count := len(self._in_flight):
            raise ServingError(f"{what} between rollouts only: {count} requests are in flight")
        _on_a_bare_thread(run)

    def stats(self) -> dict[str, int]:
        counters = self._adapter.table.stats()
        running = sum(request is not None for request in self._adapter.table.running)
        return {
            **counters,
            "requests_in_flight": len(self._in_flight),
            "requests_waiting": max(len(self._in_flight) - running, 0),
            "compilations_after_warm_up": self._adapter.compilations.count,
        }

    def _fail(self, reason: str, cause: Exception | None = None) -> None:
        """Releases who waits: for the engine, or for ids that it has sampled and the package will not hand on."""
        self._in_flight.fail(reason, cause)  # from here on no reply is added
        for reply in list(self._replies):
            reply.channel.set_exception(DriverStopped(reason))

    def _place(self, request: Request, reply: Reply) -> None:
        assert self._orchestrator is not None, "requests are accepted between start and stop only"
        self._replies.add(reply)
        self._orchestrator.place_request_on_prefill_queue(
            orchestrator.ActiveRequest(
                max_tokens=self._engine.max_len,  # never passed: the request's own bound ends it first
                history_path="session",  # keeps the package from putting a begin id in front
                prefill_content=request,  # type: ignore[arg-type]  # taken by Orchestrator as it is
                return_channel=reply.channel,
                is_client_side_tokenization=True,
            )
        )


def _on_a_bare_thread(action: Callable[[], None]) -> None:
    """Runs an action where no context of the caller holds; raises what it raises."""
    with ThreadPoolExecutor(1, thread_name_prefix="jetstream-bare") as pool:
        pool.submit(action).result()
