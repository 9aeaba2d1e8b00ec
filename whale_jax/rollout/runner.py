"""Runs episodes: many at once, each exactly once in the result, whatever goes wrong around them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial

from harness_search.contract import Budgets, EndReason, HarnessError, TaskView
from harness_search.sandbox.backends import Backend
from harness_search.sandbox.worker import EpisodeOutcome, HarnessWorker, Limits
from whale_jax.domains.domain import Domain, DomainEnv, JudgedEnv, VerifierProtocol
from whale_jax.domains.task import Task
from whale_jax.domains.verdict import Verdict
from whale_jax.rollout.episode import Codec, Episode
from whale_jax.rollout.keys import harness_seed, sampling_key
from whale_jax.rollout.trace import Effort, Trace
from whale_jax.rollout.workers import Lease, StartWorker, WorkerPool, settle
from whale_jax.serving.driver import Driver, Sampling

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EpisodeRequest:
    """One episode: a task, the ordinal of the sample in its group, and what it is for (all of it part of the keys)."""

    task: Task
    sample: int
    purpose: str
    cycle: int
    step: int


@dataclass(frozen=True)
class RolloutLimits:
    """Bounds of the host's own.

    Attributes:
        window: ids that one chat may hold; the engine's `max_len`.
        attempts: tries of what infrastructure breaks: an episode, a verification, the start of a sandbox.
        grace_seconds: added to an episode's wall clock before the host gives it up; then again for its teardown.
        idle_workers: warm workers of harnesses that are not in use.
        sandbox: bounds of the harness's processes.
    """

    window: int
    attempts: int = 3
    grace_seconds: float = 10.0
    idle_workers: int = 4
    sandbox: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        for name in ("window", "attempts", "grace_seconds"):
            if getattr(self, name) <= 0:
                raise ValueError(f"RolloutLimits.{name} must be > 0, got {getattr(self, name)}")


class RolloutRunner:
    """Turns requests into traces: the one rollout path of training, search and evaluation.

    An episode that its harness breaks is scored 0, also where the file no longer loads. One that infrastructure breaks
    (an engine too slow for the clock included) is tried again with the same keys, at most `limits.attempts` times, and
    is then unscored. Neither touches its neighbours.
    """

    def __init__(
        self,
        driver: Driver,
        codec: Codec,
        domain: Domain,
        backend: Backend,
        *,
        run_seed: int,
        sampling: Sampling,
        thinking: bool,
        concurrency: int,
        limits: RolloutLimits,
        protocol: VerifierProtocol = "honest",
        start_worker: StartWorker | None = None,
    ) -> None:
        """Args:
        backend: the sandbox.
        concurrency: episodes in flight, over all calls of `run`; as many threads verify, so that answers need not
            queue for a judge.
        protocol: which column of DESIGN section 12 the verifier follows. `honest`: a reply whose thinking never closed
            has no answer; `paper`: its raw text is searched.
        start_worker: what starts the worker of a harness source, in place of `HarnessWorker.start` on `backend`.
        """
        if concurrency < 1:
            raise ValueError(f"concurrency must be >= 1, got {concurrency}")
        self._driver = driver
        self._codec = codec
        self._domain = domain
        self._run_seed = run_seed
        self._sampling = sampling
        self._thinking = thinking
        self._concurrency = concurrency
        self._limits = limits
        self._protocol: VerifierProtocol = protocol
        self._free = asyncio.Semaphore(concurrency)
        self._verifiers = ThreadPoolExecutor(concurrency, thread_name_prefix="verifier")
        start = start_worker or partial(HarnessWorker.start, backend=backend, limits=limits.sandbox)
        self._workers = WorkerPool(
            start, idle=limits.idle_workers, attempts=limits.attempts, grace_seconds=limits.grace_seconds
        )

    async def run(
        self, harness_source: str, requests: Sequence[EpisodeRequest], *, budgets: Budgets | None = None
    ) -> AsyncGenerator[Trace, None]:
        """The traces of `requests`, as they finish; exactly one each. Leaving early cancels what is in flight.

        Args:
            budgets: in place of the domain's.

        Raises:
            SandboxUnavailable: its sandbox does not come up.
        """
        async with aclosing(self._run(harness_source, requests, budgets)) as finished:
            async for _, trace in finished:
                yield trace

    async def run_all(
        self, harness_source: str, requests: Sequence[EpisodeRequest], *, budgets: Budgets | None = None
    ) -> list[Trace]:
        """The traces of `requests`, in their order. Raises as `run` does."""
        async with aclosing(self._run(harness_source, requests, budgets)) as finished:
            numbered = [item async for item in finished]
        return [trace for _, trace in sorted(numbered, key=lambda item: item[0])]

    def idle_since(self, mark: str) -> dict[str, float]:
        """For how long hosts had nothing to do beside others, since the last call with this mark: one host has none."""
        return {}

    async def close(self) -> None:
        """Ends the warm workers and the verifiers' threads."""
        self._verifiers.shutdown(wait=False, cancel_futures=True)
        await self._workers.close()

    async def _run(
        self, source: str, requests: Sequence[EpisodeRequest], budgets: Budgets | None
    ) -> AsyncGenerator[tuple[int, Trace], None]:
        budgets = budgets or self._domain.budgets
        waiting = iter(enumerate(requests))
        finished: asyncio.Queue[tuple[int, Trace] | BaseException] = asyncio.Queue()

        async def work(lease: Lease) -> None:
            try:
                for number, request in waiting:
                    async with self._free:
                        finished.put_nowait((number, await self._episode(lease, request, budgets)))
            except Exception as error:
                finished.put_nowait(error)

        async with self._workers.lease(source) as lease:
            tasks = [asyncio.create_task(work(lease)) for _ in range(min(self._concurrency, len(requests)))]
            try:
                for _ in requests:
                    item = await finished.get()
                    if isinstance(item, BaseException):
                        raise item
                    yield item
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _episode(self, lease: Lease, request: EpisodeRequest, budgets: Budgets) -> Trace:
        """One request's trace, after as many attempts as infrastructure makes necessary."""
        started = time.monotonic()
        attempt = 0
        while True:
            attempt += 1
            trace = await self._attempt(lease, request, budgets, attempt)
            if trace.end is not EndReason.INFRASTRUCTURE or attempt >= self._limits.attempts:
                effort = Effort(attempt, time.monotonic() - started, trace.effort.harness_seconds)
                return replace(trace, effort=effort)

    async def _attempt(self, lease: Lease, request: EpisodeRequest, budgets: Budgets, attempt: int) -> Trace:
        """One attempt from start to teardown, under a hard deadline. What comes late is nobody's any more."""
        task, seed = request.task, self._run_seed
        place = (request.purpose, request.cycle, request.step, task.id, request.sample)
        env = self._domain.env(task)
        episode = Episode(
            self._driver,
            self._codec,
            env,
            budgets=budgets,
            sampling=self._sampling,
            thinking=self._thinking,
            window=self._limits.window,
            key=partial(sampling_key, seed, *place),
        )

        async def live() -> Trace:
            try:
                worker = await self._workers.worker(lease)
            except HarnessError as fault:
                broken = EpisodeOutcome(EndReason.HARNESS_ERROR, None, str(fault), 0.0)
                return await self._judged(request, env, episode, broken)
            name = f"{'/'.join(map(str, place))}/{attempt}"
            started = time.monotonic()
            try:
                outcome = await worker.run_episode(
                    episode_id=name,
                    task=TaskView(task.id, task.inputs),
                    budgets=budgets,
                    seed=harness_seed(seed, *place),
                    host=episode,
                )
            except Exception as fault:  # the host's own: this episode is lost, its neighbours go on, the log says more
                _log.exception("episode %s: a fault of the host", name)
                outcome = EpisodeOutcome(EndReason.INFRASTRUCTURE, None, f"{type(fault).__name__}: {fault}", 0.0)
            waited = time.monotonic() - started - outcome.harness_seconds
            return await self._judged(request, env, episode, _blamed(outcome, waited, budgets.wall_seconds))

        life = asyncio.create_task(live())
        try:
            deadline = budgets.wall_seconds + self._limits.grace_seconds
            done, _ = await asyncio.wait({life}, timeout=deadline)
            if done:
                return life.result()
            error = f"the episode had not come to an end after {deadline:g} s"
            return _trace(request, episode, EndReason.INFRASTRUCTURE, _unscored(error), error=error)
        finally:
            episode.close()
            if not life.done():
                life.cancel()
                await settle(life, self._limits.grace_seconds)

    async def _judged(
        self, request: EpisodeRequest, env: DomainEnv, episode: Episode, outcome: EpisodeOutcome
    ) -> Trace:
        """The trace of an episode that has come to its end."""
        end, error = outcome.end, outcome.error
        returned = episode.returned(outcome.reply) if end is None else None
        if end is None and returned is None:
            end, error = EndReason.INVALID_RETURN, "run must return the last reply of one of its chats"
        if returned is None:
            assert end is not None
            missing = end is EndReason.INFRASTRUCTURE
            verdict = _unscored(error or end.value) if missing else Verdict(0, None, end.value)
            return _trace(request, episode, end, verdict, error=error, harness_seconds=outcome.harness_seconds)
        verdict = await self._verify(request.task, env, self._text_to_verify(episode, returned))
        if episode.exhausted(returned):
            end = EndReason.TOKEN_BUDGET
        elif verdict.scored and verdict.answer is None:
            end = EndReason.FORMAT
        else:
            end = EndReason.ANSWERED
        return _trace(request, episode, end, verdict, returned, harness_seconds=outcome.harness_seconds)

    def _text_to_verify(self, episode: Episode, returned: tuple[int, int]) -> str | None:
        text = episode.answer_text(returned)
        return episode.raw_text(returned) if text is None and self._protocol == "paper" else text

    async def _verify(self, task: Task, env: DomainEnv, text: str | None) -> Verdict:
        """The verdict, asked again while it is unscored. In a thread: a verifier may compute, or ask a judge."""
        verdict, loop = _unscored("not verified"), asyncio.get_running_loop()
        ask = env.verify if isinstance(env, JudgedEnv) else partial(self._domain.verify, task)
        for _ in range(self._limits.attempts):
            try:
                verdict = await loop.run_in_executor(self._verifiers, partial(ask, text, protocol=self._protocol))
            except Exception as fault:  # missing data, never a 0
                _log.exception("task %s: the verifier failed", task.id)
                verdict = _unscored(f"the verifier failed: {type(fault).__name__}: {fault}")
            if verdict.scored:
                break
        return verdict


def _blamed(outcome: EpisodeOutcome, waited: float, wall_seconds: float) -> EpisodeOutcome:
    """A timeout is the harness's own only if it did not spend most of the time waiting for engine and tools.

    Otherwise a busy machine would turn into rewards of 0, and into results that depend on load.
    """
    if outcome.end is not EndReason.TIMEOUT or waited <= wall_seconds / 2:
        return outcome
    error = f"the wall clock ended after {waited:.1f} s of waiting for the host: {outcome.error}"
    return replace(outcome, end=EndReason.INFRASTRUCTURE, error=error)


def _unscored(reason: str) -> Verdict:
    return Verdict(None, None, reason)


def _trace(
    request: EpisodeRequest,
    episode: Episode,
    end: EndReason,
    verdict: Verdict,
    returned: tuple[int, int] | None = None,
    *,
    error: str | None = None,
    harness_seconds: float = 0.0,
) -> Trace:
    return Trace(
        task_id=request.task.id,
        sample=request.sample,
        chats=episode.chats(),
        end=end,
        verdict=verdict,
        returned=returned,
        error=error,
        turns=episode.turns,
        tool_calls=episode.tool_calls,
        effort=Effort(harness_seconds=harness_seconds),
    )
