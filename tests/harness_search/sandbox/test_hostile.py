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
from tests.harness_search.sandbox.hostile_harnesses import HOSTILE

pytestmark = pytest.mark.slow


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
    """Case H194 among them: a loop that takes memory ends with its process, not in a thread of the host."""
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
