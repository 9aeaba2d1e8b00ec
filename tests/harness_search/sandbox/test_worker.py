"""What the worker promises a harness that behaves, and the host that serves it."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from harness_search.contract import (
    Budgets,
    CallRefused,
    EndReason,
    EpisodeEnded,
    HarnessError,
    ReplyData,
    ReplyRef,
    TaskView,
)
from harness_search.sandbox.backends import Backend
from harness_search.sandbox.limits import Limits
from harness_search.sandbox.scripted import ScriptedHost
from harness_search.sandbox.worker import EpisodeOutcome, HarnessWorker

BUDGETS = Budgets(assistant_tokens=100, turns=8, tool_calls=8, wall_seconds=60.0)
TOOL = {"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}


def run(source: str, backend: Backend, *hosts: ScriptedHost, **inputs: Any) -> list[EpisodeOutcome]:
    """One episode per host, all at the same time, in one worker."""

    async def main() -> list[EpisodeOutcome]:
        async with await HarnessWorker.start(source, backend=backend) as worker:
            return await asyncio.gather(
                *(
                    worker.run_episode(
                        episode_id=str(index), task=TaskView("t", inputs), budgets=BUDGETS, seed=index, host=host
                    )
                    for index, host in enumerate(hosts)
                )
            )

    return asyncio.run(main())


def body(text: str) -> str:
    lines = "\n".join(f"    {line}" for line in text.strip().splitlines())
    return f"import asyncio, json, random, re\n\nasync def run(task, model, env):\n{lines}\n"


def test_an_episode_reaches_the_host_in_the_order_the_harness_wrote_it(backend: Backend) -> None:
    source = f"TOOLS = {[TOOL]!r}\nUSER_PROMPT = 'Q: {{question}}'\n" + body("""
chat = model.chat(system="Be brief.", tools=TOOLS)
chat.user(USER_PROMPT.format(question=task.question))
reply = await chat.reply()
found = await env.search([reply.text], topk=3)
assert isinstance(found, str) and found.text == str(found) == "3 for first", found
chat.tool(found)
chat.tool(found + "!")
chat.tool(found[:])
return await chat.reply(max_tokens=5)
""")
    host = ScriptedHost(["first", "second"], lambda name, args, kwargs: f"{kwargs['topk']} for {args[0][0]}")
    (outcome,) = run(source, backend, host, question="Why é \0 漢?")
    assert (outcome.end, outcome.reply, outcome.error) == (None, 1, None)
    assert outcome.harness_seconds > 0
    assert host.log == [
        ("open", 0, "Be brief.", [TOOL]),
        ("append", 0, "user", "Q: Why é \0 漢?", None),
        ("reply", 0),
        ("env", "search", [["first"]], {"topk": 3}),
        ("append", 0, "tool", "3 for first", 0),  # passed on unedited: it keeps its provenance
        ("append", 0, "tool", "3 for first!", None),
        ("append", 0, "tool", "3 for first", None),
        ("reply", 0),
    ]


def test_a_reply_carries_what_the_host_said(any_backend: Backend) -> None:
    source = body("""
chat = model.chat()
reply = await chat.reply(max_tokens=2)
assert (reply.finish, reply.thinking, reply.text) == ("length", "some thought", ""), reply
assert (reply.remaining.tokens, reply.remaining.turns, reply.remaining.tool_calls) == (8190, 15, 16)
reply = await chat.extend_reply(" </think>", max_tokens=50)
assert reply.text == "the answer", reply
assert [(call.name, call.arguments) for call in reply.tool_calls] == [("f", {"x": 1})]
assert await model.count_tokens("one two three") == 3
assert model.budgets.turns == 8
other = model.chat()
other.add(reply)
return await chat.reply()
""")
    host = ScriptedHost(
        ["<think>some thought more", "the answer", "done"],
        parse_calls=lambda text: [{"name": "f", "arguments": {"x": 1}}],
    )
    (outcome,) = run(source, any_backend, host)
    assert (outcome.end, outcome.error) == (None, None)


def test_chats_may_be_sampled_at_the_same_time(any_backend: Backend) -> None:
    source = body("""
chats = [model.chat(system=str(i)) for i in range(40)]
replies = await asyncio.gather(*(chat.reply() for chat in chats))
return replies[7]
""")
    host = ScriptedHost(["x"], budgets=Budgets(1000, 100, 0, 60.0))
    (outcome,) = run(source, any_backend, host)
    assert outcome.end is None
    assert [entry[2] for entry in host.log if entry[0] == "open"] == [str(i) for i in range(40)]


def test_a_reply_crosses_to_the_environment_as_a_reference(any_backend: Backend) -> None:
    source = body("""
reply = await model.chat().reply()
await env.play(reply, move={"$reply": 7})
return reply
""")
    host = ScriptedHost(["e2e4"], lambda name, args, kwargs: "ok")
    (outcome,) = run(source, any_backend, host)
    assert outcome.end is None
    assert host.log[-1] == ("env", "play", [ReplyRef(0)], {"move": {"$reply": 7}})


def test_a_refused_call_is_a_value_error_the_harness_may_handle(any_backend: Backend) -> None:
    source = body("""
try:
    await env.fly()
except ValueError as error:
    chat = model.chat()
    chat.user(str(error))
    return await chat.reply()
""")
    host = ScriptedHost(["x"])
    (outcome,) = run(source, any_backend, host)
    assert outcome.end is None
    assert host.log[-2] == ("append", 0, "user", "env has no 'fly'", None)


def test_the_seed_decides_random_and_set_order_is_fixed(any_backend: Backend) -> None:
    source = body("""
chat = model.chat()
chat.user(f"{random.random()} {list({'a', 'b', 'c', 'd', 'e', 'f'})} {hash('x')}")
return await chat.reply()
""")

    def texts() -> list[str]:
        hosts = [ScriptedHost(["x"]) for _ in range(2)]
        run(source, any_backend, *hosts)
        return [host.log[1][3] for host in hosts]

    first, second = texts(), texts()
    assert first == second
    assert first[0].split()[0] != first[1].split()[0]
    assert first[0].split()[1:] == first[1].split()[1:]


ENDS: dict[str, tuple[Budgets, EndReason]] = {
    "turns": (Budgets(100, 2, 8, 60.0), EndReason.TURN_BUDGET),
    "tokens": (Budgets(3, 8, 8, 60.0), EndReason.TOKEN_BUDGET),
    "tool calls": (Budgets(100, 8, 1, 60.0), EndReason.TOOL_BUDGET),
}


@pytest.mark.parametrize(("budgets", "end"), ENDS.values(), ids=ENDS.keys())
def test_a_spent_budget_ends_the_episode_whatever_the_harness_does(
    any_backend: Backend, budgets: Budgets, end: EndReason
) -> None:
    source = body("""
chat = model.chat()
while True:
    try:
        await chat.reply()
        await env.search("x")
    except BaseException:
        pass
""")
    host = ScriptedHost(["one two"], lambda name, args, kwargs: "found", budgets=budgets)
    (outcome,) = run(source, any_backend, host)
    assert (outcome.end, outcome.reply) == (end, None)


class _Host(ScriptedHost):
    """Answers `reply` with what the test wants."""

    def __init__(self, sample: Callable[[], Coroutine[Any, Any, ReplyData]]) -> None:
        super().__init__(["x"])
        self.sample = sample

    async def reply(self, chat: int, max_tokens: int | None) -> ReplyData:
        return await self.sample()


def test_h186_a_fault_of_one_episodes_host_is_raised_and_its_neighbours_go_on(any_backend: Backend) -> None:
    async def broken() -> ReplyData:
        raise LookupError("the engine lost the slot")

    async def main() -> list[EpisodeOutcome | BaseException]:
        source = body("return await model.chat().reply()")
        async with await HarnessWorker.start(source, backend=any_backend) as worker:
            hosts = [ScriptedHost(["x"]), _Host(broken), ScriptedHost(["x"])]
            return await asyncio.gather(
                *(
                    worker.run_episode(episode_id="e", task=TaskView("t", {}), budgets=BUDGETS, seed=0, host=host)
                    for host in hosts
                ),
                return_exceptions=True,
            )

    first, second, third = asyncio.run(main())
    assert isinstance(second, LookupError)
    assert isinstance(first, EpisodeOutcome)
    assert isinstance(third, EpisodeOutcome)
    assert (first.end, third.end) == (None, None)


def test_h189_cancelling_an_episode_cancels_its_call_at_the_host(any_backend: Backend) -> None:
    async def main() -> tuple[bool, EpisodeOutcome]:
        started, cancelled = asyncio.Event(), asyncio.Event()

        async def stuck() -> ReplyData:
            started.set()
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                cancelled.set()
            raise AssertionError

        def episode(host: ScriptedHost) -> Coroutine[Any, Any, EpisodeOutcome]:
            return worker.run_episode(episode_id="e", task=TaskView("t", {}), budgets=BUDGETS, seed=0, host=host)

        source = body("return await model.chat().reply()")
        async with await HarnessWorker.start(source, backend=any_backend) as worker:
            running = asyncio.create_task(episode(_Host(stuck)))
            await started.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            return cancelled.is_set(), await episode(ScriptedHost(["x"]))

    cancelled, after = asyncio.run(main())
    assert cancelled
    assert after.end is None


def test_h184_a_stuck_host_call_is_cut_by_the_wall_clock(any_backend: Backend) -> None:
    async def stuck() -> ReplyData:
        return await asyncio.get_running_loop().create_future()

    async def main() -> EpisodeOutcome:
        source = body("return await model.chat().reply()")
        budgets = Budgets(100, 8, 8, wall_seconds=0.2)
        async with await HarnessWorker.start(source, backend=any_backend) as worker:
            return await worker.run_episode(
                episode_id="e", task=TaskView("t", {}), budgets=budgets, seed=0, host=_Host(stuck)
            )

    assert asyncio.run(main()).end is EndReason.TIMEOUT


def test_a_host_may_end_the_episode_from_any_call(any_backend: Backend) -> None:
    class Ending(ScriptedHost):
        async def append(self, chat: int, kind: Any, content: str | int, handle: int | None) -> None:
            raise EpisodeEnded(EndReason.FORMAT, "not like this")

    source = body("chat = model.chat()\nchat.user('x')\nreturn await chat.reply()")
    (outcome,) = run(source, any_backend, Ending(["x"]))
    assert (outcome.end, outcome.error) == (EndReason.FORMAT, "not like this")


def test_a_refused_append_is_heard_at_the_next_call(any_backend: Backend) -> None:
    class Refusing(ScriptedHost):
        async def append(self, chat: int, kind: Any, content: str | int, handle: int | None) -> None:
            raise CallRefused("the window is full")

    source = body("chat = model.chat()\nchat.user('x')\nreturn await chat.reply()")
    (outcome,) = run(source, any_backend, Refusing(["x"]))
    assert outcome.end is EndReason.HARNESS_ERROR
    assert "ValueError: the window is full" in (outcome.error or "")


def test_a_dead_sandbox_is_infrastructure_and_the_next_episode_gets_a_new_one(backend: Backend) -> None:
    async def main() -> tuple[EpisodeOutcome, EpisodeOutcome]:
        async def kill() -> ReplyData:
            worker._server._process.kill()
            return await asyncio.get_running_loop().create_future()

        def episode(host: ScriptedHost) -> Coroutine[Any, Any, EpisodeOutcome]:
            return worker.run_episode(episode_id="e", task=TaskView("t", {}), budgets=BUDGETS, seed=0, host=host)

        source = body("return await model.chat().reply()")
        async with await HarnessWorker.start(source, backend=backend) as worker:
            return await episode(_Host(kill)), await episode(ScriptedHost(["x"]))

    died, after = asyncio.run(main())
    assert died.end is EndReason.INFRASTRUCTURE
    assert after.end is None


LOADS_BADLY = {
    "J226 broken contract": ("x = 1\n", "exactly once"),
    "raises": ("1 / 0\n" + body("pass"), "ZeroDivisionError"),
    "run is a generator": (body("yield 1"), "coroutine function"),
    "run is replaced": (body("pass") + "run = 3\n", "coroutine function"),
    "exits": ("raise SystemExit(0)\n" + body("pass"), "SystemExit"),
    "J224 never finishes": ("while True: pass\n" + body("pass"), "does not load within"),
    "imports by another way": ("__import__('os')\n" + body("pass"), "'os' may not be imported"),
    "does not compile": (body("pass") + "return 1\n", "outside function"),
}


@pytest.mark.parametrize(("source", "message"), LOADS_BADLY.values(), ids=LOADS_BADLY.keys())
def test_a_file_that_does_not_load_is_refused_with_its_reason(any_backend: Backend, source: str, message: str) -> None:
    async def main() -> None:
        limits = Limits(load_seconds=3.0)
        async with await HarnessWorker.start(source, backend=any_backend, limits=limits):
            raise AssertionError("it started")

    with pytest.raises(HarnessError, match=message):
        asyncio.run(main())
