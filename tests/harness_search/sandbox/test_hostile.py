"""Harnesses that mean harm or are badly broken: each ends its own episode with the right reason, and no other.

All of them live in one file and run in one worker at the same time, with well-behaved neighbours among them.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from harness_search.contract import Budgets, EndReason, TaskView
from harness_search.sandbox.backends import Backend
from harness_search.sandbox.limits import MIB, Limits
from harness_search.sandbox.scripted import ScriptedHost
from harness_search.sandbox.worker import EpisodeOutcome, HarnessWorker

pytestmark = pytest.mark.slow

HOSTILE = '''
import asyncio, json, random, struct, time

os = random._os
socket = asyncio.base_events.socket


def raw(env, payload):
    """Writes to the pipe past the runtime."""
    data = struct.pack("!I", len(payload)) + payload
    while data:
        try:
            data = data[env._channel._sock.send(data):]
        except BlockingIOError:
            pass


def forge(env, **message):
    raw(env, json.dumps(message).encode())


async def silence():
    await asyncio.get_running_loop().create_future()


async def good(model, env):
    chat = model.chat()
    chat.user("hello")
    await chat.reply()
    chat.tool(await env.search("x"))
    return await chat.reply()


async def hangs(model, env):
    await silence()

async def sleeps_in_the_loop(model, env):
    time.sleep(3600)

async def loops(model, env):
    while True:
        pass

async def swallows_everything(model, env):
    while True:
        try:
            await asyncio.sleep(1)
        except BaseException:
            pass

async def raises(model, env):
    return {}["missing"]

async def exits(model, env):
    raise SystemExit(0)

async def leaves_at_once(model, env):
    os._exit(0)

async def aborts(model, env):
    os.abort()

async def crashes_natively(model, env):
    for kind in object.__subclasses__():
        if kind.__name__ == "CDLL":
            kind.__init__.__globals__["memset"](0, 0, 1)

async def takes_memory(model, env):
    kept = []
    while True:
        kept.append(bytearray(1 << 24))

async def recurses(model, env):
    def deeper(n):
        return deeper(n + 1) + 1
    return deeper(0)

async def raises_the_unprintable(model, env):
    class Evil(BaseException):
        def __str__(self):
            raise Evil()
    raise Evil()

async def raises_a_long_message(model, env):
    raise ValueError("x" * 10_000_000)

async def prints_without_end(model, env):
    for _ in range(20_000):
        print("x" * 1000)
    return await good(model, env)

async def floods_with_calls(model, env):
    while True:
        await model.count_tokens("x")

async def floods_with_operations(model, env):
    chat = model.chat()
    for _ in range(100_000):
        chat.user("x")
    return await chat.reply()

async def floods_with_bytes(model, env):
    while True:
        await model.count_tokens("x" * 1_000_000)

async def sends_garbage(model, env):
    raw(env, b"\\xff\\xfe garbage")
    await silence()

async def sends_no_object(model, env):
    raw(env, b"[1, 2]")
    await silence()

async def announces_a_huge_message(model, env):
    env._channel._sock.send(b"\\xff\\xff\\xff\\xff")
    await silence()

async def sends_huge_json(model, env):
    raw(env, b'{"id": 0, "ops": [], "call": ["count_tokens", "' + b"x" * (5 << 20) + b'"]}')
    await silence()

async def sends_deep_json(model, env):
    raw(env, b'{"id": 0, "ops": [], "call": ' + b"[" * 200_000 + b"]" * 200_000 + b"}")
    await silence()

async def sends_rather_deep_json(model, env):
    raw(env, b'{"id": 0, "ops": [], "call": ' + b"[" * 100 + b"]" * 100 + b"}")
    await silence()

async def sends_nan(model, env):
    raw(env, b'{"id": 0, "ops": [], "call": ["env", "search", [{"$value": NaN}], {}]}')
    await silence()

async def sends_a_huge_integer(model, env):
    raw(env, b'{"id": 0, "ops": [], "call": ["env", "search", [{"$value": ' + b"9" * 100_000 + b'}], {}]}')
    await silence()

async def sends_a_surrogate(model, env):
    raw(env, b'{"id": 0, "ops": [], "call": ["count_tokens", "\\\\ud800"]}')
    await silence()

async def writes_a_surrogate(model, env):
    model.chat().user("\\ud800")

async def writes_a_nul(model, env):
    chat = model.chat()
    chat.user("a\\0b")
    return await chat.reply()

async def passes_what_is_no_json(model, env):
    return await env.search(object())

async def passes_a_cycle(model, env):
    a = []
    a.append(a)
    return await env.search(a)

async def calls_the_unknown(model, env):
    forge(env, id=0, ops=[], call=["weights"])
    await silence()

async def calls_a_private_primitive(model, env):
    forge(env, id=0, ops=[], call=["env", "__class__", [], {}])
    await silence()

async def uses_an_unknown_chat(model, env):
    forge(env, id=0, ops=[], call=["reply", 5, None])
    await silence()

async def uses_a_negative_chat(model, env):
    forge(env, id=0, ops=[["open", 0, None, []]], call=["reply", -1, None])
    await silence()

async def uses_true_as_a_number(model, env):
    forge(env, id=True, ops=[["open", False, None, []]], call=["reply", False, True])
    await silence()

async def opens_chats_out_of_order(model, env):
    forge(env, id=0, ops=[["open", 7, None, []]], call=["reply", 7, None])
    await silence()

async def adds_a_foreign_reply(model, env):
    forge(env, id=0, ops=[["open", 0, None, []], ["append", 0, "reply", 99, None]], call=["reply", 0, None])
    await silence()

async def passes_a_foreign_result(model, env):
    forge(env, id=0, ops=[["open", 0, None, []], ["append", 0, "tool", None, 99]], call=["reply", 0, None])
    await silence()

async def plays_a_foreign_reply(model, env):
    forge(env, id=0, ops=[], call=["env", "play", [{"$reply": 99}], {}])
    await silence()

async def asks_for_negative_tokens(model, env):
    forge(env, id=0, ops=[["open", 0, None, []]], call=["reply", 0, -1])
    await silence()

async def samples_one_chat_twice_at_once(model, env):
    chat = model.chat()
    await asyncio.gather(chat.reply(), chat.reply())

async def forges_a_second_call_on_a_busy_chat(model, env):
    forge(env, id=0, ops=[["open", 0, None, []]], call=["reply", 0, None])
    forge(env, id=1, ops=[], call=["reply", 0, None])
    await silence()

async def calls_a_thousand_times_at_once(model, env):
    for number in range(1000):
        forge(env, id=number, ops=[], call=["env", "slow", [], {}])
    await silence()

async def returns_a_string(model, env):
    return "<answer>42</answer>"

async def returns_nothing(model, env):
    await good(model, env)

async def returns_a_forged_reply(model, env):
    reply = await model.chat().reply()
    object.__setattr__(reply, "_id", 99)
    return reply

async def returns_an_unhashable_id(model, env):
    reply = await model.chat().reply()
    object.__setattr__(reply, "_id", [1])
    return reply

async def forges_the_end(model, env):
    forge(env, done=0)
    await silence()

async def returns_an_earlier_reply(model, env):
    chat = model.chat()
    first = await chat.reply()
    await chat.reply()
    return first

async def closes_the_pipe_and_goes_on(model, env):
    os.close(env._channel._sock.fileno())
    while True:
        pass

async def forks_without_end(model, env):
    while True:
        os.fork()

async def starts_a_thread(model, env):
    asyncio.base_events.threading._start_new_thread(print, ())

async def uses_the_executor(model, env):
    await asyncio.to_thread(print)

async def starts_a_program(model, env):
    await asyncio.create_subprocess_exec("/bin/sh", "-c", "sleep 1000")

async def becomes_a_daemon(model, env):
    if os.fork() == 0:
        os.setsid()

async def reads_a_file(model, env):
    os.open("/etc/passwd", os.O_RDONLY)

async def reads_through_ast(model, env):
    import tokenize
    tokenize.open("/etc/passwd")

async def writes_a_file(model, env):
    os.open("/tmp/x", os.O_WRONLY | os.O_CREAT)

async def opens_a_connection(model, env):
    await asyncio.open_connection("127.0.0.1", 80)

async def resolves_a_name(model, env):
    socket.getaddrinfo("metadata.google.internal", 80)

async def duplicates_descriptors(model, env):
    while True:
        os.dup(env._channel._sock.fileno())

async def kills_its_parent(model, env):
    os.kill(os.getppid(), 9)

async def imports_what_is_not_listed(model, env):
    __import__("subprocess")

async def imports_what_is_not_loaded(model, env):
    __import__("json.tool")

async def opens_by_builtin(model, env):
    open("/etc/passwd")

async def bombs_at_the_end(model, env):
    class Bomb:
        def __del__(self):
            while True:
                pass
    global kept
    kept = Bomb()
    return await good(model, env)

async def patches_the_runtime(model, env):
    type(env._channel).call = None
    json.dumps = None
    return await good(model, env)

async def leaves_a_mark(model, env):
    assert not hasattr(json, "mark")
    json.mark = True
    return await good(model, env)


async def run(task, model, env):
    return await globals()[task.how](model, env)
'''


@dataclass(frozen=True)
class Ends:
    end: EndReason | None
    says: str = ""


ERROR, TIMEOUT, INVALID = EndReason.HARNESS_ERROR, EndReason.TIMEOUT, EndReason.INVALID_RETURN
BREACH = Ends(ERROR, "broke the worker protocol")
DENIED = Ends(ERROR, "Operation not permitted")

CASES = {
    "hangs": Ends(TIMEOUT),
    "sleeps_in_the_loop": Ends(TIMEOUT),
    "loops": Ends(TIMEOUT),
    "swallows_everything": Ends(TIMEOUT),
    "raises": Ends(ERROR, 'return {}["missing"]'),
    "exits": Ends(ERROR, "SystemExit"),
    "leaves_at_once": Ends(ERROR, "exited with status 0"),
    "aborts": Ends(ERROR, "killed by"),
    "crashes_natively": Ends(ERROR, "killed by Segmentation fault"),
    "takes_memory": Ends(ERROR, "MemoryError"),
    "recurses": Ends(ERROR, "RecursionError"),
    "raises_the_unprintable": Ends(ERROR),
    "raises_a_long_message": Ends(ERROR, "xxx"),
    "prints_without_end": Ends(None),
    "floods_with_calls": Ends(ERROR, "flood"),
    "floods_with_operations": Ends(ERROR),
    "floods_with_bytes": Ends(ERROR, "flood"),
    "sends_garbage": BREACH,
    "sends_no_object": BREACH,
    "announces_a_huge_message": BREACH,
    "sends_huge_json": BREACH,
    "sends_deep_json": BREACH,
    "sends_rather_deep_json": BREACH,
    "sends_nan": BREACH,
    "sends_a_huge_integer": BREACH,
    "sends_a_surrogate": BREACH,
    "writes_a_surrogate": Ends(ERROR, "lone surrogate"),
    "writes_a_nul": Ends(None),
    "passes_what_is_no_json": Ends(ERROR, "TypeError"),
    "passes_a_cycle": Ends(ERROR, "Circular"),
    "calls_the_unknown": BREACH,
    "calls_a_private_primitive": BREACH,
    "uses_an_unknown_chat": BREACH,
    "uses_a_negative_chat": BREACH,
    "uses_true_as_a_number": BREACH,
    "opens_chats_out_of_order": BREACH,
    "adds_a_foreign_reply": BREACH,
    "passes_a_foreign_result": BREACH,
    "plays_a_foreign_reply": BREACH,
    "asks_for_negative_tokens": BREACH,
    "samples_one_chat_twice_at_once": Ends(ERROR, "waiting for a reply"),
    "forges_a_second_call_on_a_busy_chat": BREACH,
    "calls_a_thousand_times_at_once": BREACH,
    "returns_a_string": Ends(INVALID, "returned str"),
    "returns_nothing": Ends(INVALID, "NoneType"),
    "returns_a_forged_reply": Ends(INVALID, "not of this episode"),
    "returns_an_unhashable_id": Ends(INVALID),
    "forges_the_end": Ends(INVALID, "not of this episode"),
    "returns_an_earlier_reply": Ends(INVALID, "not the last"),
    "closes_the_pipe_and_goes_on": Ends(ERROR, "closed its pipe"),
    "forks_without_end": DENIED,
    "starts_a_thread": Ends(ERROR, "can't start new thread"),
    "uses_the_executor": Ends(ERROR, "can't start new thread"),
    "starts_a_program": Ends(ERROR),
    "becomes_a_daemon": DENIED,
    "reads_a_file": DENIED,
    "reads_through_ast": DENIED,
    "writes_a_file": DENIED,
    "opens_a_connection": Ends(ERROR),
    "resolves_a_name": Ends(ERROR),
    "duplicates_descriptors": DENIED,
    "kills_its_parent": DENIED,
    "imports_what_is_not_listed": Ends(ERROR, "may not be imported"),
    "imports_what_is_not_loaded": Ends(ERROR, "not available"),
    "opens_by_builtin": Ends(ERROR, "name 'open' is not defined"),
    "bombs_at_the_end": Ends(None),
    "patches_the_runtime": Ends(ERROR),
    "leaves_a_mark": Ends(None),
}
NEIGHBOURS = 12
TWICE = ("leaves_a_mark",)


class SlowHost(ScriptedHost):
    """Its `slow` primitive answers when the episode is over, that is never."""

    async def env(self, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if name == "slow":
            return await asyncio.get_running_loop().create_future()
        return await super().env(name, args, kwargs)

    async def reply(self, chat: int, max_tokens: int | None) -> Any:
        await asyncio.sleep(0)
        return await super().reply(chat, max_tokens)


@pytest.fixture(scope="module")
def outcomes(backend: Backend) -> dict[str, EpisodeOutcome]:
    """Every hostile episode and the neighbours, a few at a time and interleaved, in one worker."""
    names = list(CASES)
    for index in range(NEIGHBOURS):
        names.insert(index * len(names) // NEIGHBOURS, f"good {index}")
    names += [f"{name} again" for name in TWICE]

    async def main() -> dict[str, EpisodeOutcome]:
        slots = asyncio.Semaphore(12)
        limits = Limits(memory_bytes=300 * MIB, max_messages=3000, max_bytes=16 * MIB)
        async with await HarnessWorker.start(HOSTILE, backend=backend, limits=limits) as worker:

            async def episode(name: str) -> EpisodeOutcome:
                how = name.split()[0]
                wall_seconds = 1.0 if CASES.get(how, Ends(None)).end is TIMEOUT else 100.0
                async with slots:
                    return await worker.run_episode(
                        episode_id=name,
                        task=TaskView(name, {"how": how}),
                        budgets=Budgets(1000, 100, 100, wall_seconds),
                        seed=0,
                        host=SlowHost(["a reply"], lambda name, args, kwargs: "found"),
                    )

            return dict(zip(names, await asyncio.gather(*map(episode, names)), strict=True))

    return asyncio.run(main())


@pytest.mark.parametrize("name", CASES)
def test_a_hostile_harness_ends_its_own_episode(outcomes: dict[str, EpisodeOutcome], name: str) -> None:
    outcome, expected = outcomes[name], CASES[name]
    assert outcome.end is expected.end, outcome
    assert expected.says in (outcome.error or ""), outcome.error
    assert (outcome.reply is None) == (outcome.end is not None)
    assert len(outcome.error or "") <= 8000


def test_the_neighbours_notice_nothing(outcomes: dict[str, EpisodeOutcome]) -> None:
    good = [outcome for name, outcome in outcomes.items() if name.startswith("good")]
    assert len(good) == NEIGHBOURS
    assert {(outcome.end, outcome.reply, outcome.error) for outcome in good} == {(None, 1, None)}


def test_nothing_is_left_for_the_next_episode(outcomes: dict[str, EpisodeOutcome]) -> None:
    assert outcomes["leaves_a_mark again"].end is None, outcomes["leaves_a_mark again"]


def test_computing_time_is_limited_too(any_backend: Backend) -> None:
    async def main() -> EpisodeOutcome:
        limits = Limits(cpu_seconds=1)
        async with await HarnessWorker.start(HOSTILE, backend=any_backend, limits=limits) as worker:
            return await worker.run_episode(
                episode_id="e",
                task=TaskView("t", {"how": "loops"}),
                budgets=Budgets(1, 1, 1, wall_seconds=200.0),
                seed=0,
                host=ScriptedHost(["x"]),
            )

    outcome = asyncio.run(main())
    assert (outcome.end, outcome.error) == (TIMEOUT, "1 s of computing time are used up")
