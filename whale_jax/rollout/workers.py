"""Warm sandboxed workers, one per harness source, kept while they are used and for a little longer."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from harness_search.contract import Budgets, EpisodeHost, HarnessError, TaskView
from harness_search.sandbox.backends import SandboxUnavailable
from harness_search.sandbox.worker import EpisodeOutcome


class Worker(Protocol):
    """What a rollout needs of `harness_search.sandbox.worker.HarnessWorker`."""

    async def run_episode(
        self, *, episode_id: str, task: TaskView, budgets: Budgets, seed: int, host: EpisodeHost
    ) -> EpisodeOutcome: ...

    async def close(self) -> None: ...


_left_behind: set[asyncio.Task[Any]] = set()  # keeps tasks that would not end from being collected half-way


async def settle(work: Awaitable[Any] | asyncio.Task[Any], seconds: float) -> bool:
    """Waits for some work at most `seconds`, then cancels it and waits as long again; its errors are dropped.

    Returns:
        Whether it came to an end. What did not is left to itself: nothing waits for it any more.
    """
    task = asyncio.ensure_future(work)
    _left_behind.add(task)
    task.add_done_callback(_forget)
    done, _ = await asyncio.wait({task}, timeout=seconds)
    if not done:
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=seconds)
    return bool(done)


def _forget(task: asyncio.Task[Any]) -> None:
    _left_behind.discard(task)
    if not task.cancelled():
        task.exception()  # marks it as seen


StartWorker = Callable[[str], Awaitable[Worker]]


@dataclass
class Lease:
    """The use of one harness's worker. `broken` is why it has none and gets none."""

    source: str
    users: int = 0
    worker: Worker | None = None
    broken: str | None = None
    starting: asyncio.Lock = field(default_factory=asyncio.Lock)


class WorkerPool:
    """Starts workers on demand; at most `idle` that nobody uses stay warm, the least recently used go first.

    A worker that takes longer than `grace_seconds` to close is left behind: no teardown holds up a run.
    """

    def __init__(self, start: StartWorker, *, idle: int, attempts: int, grace_seconds: float) -> None:
        self._start = start
        self._attempts = attempts
        self._idle = idle
        self._grace_seconds = grace_seconds
        self._leases: OrderedDict[str, Lease] = OrderedDict()

    @asynccontextmanager
    async def lease(self, source: str) -> AsyncIterator[Lease]:
        """Keeps the worker of a harness from being closed while the context lasts; starts nothing yet."""
        lease = self._leases.setdefault(source, Lease(source))
        self._leases.move_to_end(source)
        lease.users += 1
        try:
            yield lease
        finally:
            lease.users -= 1
            await self._close_idle()

    async def worker(self, lease: Lease) -> Worker:
        """The lease's worker, started if there is none. Callers that come together start it once.

        Raises:
            HarnessError: the harness breaks the contract or does not load, in several attempts; it is not tried again.
            SandboxUnavailable: its sandbox did not come up, in several attempts (a busy machine may be slow once).
        """
        async with lease.starting:
            if lease.broken is not None:
                raise HarnessError(lease.broken)
            for attempt in range(1, self._attempts + 1):
                if lease.worker is not None:
                    break
                try:
                    lease.worker = await self._start(lease.source)
                except (HarnessError, SandboxUnavailable) as error:
                    if attempt < self._attempts:
                        continue
                    if isinstance(error, HarnessError):
                        lease.broken = str(error)
                    raise
            assert lease.worker is not None
            return lease.worker

    async def close(self) -> None:
        """Ends every worker that nobody uses."""
        await self._close_idle(keep=0)

    async def _close_idle(self, keep: int | None = None) -> None:
        unused = [lease for lease in self._leases.values() if not lease.users]
        for lease in unused[: max(0, len(unused) - (self._idle if keep is None else keep))]:
            del self._leases[lease.source]
            if lease.worker is not None:
                await settle(lease.worker.close(), self._grace_seconds)
