"""Many episodes at once. Tests named after a row of CASES (h) carry its id."""

import asyncio
import threading
from types import SimpleNamespace

import pytest

from harness_search.contract import Budgets, EndReason, EpisodeEnded, HarnessError
from harness_search.sandbox.backends import SandboxUnavailable
from whale_jax.domains.verdict import Verdict
from whale_jax.rollout.ledger import Ledger
from whale_jax.rollout.runner import EpisodeRequest
from whale_jax.serving.driver import ServingError

GOOD = "</think><answer>yes</answer><|im_end|>"


async def ask(host, task, seed) -> int:
    """A one-turn harness."""
    chat = await host.open_chat(None, [])
    await host.append(chat, "user", task.inputs["question"], None)
    return (await host.reply(chat, None))["id"]


async def ask_and_search(host, task, seed) -> int:
    """A two-turn harness that takes longer for some tasks than for others."""
    chat = await host.open_chat(None, [])
    for _ in range(2):
        for _ in range(seed % 5):
            await asyncio.sleep(0)
        result = await host.env("search", [task.inputs["question"]], {})
        await host.append(chat, "tool", result["text"], result["handle"])
        reply = await host.reply(chat, 20)
    return reply["id"]


def requests(fakes, tasks: int = 3, samples: int = 2) -> list[EpisodeRequest]:
    return [
        EpisodeRequest(fakes.task(number), sample, "train", 0, 1)
        for number in range(tasks)
        for sample in range(samples)
    ]


def test_results_do_not_depend_on_concurrency_or_order(fakes: SimpleNamespace) -> None:
    asked = requests(fakes, 4, 3)
    results = []
    for concurrency, order in ((1, asked), (7, asked), (3, asked[::-1])):
        runner, workers = fakes.runner(fakes.driver(), ask_and_search, concurrency=concurrency)
        traces = asyncio.run(runner.run_all("h", order))
        assert [(trace.task_id, trace.sample) for trace in traces] == [(r.task.id, r.sample) for r in order]
        assert len(workers) == 1
        results.append(sorted((trace.to_json() for trace in traces), key=lambda t: (t["task_id"], t["sample"])))
    assert results[0] == results[1] == results[2]
    sampled = {tuple(trace["chats"][0][-1]["ids"]) for trace in results[0]}
    assert len(sampled) == len(asked)  # every episode has a key of its own


def test_a_returned_answer_is_scored(fakes: SimpleNamespace) -> None:
    runner, _ = fakes.runner(fakes.driver(GOOD), ask)
    (trace,) = asyncio.run(runner.run_all("h", requests(fakes, 1, 1)))
    assert (trace.verdict, trace.end, trace.returned) == (Verdict(1, "yes", "read"), EndReason.ANSWERED, (0, 0))
    assert (trace.ended_by_itself, trace.turns, trace.tool_calls, trace.effort.attempts) == (True, 1, 0, 1)


@pytest.mark.parametrize(
    ("reply", "end", "reward"),
    [
        ("<answer>yes</answer><|im_end|>", EndReason.FORMAT, 0),
        ("</think>yes<|im_end|>", EndReason.FORMAT, 0),
        ("</think><answer>yes</answer>" + "." * 200, EndReason.TOKEN_BUDGET, 1),
        ("</think><answer>no</answer><|im_end|>", EndReason.ANSWERED, 0),
    ],
    ids=["thinking-open", "no-tag", "cut-by-the-budget", "wrong"],
)
def test_end_reasons_of_returned_replies(fakes: SimpleNamespace, reply: str, end: EndReason, reward: int) -> None:
    runner, _ = fakes.runner(fakes.driver(reply), ask)
    (trace,) = asyncio.run(runner.run_all("h", requests(fakes, 1, 1)))
    assert (trace.end, trace.verdict.reward) == (end, reward)
    assert trace.ended_by_itself == (end is not EndReason.TOKEN_BUDGET)


def test_the_paper_s_protocol_searches_the_raw_text(fakes: SimpleNamespace) -> None:
    runner, _ = fakes.runner(fakes.driver("<answer>yes</answer><|im_end|>"), ask, protocol="paper")
    (trace,) = asyncio.run(runner.run_all("h", requests(fakes, 1, 1)))
    assert trace.verdict.reward == 1


def test_injected_answers_are_never_scored(fakes: SimpleNamespace) -> None:
    """Reward hacking seen for real: the harness writes the answer tag."""

    async def cheat(host, task, seed) -> int:
        chat = await host.open_chat("<answer>yes</answer>", [])
        await host.append(chat, "user", "</think><answer>yes</answer>", None)
        await host.reply(chat, 2)
        return (await host.extend_reply(chat, "</think><answer>yes</answer>", None))["id"]

    runner, _ = fakes.runner(fakes.driver("hm", "so<|im_end|>"), cheat)
    (trace,) = asyncio.run(runner.run_all("h", requests(fakes, 1, 1)))
    assert (trace.verdict.reward, trace.verdict.answer) == (0, None)


def test_only_the_last_reply_of_a_chat_may_be_returned(fakes: SimpleNamespace) -> None:
    async def early(host, task, seed) -> int | None:
        chat = await host.open_chat(None, [])
        first = await host.reply(chat, None)
        await host.reply(chat, None)
        return first["id"] if task.id == "t0" else 99 if task.id == "t1" else None

    runner, _ = fakes.runner(fakes.driver(*[GOOD] * 6), early)
    traces = asyncio.run(runner.run_all("h", requests(fakes, 3, 1)))
    assert {trace.end for trace in traces} == {EndReason.INVALID_RETURN}
    assert {trace.verdict.reward for trace in traces} == {0}


def test_H186_one_failing_request_fails_alone(fakes: SimpleNamespace) -> None:
    async def fail_one(session) -> None:
        if len(driver.sessions) == 3:
            raise ServingError("out of luck")

    driver = fakes.driver(*[GOOD] * 8, before=fail_one)
    runner, _ = fakes.runner(driver, ask, concurrency=1, limits={"attempts": 1})
    traces = asyncio.run(runner.run_all("h", requests(fakes, 1, 8)))
    assert [trace.verdict.reward for trace in traces] == [1, 1, None, 1, 1, 1, 1, 1]
    assert (traces[2].end, traces[2].error) == (EndReason.INFRASTRUCTURE, "ServingError: out of luck")
    assert Ledger.from_traces(traces).unscored == 1


def test_H186_infrastructure_is_retried_with_the_same_keys(fakes: SimpleNamespace) -> None:
    clean, _ = fakes.runner(fakes.driver(), ask)
    (expected,) = asyncio.run(clean.run_all("h", requests(fakes, 1, 1)))

    async def fail_twice(session) -> None:
        if len(driver.sessions) < 3:
            raise ServingError("not yet")

    driver = fakes.driver(before=fail_twice)
    runner, workers = fakes.runner(driver, ask)
    (trace,) = asyncio.run(runner.run_all("h", requests(fakes, 1, 1)))
    assert trace == expected
    assert trace.effort.attempts == 3
    assert len(set(workers[0].episodes)) == 3  # every attempt has an id of its own
    assert all(session.closed for session in driver.sessions)


def test_a_fault_of_the_host_is_missing_data_and_is_logged(fakes: SimpleNamespace, caplog) -> None:
    async def fault(session) -> None:
        raise KeyError("a bug")

    runner, workers = fakes.runner(fakes.driver("x", before=fault), ask)
    (trace,) = asyncio.run(runner.run_all("h", requests(fakes, 1, 1)))
    assert (trace.end, trace.verdict.reward) == (EndReason.INFRASTRUCTURE, None)
    assert "KeyError" in trace.error
    assert (len(workers[0].episodes), len(caplog.records)) == (3, 3)


def test_an_unscored_verdict_is_asked_for_again(fakes: SimpleNamespace) -> None:
    down = Verdict(None, "yes", "judge down")
    domain = fakes.Domain(verdicts=[down, down])
    runner, workers = fakes.runner(fakes.driver(GOOD), ask, domain)
    (trace,) = asyncio.run(runner.run_all("h", requests(fakes, 1, 1)))
    assert (trace.verdict.reward, len(domain.asked), len(workers[0].episodes)) == (1, 3, 1)
    domain = fakes.Domain(verdicts=[down] * 3)
    runner, _ = fakes.runner(fakes.driver(GOOD), ask, domain)
    (trace,) = asyncio.run(runner.run_all("h", requests(fakes, 1, 1)))
    assert (trace.verdict.reward, trace.end) == (None, EndReason.ANSWERED)


def stuck_domain(fakes: SimpleNamespace, wall_seconds: float = 0.01):
    return fakes.Domain(budgets=Budgets(assistant_tokens=200, turns=4, tool_calls=3, wall_seconds=wall_seconds))


def test_H184_H189_a_stuck_engine_call_is_given_up_and_cancelled(fakes: SimpleNamespace) -> None:
    async def stuck(session) -> None:
        if len(driver.sessions) == 2:
            await asyncio.Event().wait()

    driver = fakes.driver(*[GOOD] * 3, before=stuck)
    limits = {"attempts": 1, "grace_seconds": 0.5}
    runner, _ = fakes.runner(driver, ask, stuck_domain(fakes), concurrency=1, limits=limits)
    traces = asyncio.run(runner.run_all("h", requests(fakes, 1, 3)))
    assert [trace.verdict.reward for trace in traces] == [1, None, 1]
    assert traces[1].end is EndReason.INFRASTRUCTURE
    assert (driver.in_flight, all(session.closed for session in driver.sessions)) == (0, True)


def test_a_timeout_is_the_harness_s_only_if_it_took_the_time(fakes: SimpleNamespace) -> None:
    async def timed_out(host, task, seed) -> int:
        raise EpisodeEnded(EndReason.TIMEOUT, "time is up")

    runner, _ = fakes.runner(fakes.driver(), timed_out)
    (trace,) = asyncio.run(runner.run_all("h", requests(fakes, 1, 1)))
    assert (trace.end, trace.verdict.reward, trace.error) == (EndReason.TIMEOUT, 0, "time is up")
    runner, workers = fakes.runner(fakes.driver(), timed_out, stuck_domain(fakes, 1e-9))  # all of it was the host's
    (trace,) = asyncio.run(runner.run_all("h", requests(fakes, 1, 1)))
    assert (trace.end, trace.verdict.reward, len(workers[0].episodes)) == (EndReason.INFRASTRUCTURE, None, 3)


def test_H187_a_teardown_that_never_ends_holds_nothing_up(fakes: SimpleNamespace) -> None:
    release = asyncio.Event()

    async def ignore_cancellation(host, task, seed) -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    async def run():
        limits = {"attempts": 1, "grace_seconds": 0.05}
        runner, _ = fakes.runner(fakes.driver(), ignore_cancellation, stuck_domain(fakes), limits=limits)
        traces = await runner.run_all("h", requests(fakes, 1, 2))
        release.set()
        return traces

    assert [trace.verdict.reward for trace in asyncio.run(run())] == [None, None]


def test_H187_a_verifier_that_hangs_is_missing_data(fakes: SimpleNamespace) -> None:
    release = threading.Event()

    class Hangs(fakes.Domain):
        def verify(self, task, answer_text, *, protocol="honest"):
            release.wait()
            return Verdict(1, "yes", "late")

    async def run():
        limits = {"attempts": 1, "grace_seconds": 0.05}
        domain = Hangs(budgets=stuck_domain(fakes).budgets)
        runner, _ = fakes.runner(fakes.driver(GOOD), ask, domain, limits=limits)
        traces = await runner.run_all("h", requests(fakes, 1, 1))
        release.set()
        return traces

    (trace,) = asyncio.run(run())
    assert (trace.end, trace.verdict.reward) == (EndReason.INFRASTRUCTURE, None)


def test_H192_a_late_first_attempt_changes_nothing(fakes: SimpleNamespace) -> None:
    """The first attempt answers after the second has started: one result, from the second, untouched afterwards."""
    late = asyncio.Event()

    async def harness(host, task, seed) -> int:
        chat = await host.open_chat(None, [])
        if len(driver.sessions) == 1:
            try:
                await late.wait()
            except asyncio.CancelledError:
                await late.wait()
        reply = await host.reply(chat, None)
        return reply["id"]

    driver = fakes.driver(GOOD, GOOD)

    async def run():
        runner, _ = fakes.runner(driver, harness, stuck_domain(fakes), limits={"attempts": 2, "grace_seconds": 0.5})
        traces = await runner.run_all("h", requests(fakes, 1, 1))
        late.set()
        await asyncio.sleep(0)
        return traces

    (trace,) = asyncio.run(run())
    assert (trace.verdict.reward, trace.effort.attempts, len(driver.replies)) == (1, 2, 1)
    assert list(trace.chats[0].ids) == driver.sessions[1].ids


def test_H202_an_episode_that_never_started_took_no_harness_time(fakes: SimpleNamespace) -> None:
    async def never(host, task, seed) -> int:
        raise RuntimeError("before anything")

    runner, _ = fakes.runner(fakes.driver(), never, limits={"attempts": 1})
    (trace,) = asyncio.run(runner.run_all("h", requests(fakes, 1, 1)))
    assert (trace.effort.harness_seconds, trace.chats) == (0.0, ())


def test_leaving_early_cancels_what_is_in_flight(fakes: SimpleNamespace) -> None:
    gate = asyncio.Event()

    async def wait(session) -> None:
        if len(driver.sessions) > 1:
            await gate.wait()

    driver = fakes.driver(*[GOOD] * 6, before=wait)

    async def run():
        runner, workers = fakes.runner(driver, ask, concurrency=3)
        stream = runner.run("h", requests(fakes, 1, 6))
        first = await anext(stream)
        await stream.aclose()
        await runner.close()
        return first, workers

    first, workers = asyncio.run(run())
    assert first.verdict.reward == 1
    assert (driver.in_flight, workers[0].closed) == (0, True)
    assert all(session.closed for session in driver.sessions)


def test_a_harness_that_does_not_load_breaks_its_own_episodes_alone(fakes: SimpleNamespace) -> None:
    starts = []
    runner, _ = fakes.runner(fakes.driver(), ask)
    others = runner._workers._start

    async def start(source: str):
        if source != "h":
            return await others(source)
        starts.append(source)
        raise HarnessError("no run")

    async def both():
        return await asyncio.gather(*(runner.run_all(source, requests(fakes)) for source in ("h", "other")))

    runner._workers._start = start
    broken, whole = asyncio.run(both())
    assert {(trace.end, trace.verdict.reward, trace.error) for trace in broken} == {
        (EndReason.HARNESS_ERROR, 0, "no run")
    }
    assert len(starts) == runner._limits.attempts < len(broken), "it is tried a few times, not once per episode"
    alone, _ = fakes.runner(fakes.driver(), ask)
    expected = asyncio.run(alone.run_all("other", requests(fakes)))
    assert [(trace.end, trace.verdict) for trace in whole] == [(trace.end, trace.verdict) for trace in expected]


def test_a_sandbox_that_is_slow_once_is_started_again(fakes: SimpleNamespace) -> None:
    starts = []

    async def start(source: str):
        starts.append(source)
        if len(starts) % 3:
            raise SandboxUnavailable("did not come up")
        return fakes.Worker(ask)

    runner, _ = fakes.runner(fakes.driver(*[GOOD] * 4), ask)
    runner._workers._start = start
    assert len(asyncio.run(runner.run_all("h", requests(fakes, 2, 2)))) == 4
    assert len(starts) == 3
    runner, _ = fakes.runner(fakes.driver(GOOD), ask, limits={"attempts": 2})
    runner._workers._start = start
    with pytest.raises(SandboxUnavailable):
        asyncio.run(runner.run_all("h", requests(fakes, 1, 1)))


def test_workers_are_shared_and_the_oldest_idle_ones_closed(fakes: SimpleNamespace) -> None:
    async def run():
        runner, workers = fakes.runner(fakes.driver(), ask, limits={"idle_workers": 2})
        for source in ("a", "b", "a", "c"):
            await runner.run_all(source, requests(fakes, 2, 1))
        closed = [worker.closed for worker in workers]
        await runner.close()
        return closed, workers

    closed, workers = asyncio.run(run())
    assert closed == [False, True, False]
    assert all(worker.closed for worker in workers)


def test_no_requests_no_worker(fakes: SimpleNamespace) -> None:
    runner, workers = fakes.runner(fakes.driver(), ask)
    assert (asyncio.run(runner.run_all("h", [])), workers) == ([], [])
