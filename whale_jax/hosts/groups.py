"""Which host runs which group: a queue that process 0 owns.

A group is all samples of a prompt; it is never divided, so that its samples share one prefill. Groups are handed out in
order, each to the host with the fewest episodes in flight, as long as that one has a free place. A host that runs dry
so takes what others have not begun. When nothing is left to begin and it has been idle for more than `IDLE_SHARE` of
the time, it begins groups a second time that another has in flight: an episode is a function of its keys and the
weights, so whichever copy ends first has the result, and the other is given up.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

IDLE_SHARE = 0.15
"""Of the time with episodes; a host that is idle for longer begins again what others have in flight."""

Key = tuple[int, int]
"""Job and number of a group."""


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


@dataclass
class _Spell:
    """The time from when something came into the empty queue until all of it is done.

    Attributes:
        active: seconds of it so far.
        idle: of them, for each host, those without a group.
        served: hosts that have had a group.
    """

    active: float
    idle: list[float]
    served: set[int]

    def is_over(self, host: int) -> bool:
        """Whether a host has been idle for more than `IDLE_SHARE` of the time."""
        return self.idle[host] > IDLE_SHARE * self.active

    def seconds_to_limit(self, host: int) -> float:
        """Until a host that stays idle has been so for `IDLE_SHARE` of the time."""
        return max(0.0, (IDLE_SHARE * self.active - self.idle[host]) / (1 - IDLE_SHARE))


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
        self._running: list[dict[Key, Group]] = [{} for _ in range(hosts)]
        self._again: dict[Key, int] = {}
        self._mark = clock()
        self._spell = _Spell(0.0, [0.0] * hosts, set())
        self._counts = {f"host_{host}_idle_seconds": 0.0 for host in range(hosts)}
        self._counts |= {"rollout_active_seconds": 0.0, "groups_restarted": 0, "groups_overtaken": 0}
        self._seen: dict[str, dict[str, float]] = {}

    def add(self, groups: Sequence[Group]) -> None:
        """Puts groups at the end of the queue."""
        self._account()
        if not self._waiting and not any(self._running):
            self._spell = _Spell(0.0, [0.0] * len(self._running), set())
        self._waiting.extend(groups)

    def take(self) -> list[tuple[int, Group]]:
        """What is to be handed out now, and to whom; it counts as in flight."""
        self._account()
        given = []
        while self._waiting:
            load = [self._load(host) for host in range(len(self._running))]
            host = load.index(min(load))
            if load[host] >= self._episodes:
                break
            group = self._waiting.popleft()
            self._begin(host, group)
            given.append((host, group))
        return given

    def restart(self) -> list[tuple[int, Group]]:
        """What is to be begun a second time now, and by whom; it counts as in flight there too.

        Each host that has run dry and been idle for too long gets the later half of what the host with most episodes
        has in flight and no other has, as far as it has places.
        """
        self._account()
        given = []
        for host in self._dry():
            if not self._spell.is_over(host):
                continue
            single = self._single(max(range(len(self._running)), key=lambda one: self._load(one, single=True)))
            for group in reversed(single[len(single) // 2 :]):
                if self._load(host) < self._episodes:
                    self._begin(host, group)
                    self._again[group.job, group.number] = host
                    self._counts["groups_restarted"] += 1
                    given.append((host, group))
        return given

    def seconds_to_restart(self) -> float | None:
        """When to ask `restart` next; None where it has nothing to give before something else changes."""
        self._account()
        if not any(self._single(host) for host in range(len(self._running))):
            return None
        return min((self._spell.seconds_to_limit(host) for host in self._dry()), default=None)

    def is_restarted(self, job: int, number: int) -> bool:
        """Whether two hosts have a group in flight."""
        return (job, number) in self._again

    def done(self, host: int, job: int, number: int) -> None:
        """Takes a group that came to its end on a host out of the account."""
        self._account()
        self._running[host].pop((job, number), None)

    def settle(self, host: int, job: int, number: int) -> list[int]:
        """Takes a restarted group whose last result has come from `host` out of the account; gives all its hosts."""
        self._account()
        self._counts["groups_overtaken"] += self._again.pop((job, number)) == host
        hosts = [host for host, running in enumerate(self._running) if (job, number) in running]
        for one in hosts:
            del self._running[one][job, number]
        return hosts

    def drop(self, job: int) -> list[int]:
        """Forgets a job: what waits of it and what is in flight. Returns the hosts that run some of it."""
        self._account()
        self._waiting = deque(group for group in self._waiting if group.job != job)
        hosts = [host for host, running in enumerate(self._running) if any(key[0] == job for key in running)]
        for running in (*self._running, self._again):
            for key in [key for key in running if key[0] == job]:
                del running[key]
        return hosts

    def idle_since(self, mark: str) -> dict[str, float]:
        """Of the time since the last call with this mark: idle seconds of every host, the largest share of the time
        with rollouts, groups begun a second time, and those whose second copy was the first to end."""
        self._account()
        before, self._seen[mark] = self._seen.get(mark, {}), dict(self._counts)
        found = {name: count - before.get(name, 0) for name, count in self._counts.items()}
        active = found.pop("rollout_active_seconds")
        idle = max(seconds for name, seconds in found.items() if name.endswith("_idle_seconds"))
        return {**found, "host_idle_share": idle / active if active else 0.0}

    def _begin(self, host: int, group: Group) -> None:
        self._running[host][group.job, group.number] = group
        self._spell.served.add(host)

    def _load(self, host: int, single: bool = False) -> int:
        """Episodes in flight on a host; `single`: of the groups that no other has."""
        groups = self._single(host) if single else self._running[host].values()
        return sum(len(group.requests) for group in groups)

    def _single(self, host: int) -> list[Group]:
        """What a host, and no other, has in flight, in the order in which it was begun."""
        return [group for key, group in self._running[host].items() if key not in self._again]

    def _dry(self) -> list[int]:
        """Hosts that have had groups, have none, and will get none."""
        return [host for host in self._spell.served if not self._running[host] and not self._waiting]

    def _account(self) -> None:
        """Counts the time since the last change."""
        now = self._clock()
        passed, self._mark = now - self._mark, now
        if any(self._running):
            self._spell.active += passed
            self._counts["rollout_active_seconds"] += passed
            for host, running in enumerate(self._running):
                if not running:
                    self._spell.idle[host] += passed
                    self._counts[f"host_{host}_idle_seconds"] += passed
