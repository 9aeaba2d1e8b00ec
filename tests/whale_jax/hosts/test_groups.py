"""Which host runs which group: whole ones, no host idle while another has something to begin, and stragglers twice."""

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


def simulated(hosts, episodes, seconds, groups, clock, restarts=True):
    """Runs groups that take `seconds(host, number)`; returns which hosts ran each, and the queue."""
    queue, order, running, ran = GroupQueue(hosts, episodes, clock), count(), [], {}
    queue.add([group(number) for number in range(groups)])
    while True:
        for host, one in [*queue.take(), *(queue.restart() if restarts else ())]:
            ran.setdefault(one.number, []).append(host)
            heapq.heappush(running, (clock.now + seconds(host, one.number), next(order), host, one))
        if not any(queue._running):
            return ran, queue
        again = queue.seconds_to_restart() if restarts else None
        if again is not None and clock.now + again < running[0][0]:
            clock.now += again + 1e-6
            continue
        clock.now, _, host, one = heapq.heappop(running)
        if queue.is_restarted(one.job, one.number):
            queue.settle(host, one.job, one.number)
            running = [item for item in running if item[3] is not one]
            heapq.heapify(running)
        else:
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
    ran, queue = simulated(2, 4, lambda host, number: lengths[number], 80, clock, restarts=False)
    assert sorted(ran) == list(range(80))
    assert all(len(hosts) == 1 for hosts in ran.values())
    idle = queue.idle_since("test")
    assert idle["host_idle_share"] < 0.15
    assert idle["host_idle_share"] == pytest.approx(
        max(idle["host_0_idle_seconds"], idle["host_1_idle_seconds"]) / clock.now
    )
    by_host = [sum(lengths[number] for number, (host,) in ran.items() if host == one) for one in (0, 1)]
    assert max(by_host) / min(by_host) < 1.15


@pytest.mark.parametrize("restarts", [False, True])
def test_a_host_100_times_slower_than_another_does_not_hold_it_up(restarts):
    """Host 0 takes 100 s for a group, host 1 takes 1 s: what host 0 has begun is begun again on host 1."""
    clock = Clock()
    ran, queue = simulated(2, 4, lambda host, number: (100.0, 1.0)[host], 20, clock, restarts)
    idle = queue.idle_since("test")
    assert sorted(ran) == list(range(20))
    if restarts:
        assert {number for number, hosts in ran.items() if hosts == [0, 1]} == {0, 2}
        assert (idle["groups_restarted"], idle["groups_overtaken"]) == (2, 2)
        assert clock.now < 13
        assert idle["host_idle_share"] < 0.16
    else:
        assert (clock.now, idle["groups_restarted"]) == (100, 0)
        assert idle["host_idle_share"] > 0.9


def test_a_few_groups_of_the_same_host_are_shared_once_the_other_is_idle_too_long():
    """Four groups: host 1 is done at 10 s, host 0 has two left, whose work it would do until 100 s."""
    clock = Clock()
    queue = GroupQueue(2, 4, clock)
    queue.add([group(number) for number in range(4)])
    assert [(host, one.number) for host, one in queue.take()] == [(0, 0), (1, 1), (0, 2), (1, 3)]
    assert queue.seconds_to_restart() is None
    clock.now = 10.0
    queue.done(1, 0, 1)
    queue.done(1, 0, 3)
    assert queue.restart() == []
    assert queue.seconds_to_restart() == pytest.approx(0.15 * 10 / 0.85)
    clock.now = 11.8
    assert [(host, one.number) for host, one in queue.restart()] == [(1, 2)]
    assert queue.restart() == []
    assert queue.is_restarted(0, 2)
    clock.now = 30.0
    assert queue.settle(1, 0, 2) == [0, 1]
    assert not queue.is_restarted(0, 2)
    queue.done(1, 0, 2)  # a late word of it changes nothing
    clock.now = 40.0
    assert [(host, one.number) for host, one in queue.restart()] == [(1, 0)]
    clock.now = 41.0
    assert queue.settle(0, 0, 0) == [0, 1]
    idle = queue.idle_since("a")
    assert (idle["groups_restarted"], idle["groups_overtaken"]) == (2, 1)
    assert idle["host_1_idle_seconds"] == pytest.approx(1.8 + 10)
    assert idle["host_idle_share"] == pytest.approx(11.8 / 41)


def test_nothing_is_begun_again_while_something_waits_or_by_a_host_that_had_nothing():
    clock = Clock()
    queue = GroupQueue(3, 2, clock)
    queue.add([group(0), group(1)])
    queue.take()
    clock.now = 50.0  # host 2 never had a group: there are too few, and how long one takes nobody knows
    assert (queue.restart(), queue.seconds_to_restart()) == ([], None)
    queue.add([group(2), group(3)])
    queue.done(0, 0, 0)
    assert (queue.restart(), queue.seconds_to_restart()) == ([], None)
    assert [(host, one.number) for host, one in queue.take()] == [(0, 2), (2, 3)]


def test_a_dropped_job_takes_its_second_copies_along():
    clock = Clock()
    queue = GroupQueue(2, 4, clock)
    queue.add([group(0), group(1)])
    queue.take()
    clock.now = 1.0
    queue.done(1, 0, 1)
    clock.now = 2.0
    assert len(queue.restart()) == 1
    assert queue.drop(0) == [0, 1]
    assert not queue.is_restarted(0, 0)


def test_idle_time_is_told_by_host_since_the_last_look_and_only_while_others_work():
    clock = Clock()
    queue = GroupQueue(2, 2, clock)
    clock.now = 5.0  # nobody has anything: no host is idle beside another
    queue.add([group(0)])
    queue.take()
    clock.now = 9.0
    assert queue.idle_since("a") == {
        "host_0_idle_seconds": 0.0, "host_1_idle_seconds": 4.0, "host_idle_share": 1.0,
        "groups_restarted": 0, "groups_overtaken": 0,
    }  # fmt: skip
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
