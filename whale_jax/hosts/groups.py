"""Which host runs which group: a queue that process 0 owns.

A group is all samples of a prompt; it is never divided, so that its samples share one prefill. Groups are handed out in
order, each to the host with the fewest episodes in flight, as long as that one has a free place. A host that runs dry
so takes what others have not begun, and what a group's samples are does not depend on who runs it.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False)
class Group:
    """Requests that one host runs together.

    Attributes:
        job: the call that they belong to.
        number: of the group in its job.
        requests: one episode each.
    """

    job: int
    number: int
    requests: tuple[Any, ...]


class GroupQueue:
    """Groups that wait, groups in flight by host, and for how long each host had none while others had."""

    def __init__(self, hosts: int, episodes: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Args:
        episodes: in flight on one host, at which it is given no further group.
        clock: in seconds.
        """
        self._episodes = episodes
        self._clock = clock
        self._waiting: deque[Group] = deque()
        self._running: list[dict[tuple[int, int], Group]] = [{} for _ in range(hosts)]
        self._idle = [0.0] * hosts
        self._active = 0.0
        self._mark = clock()
        self._seen: dict[str, tuple[list[float], float]] = {}

    def add(self, groups: Sequence[Group]) -> None:
        """Puts groups at the end of the queue."""
        self._waiting.extend(groups)

    def take(self) -> list[tuple[int, Group]]:
        """What is to be handed out now, and to whom; it counts as in flight."""
        self._account()
        given = []
        while self._waiting:
            load = [sum(len(group.requests) for group in running.values()) for running in self._running]
            host = load.index(min(load))
            if load[host] >= self._episodes:
                break
            group = self._waiting.popleft()
            self._running[host][group.job, group.number] = group
            given.append((host, group))
        return given

    def done(self, host: int, job: int, number: int) -> None:
        """Takes a group that came to its end out of the account."""
        self._account()
        self._running[host].pop((job, number), None)

    def drop(self, job: int) -> list[int]:
        """Forgets a job: what waits of it and what is in flight. Returns the hosts that run some of it."""
        self._account()
        self._waiting = deque(group for group in self._waiting if group.job != job)
        hosts = [host for host, running in enumerate(self._running) if any(key[0] == job for key in running)]
        for running in self._running:
            for key in [key for key in running if key[0] == job]:
                del running[key]
        return hosts

    def idle_since(self, mark: str) -> dict[str, float]:
        """Idle seconds of every host since the last call with this mark, and the largest share of the time that
        rollouts took."""
        self._account()
        idle, active = self._seen.get(mark, ([0.0] * len(self._idle), 0.0))
        self._seen[mark] = list(self._idle), self._active
        seconds = [now - before for now, before in zip(self._idle, idle, strict=True)]
        took = self._active - active
        share = max(seconds) / took if took else 0.0
        return {**{f"host_{host}_idle_seconds": one for host, one in enumerate(seconds)}, "host_idle_share": share}

    def _account(self) -> None:
        """Counts the time since the last change."""
        now = self._clock()
        passed, self._mark = now - self._mark, now
        if any(self._running):
            self._active += passed
            for host, running in enumerate(self._running):
                self._idle[host] += 0.0 if running else passed
