"""WORKSPACE.md keeps its word: the example runs, the lists are those of the code."""

import asyncio
import re
from pathlib import Path

import pytest

import harness_search
from harness_search.contract import ALLOWED_MODULES, MAX_SOURCE_BYTES, Budgets, EndReason, TaskView, check_source
from harness_search.sandbox.backends import Backend
from harness_search.sandbox.limits import DEFAULT_LIMITS, MIB
from harness_search.sandbox.scripted import ScriptedHost
from harness_search.sandbox.worker import EpisodeOutcome, HarnessWorker

PATH = Path(harness_search.__file__).parent.parent / "WORKSPACE.md"


@pytest.fixture(scope="module")
def manual() -> str:
    return PATH.read_text("utf-8")


def test_the_example_obeys_the_contract_and_answers(manual: str, any_backend: Backend) -> None:
    (source,) = re.findall(r"```python\n(.*?)```", manual, re.DOTALL)
    assert check_source(source) == []
    replies = [
        '<think>where</think>call {"query_list": ["Bergama country"]}',
        "<think>so</think>Turkey",
        "<think>oh</think><answer>Turkey</answer>",
    ]
    host = ScriptedHost(
        replies,
        lambda name, args, kwargs: f"Doc 1: {args[0][0]} {kwargs['topk']}",
        parse_calls=lambda text: (
            [{"name": "search", "arguments": {"query_list": ["Bergama country"]}}] if text.startswith("call") else []
        ),
    )

    async def main() -> EpisodeOutcome:
        async with await HarnessWorker.start(source, backend=any_backend) as worker:
            return await worker.run_episode(
                episode_id="manual",
                task=TaskView("t", {"question": "In which country is Bergama?"}),
                budgets=Budgets(100, 8, 8, 60.0),
                seed=0,
                host=host,
            )

    outcome = asyncio.run(main())
    assert (outcome.end, outcome.reply, outcome.error) == (None, 2, None)
    assert ("append", 0, "tool", "Doc 1: Bergama country 3", 0) in host.log


def test_it_lists_the_modules_that_may_be_imported(manual: str) -> None:
    section = manual.partition("### Imports")[2].partition("There are no files")[0]
    assert set(re.findall(r"`(\w+)`", section)) == ALLOWED_MODULES


def test_it_lists_every_end_reason(manual: str) -> None:
    section = manual.partition("## How an episode ends")[2].partition("## Rules")[0]
    assert set(re.findall(r"`(\w+)`", re.sub(r"\|[^|]*\|\n", "|\n", section))) >= set(EndReason)


def test_it_states_the_limits_in_force(manual: str) -> None:
    limits = DEFAULT_LIMITS
    for text in (
        f"{MAX_SOURCE_BYTES // 1024} KiB",
        f"{limits.memory_bytes // MIB} MiB",
        f"({limits.cpu_seconds} s)",
        f"{limits.max_bytes // MIB} MiB",
        f"{limits.max_messages:,} messages",
    ):
        assert text in manual
