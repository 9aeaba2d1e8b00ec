"""Episodes over all hosts of a run: what `RolloutRunner` is on one host, for process 0 of several."""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import asdict, dataclass, field

from harness_search.contract import Budgets
from harness_search.sandbox.backends import SandboxUnavailable
from whale_jax.hosts.channel import HostsError, Message
from whale_jax.hosts.groups import Group, GroupQueue
from whale_jax.hosts.hosts import Hosts
from whale_jax.hosts.leader import Leader
from whale_jax.hosts.traces import request_to_json, unpacked
from whale_jax.rollout.runner import EpisodeRequest, RolloutRunner
from whale_jax.rollout.trace import Trace

_SOONEST = 0.02
"""Seconds after which at the earliest it is looked again whether a host has been idle for too long."""


class _Results:
    """Which traces of a group have come. Two hosts may run it: of each episode the first counts."""

    def __init__(self, size: int) -> None:
        self.left = size
        self._size = size
        self._from: Counter[tuple[int, str, int]] = Counter()
        self._taken: Counter[tuple[str, int]] = Counter()

    def is_first(self, host: int, trace: Trace) -> bool:
        """Notes a trace of a host, and tells whether no other host was earlier with it."""
        episode = (trace.task_id, trace.sample)
        self._from[(host, *episode)] += 1
        first = self._from[(host, *episode)] > self._taken[episode]
        self._taken[episode] += first
        self.left -= first
        return first

    def lacks(self, host: int) -> bool:
        """Whether a host has yet to send some."""
        return sum(count for place, count in self._from.items() if place[0] == host) < self._size


@dataclass(eq=False)
class _Job:
    """One call of `run`."""

    number: int
    source: str
    budgets: Budgets
    loop: asyncio.AbstractEventLoop
    finished: asyncio.Queue[Trace | Exception] = field(default_factory=asyncio.Queue)
    results: dict[int, _Results] = field(default_factory=dict)
    here: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    running_on: set[int] = field(default_factory=set)
    dropped: asyncio.Event = field(default_factory=asyncio.Event)


class HostsRunner:
    """Hands out whole groups to all hosts, its own runner among them, and gathers their traces."""

    def __init__(
        self,
        local: RolloutRunner,
        leader: Leader,
        *,
        budgets: Budgets,
        episodes: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
        local: of this host.
        budgets: of an episode, where a call names none.
        episodes: in flight on one host, at which it is given no further group.
        clock: in seconds.
        """
        self.queue = GroupQueue(leader.count, episodes, clock)
        self._local = local
        self._leader = leader
        self._budgets = budgets
        self._numbers = itertools.count()
        self._jobs: dict[int, _Job] = {}
        self._timer: asyncio.TimerHandle | None = None
        leader.on_rollouts = self._received
        leader.on_failure = self._failed

    async def run(
        self, harness_source: str, requests: Sequence[EpisodeRequest], *, budgets: Budgets | None = None
    ) -> AsyncGenerator[Trace, None]:
        """As `RolloutRunner.run`. Raises HostsError too: a host is gone."""
        self._leader.check()
        job = _Job(next(self._numbers), harness_source, budgets or self._budgets, asyncio.get_running_loop())
        self._jobs[job.number] = job
        groups = _groups(job.number, requests)
        job.results = {group.number: _Results(len(group.requests)) for group in groups}
        self.queue.add(groups)
        try:
            self._hand_out()
            for _ in requests:
                item = await job.finished.get()
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            await self._end(job)

    def idle_since(self, mark: str) -> dict[str, float]:
        """See `GroupQueue.idle_since`."""
        return self.queue.idle_since(mark)

    async def close(self) -> None:
        """Ends what this host keeps warm."""
        if self._timer is not None:
            self._timer.cancel()
        await self._local.close()

    def _hand_out(self) -> None:
        for host, group in [*self.queue.take(), *self.queue.restart()]:
            self._start(host, self._jobs[group.job], group)
        if self._timer is not None:
            self._timer.cancel()
        seconds = self.queue.seconds_to_restart()
        later = asyncio.get_running_loop().call_later
        self._timer = None if seconds is None else later(max(seconds, _SOONEST), self._hand_out)

    def _start(self, host: int, job: _Job, group: Group) -> None:
        if host == 0:
            task = asyncio.create_task(self._run_here(job, group))
            job.here[group.number] = task
            task.add_done_callback(lambda task: job.here.pop(group.number))
            return
        requests = [request_to_json(request) for request in group.requests]
        place = {"job": job.number, "group": group.number}
        with suppress(HostsError):  # `_failed` ends the job of who is gone
            self._leader.send(
                host, "group", job.source.encode(), budgets=asdict(job.budgets), requests=requests, **place
            )

    async def _run_here(self, job: _Job, group: Group) -> None:
        try:
            async with aclosing(self._local.run(job.source, group.requests, budgets=job.budgets)) as traces:
                async for trace in traces:
                    self._deliver(0, job, group.number, trace)
            self.queue.done(0, job.number, group.number)
            self._hand_out()
        except Exception as error:
            job.finished.put_nowait(error)

    def _deliver(self, host: int, job: _Job, number: int, trace: Trace) -> None:
        results = job.results[number]
        if results.is_first(host, trace):
            job.finished.put_nowait(trace)
        if results.left == 0 and self.queue.is_restarted(job.number, number):
            for one in self.queue.settle(host, job.number, number):
                if results.lacks(one):
                    self._give_up(one, job, number)
            self._hand_out()

    def _give_up(self, host: int, job: _Job, number: int) -> None:
        """Ends a host's copy of a group of which all traces are there."""
        if host == 0:
            if task := job.here.get(number):
                task.cancel()
            return
        job.running_on.add(host)
        with suppress(HostsError):
            self._leader.send(host, "drop", job=job.number, group=number)

    async def _end(self, job: _Job) -> None:
        """Ends what is still going on for a call that was left early; then its hosts are free again."""
        job.running_on |= {host for host in self.queue.drop(job.number) if host != 0}
        here = list(job.here.values())
        for task in here:
            task.cancel()
        await asyncio.gather(*here, return_exceptions=True)
        if job.running_on and self._leader.failure is None:
            for host in list(job.running_on):
                with suppress(HostsError):
                    self._leader.send(host, "drop", job=job.number)
            await job.dropped.wait()
        del self._jobs[job.number]
        if self._leader.failure is None:
            self._hand_out()

    def _received(self, host: int, message: Message) -> None:
        """In the receiving thread of a host."""
        job = self._jobs.get(message.fields["job"])
        if job is not None:
            traces = unpacked(message.blobs[0]) if message.kind == "trace" else []
            job.loop.call_soon_threadsafe(self._take, host, job, message, traces)

    def _take(self, host: int, job: _Job, message: Message, traces: list[Trace]) -> None:
        fields = message.fields
        if message.kind == "trace":
            for trace in traces:
                self._deliver(host, job, fields["group"], trace)
        elif message.kind == "failed":
            kind, text = fields["error"], f"host {host}: {fields['text']}"
            unavailable = kind == SandboxUnavailable.__name__
            error = SandboxUnavailable(text) if unavailable else HostsError(f"host {host}: {kind}: {fields['text']}")
            job.finished.put_nowait(error)
        elif message.kind == "dropped":
            job.running_on.discard(host)
            if not job.running_on:
                job.dropped.set()
        else:
            self._leader.heard(host, fields["counters"], fields["busy_seconds"])
            self.queue.done(host, job.number, fields["group"])
            self._hand_out()

    def _failed(self, error: HostsError) -> None:
        """In the thread that noticed that a host is gone."""

        def release(job: _Job) -> None:
            job.finished.put_nowait(error)
            job.dropped.set()

        for job in list(self._jobs.values()):
            job.loop.call_soon_threadsafe(release, job)


def over_all_hosts(
    local: RolloutRunner, hosts: Hosts, *, budgets: Budgets, episodes: int
) -> RolloutRunner | HostsRunner:
    """What runs the episodes of a run: the runner of this host, if there is no other."""
    return HostsRunner(local, hosts, budgets=budgets, episodes=episodes) if isinstance(hosts, Leader) else local


def _groups(job: int, requests: Sequence[EpisodeRequest]) -> list[Group]:
    """All requests of a task in one group, in the order in which the tasks come first."""
    by_task: dict[str, list[EpisodeRequest]] = {}
    for request in requests:
        by_task.setdefault(request.task.id, []).append(request)
    return [Group(job, number, tuple(group)) for number, group in enumerate(by_task.values())]
