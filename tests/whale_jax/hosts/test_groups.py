"""Which host runs which group: all of it once, whole groups, and no host idle while another has not begun something."""

import heapq
from itertools import count

import pytest

from whale_jax.hosts.groups import Group, GroupQueue


def group(number, size=2, job=0):
    return Group(job, number, tuple(range(size)))


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def simulated(hosts, episodes, lengths, clock):
    """Runs groups of these lengths in seconds; returns which host ran each, and the queue."""
    queue, order, running, ran = GroupQueue(hosts, episodes, clock), count(), [], {}
    queue.add([group(number) for number in range(len(lengths))])
    while True:
        for host, one in queue.take():
            ran.setdefault(one.number, []).append(host)
            heapq.heappush(running, (clock.now + lengths[one.number], next(order), host, one))
        if not running:
            return ran, queue
        clock.now, _, host, one = heapq.heappop(running)
        queue.done(host, one.job, one.number)


def test_groups_go_in_order_to_the_host_with_the_fewest_episodes():
    queue = GroupQueue(2, 4)
    queue.add([group(number) for number in range(6)])
    assert [(host, one.number) for host, one in queue.take()] == [(0, 0), (1, 1), (0, 2), (1, 3)]
    assert queue.take() == []
    queue.done(1, 0, 3)
    assert [(host, one.number) for host, one in queue.take()] == [(1, 4)]


def test_lengths_skewed_100_to_1_leave_no_host_idle_above_15_percent():
    lengths = [100.0, 1.0] * 40  # dealt out in turn, host 0 would have all the long ones and host 1 be idle for 99 %
    clock = Clock()
    ran, queue = simulated(2, 4, lengths, clock)
    assert sorted(ran) == list(range(80))
    assert all(len(hosts) == 1 for hosts in ran.values())
    idle = queue.idle_since("test")
    assert idle["host_idle_share"] < 0.15
    assert idle["host_idle_share"] == pytest.approx(
        max(idle["host_0_idle_seconds"], idle["host_1_idle_seconds"]) / clock.now
    )
    by_host = [sum(lengths[number] for number, (host,) in ran.items() if host == one) for one in (0, 1)]
    assert max(by_host) / min(by_host) < 1.15


def test_idle_time_is_told_by_host_since_the_last_look_and_only_while_others_work():
    clock = Clock()
    queue = GroupQueue(2, 2, clock)
    clock.now = 5.0  # nobody has anything: no host is idle beside another
    queue.add([group(0)])
    queue.take()
    clock.now = 9.0
    assert queue.idle_since("a") == {"host_0_idle_seconds": 0.0, "host_1_idle_seconds": 4.0, "host_idle_share": 1.0}
    clock.now = 10.0
    queue.done(0, 0, 0)
    clock.now = 30.0
    assert queue.idle_since("a")["host_1_idle_seconds"] == 1.0
    assert queue.idle_since("b")["host_1_idle_seconds"] == 5.0


def test_a_dropped_job_frees_its_places_and_names_its_hosts():
    queue = GroupQueue(2, 2)
    queue.add([group(0), group(1), group(2)])
    queue.add([group(0, job=1)])
    queue.take()
    assert queue.drop(0) == [0, 1]
    assert [(host, one.job) for host, one in queue.take()] == [(0, 1)]
