"""Episodes over two hosts, here in one process: the traces of one host, whoever runs them, and errors and ends told."""

import asyncio
import contextlib
import socket
from types import SimpleNamespace

import pytest

from harness_search.contract import Budgets, EndReason
from harness_search.sandbox.backends import SandboxUnavailable
from tests.whale_jax.rollout.conftest import FakeCodec, FakeDriver, make_runner, make_task
from whale_jax.domains.task import Split
from whale_jax.domains.verdict import Verdict
from whale_jax.hosts.channel import Channel
from whale_jax.hosts.follow import Groups, Steps, obey
from whale_jax.hosts.follower import Follower
from whale_jax.hosts.leader import Leader
from whale_jax.hosts.rollouts import HostsRunner, _Results
from whale_jax.report.busy import BusyClock
from whale_jax.rollout.runner import EpisodeRequest
from whale_jax.rollout.trace import Trace
from whale_jax.rollout.workers import WorkerPool

BUDGETS = Budgets(assistant_tokens=60, turns=4, tool_calls=3, wall_seconds=30.0)
TASKS = [make_task(number) for number in range(8)]
REQUESTS = [EpisodeRequest(task, sample, "test", 0, 0) for task in TASKS for sample in range(2)]


async def harness(host, task, seed):
    chat = await host.open_chat(None, [])
    await host.append(chat, "user", task.inputs["question"], None)
    return (await host.reply(chat, None))["id"]


class Counting(FakeDriver):
    def stats(self):
        return {"sampled_tokens": len(self.sessions)}


@contextlib.asynccontextmanager
async def two_hosts(*harnesses, before=None, clock=lambda: 0.0):
    """Host 0's runner over both; each has a driver and a harness. Nobody is idle on a clock that stands."""
    ends = socket.socketpair()
    leader = Leader([Channel(ends[0], "host 1", 60.0)])
    follower = Follower(Channel(ends[1], "host 0", 60.0), 1, 2)
    drivers = [Counting(FakeCodec(), before=before) for _ in range(2)]
    runners = [make_runner(driver, one, concurrency=2)[0] for driver, one in zip(drivers, harnesses, strict=True)]
    splits = {Split.WEIGHT: TASKS}
    groups = Groups(follower, splits, drivers[1], runners[1], BusyClock())  # type: ignore[arg-type]
    following = asyncio.create_task(obey(follower, Steps(follower, make=lambda config: None), groups))  # type: ignore[arg-type]
    try:
        yield SimpleNamespace(
            runner=HostsRunner(runners[0], leader, budgets=BUDGETS, episodes=2, clock=clock),
            drivers=drivers,
            leader=leader,
            groups=groups,
        )
    finally:
        ending = asyncio.create_task(asyncio.to_thread(leader.end, 0, ""))
        await following
        follower.channel.close()
        await ending
        await runners[0].close()


def key(trace):
    return trace.task_id, trace.sample


def test_the_traces_are_those_of_one_host():
    async def over_two():
        async with two_hosts(harness, harness) as hosts:
            traces = [trace async for trace in hosts.runner.run("source", REQUESTS)]
            assert all(driver.sessions for driver in hosts.drivers)
            assert hosts.leader.totals({"sampled_tokens": len(hosts.drivers[0].sessions)})["sampled_tokens"] >= 15
            return traces

    async def on_one():
        runner, _ = make_runner(FakeDriver(FakeCodec()), harness)
        traces = await runner.run_all("source", REQUESTS, budgets=BUDGETS)
        await runner.close()
        return traces

    ours, theirs = asyncio.run(over_two()), asyncio.run(on_one())
    assert sorted(ours, key=key) == sorted(theirs, key=key)
    assert [trace.to_json() for trace in sorted(ours, key=key)] == [
        trace.to_json() for trace in sorted(theirs, key=key)
    ]


def test_a_host_takes_all_that_a_busy_one_has_not_begun():
    """Task 0 does not end before all others have: it holds up the host that has it, and nobody else."""

    async def run():
        others_done = asyncio.Event()

        async def waits_on_the_first(host, task, seed):
            if task.id == "t0":
                await others_done.wait()
            return await harness(host, task, seed)

        async with two_hosts(waits_on_the_first, waits_on_the_first) as hosts:
            done = []
            async for trace in hosts.runner.run("source", REQUESTS):
                done.append(trace.task_id)
                if len(done) == len(REQUESTS) - 2:
                    others_done.set()
            assert sorted(done) == sorted(request.task.id for request in REQUESTS)
            assert [len(driver.sessions) for driver in hosts.drivers] in ([2, 14], [14, 2])
            assert {"host_0_idle_seconds", "host_1_idle_seconds"} < set(hosts.runner.idle_since("test"))

    asyncio.run(run())


@pytest.mark.parametrize("slow", [0, 1])
def test_what_a_slow_host_has_begun_is_begun_again_and_the_traces_are_the_same(slow):
    """One host never ends an episode by itself; the other is idle, and does it."""

    async def run():
        now, stuck, begun = [0.0], asyncio.Event(), []

        async def never_ends(host, task, seed):
            begun.append(task.id)
            await stuck.wait()

        async def passes_the_time(host, task, seed):
            now[0] += 1.0
            return await harness(host, task, seed)

        harnesses = (never_ends, passes_the_time) if slow == 0 else (passes_the_time, never_ends)
        async with two_hosts(*harnesses, clock=lambda: now[0]) as hosts:
            ticking = asyncio.create_task(tick(now))
            traces = [trace async for trace in hosts.runner.run("source", REQUESTS)]
            ticking.cancel()
            assert set(begun) == {f"t{slow}"}
            assert sorted(key(trace) for trace in traces) == sorted((r.task.id, r.sample) for r in REQUESTS)
            found = hosts.runner.idle_since("test")
            assert (found["groups_restarted"], found["groups_overtaken"]) == (1, 1)
            assert [driver.in_flight for driver in hosts.drivers] == [0, 0]
            assert hosts.groups._running == {}
            return traces

    async def tick(now):
        while True:
            await asyncio.sleep(0.01)
            now[0] += 1.0

    async def on_one():
        runner, _ = make_runner(FakeDriver(FakeCodec()), harness)
        traces = await runner.run_all("source", REQUESTS, budgets=BUDGETS)
        await runner.close()
        return traces

    ours, theirs = asyncio.run(run()), asyncio.run(on_one())
    assert [one.to_json() for one in sorted(ours, key=key)] == [one.to_json() for one in sorted(theirs, key=key)]


def test_of_two_copies_of_an_episode_the_first_counts():
    def trace(task, sample):
        return Trace(task, sample, (), EndReason.ANSWERED, Verdict(1, None, ""), None)

    results = _Results(3)
    first = [results.is_first(host, trace("t", sample)) for host, sample in [(0, 0), (1, 0), (1, 1), (1, 2), (0, 2)]]
    assert first == [True, False, True, True, False]
    assert results.left == 0
    assert (results.lacks(0), results.lacks(1)) == (True, False)


def test_a_sandbox_that_does_not_come_up_is_told_whichever_host_finds_it(monkeypatch):
    start = WorkerPool.worker

    async def worker(pool, lease):
        if lease.source == "broken":
            raise SandboxUnavailable("no processes are left")
        return await start(pool, lease)

    async def run():
        async with two_hosts(harness, harness) as hosts:
            with pytest.raises(SandboxUnavailable, match="no processes are left"):
                async for _ in hosts.runner.run("broken", REQUESTS):
                    pass
            assert len([trace async for trace in hosts.runner.run("source", REQUESTS[:2])]) == 2

    monkeypatch.setattr(WorkerPool, "worker", worker)
    asyncio.run(run())


def test_leaving_early_ends_what_is_in_flight_on_both():
    async def run():
        stuck = asyncio.Event()

        async def waits(session):
            if len(entered) >= 2:
                await stuck.wait()
            entered.append(session)

        entered = []
        async with two_hosts(harness, harness, before=waits) as hosts:
            async with contextlib.aclosing(hosts.runner.run("source", REQUESTS)) as traces:
                await anext(traces)
            assert [driver.in_flight for driver in hosts.drivers] == [0, 0]
            stuck.set()
            assert len([trace async for trace in hosts.runner.run("source", REQUESTS[:4])]) == 4

    asyncio.run(run())
