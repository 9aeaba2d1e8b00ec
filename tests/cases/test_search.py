"""CASES.md, section j: harness search. The id of each test is the id of its case."""

import asyncio
import json
import os

import pytest

from harness_search import search
from harness_search.archive import Archive
from harness_search.contract import Budgets, EndReason, TaskView
from harness_search.paired import compare_scores
from harness_search.proposers.base import Proposal, ProposerUsage
from harness_search.records import SlotState
from harness_search.sandbox.backends import SandboxUnavailable, detect
from harness_search.sandbox.scripted import ScriptedHost
from harness_search.sandbox.worker import HarnessWorker
from harness_search.scoring import Outcome, ScoreTag
from harness_search.validate import SearchSpace, Validator

H0 = "async def run(task, model, env):\n    return await model.chat().reply()\n"
STUCK = "import re\nasync def run(task, model, env):\n    re.match('(a+)+$', 'a' * 60 + 'b')\n"
BUDGETS = Budgets(assistant_tokens=10, turns=2, tool_calls=0, wall_seconds=1.0)
TASKS = ("easy", "void", "hard")


@pytest.fixture(scope="module")
def backend():
    try:
        return detect("auto")
    except SandboxUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(autouse=True)
def no_sync(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def test_j224_a_candidate_stuck_in_native_code_is_ended_from_outside(backend):
    async def episode():
        async with await HarnessWorker.start(STUCK, backend=backend) as worker:
            return await worker.run_episode(
                episode_id="j224", task=TaskView("t", {}), budgets=BUDGETS, seed=0, host=ScriptedHost(["x"])
            )

    assert asyncio.run(episode()).end is EndReason.TIMEOUT


async def evaluate(arms, task_ids, seeds):
    """The verifier says that one task's data are void."""
    for arm in arms:
        for task in task_ids:
            reward = None if task == "void" else float(task == "easy" or "BETTER" in arm.source)
            yield Outcome(arm.id, task, 0, reward, "infrastructure" if reward is None else "answered", 1, 1, {})


class Writes:
    """Proposes the given sources, one iteration each."""

    name = "writes"

    def __init__(self, *sources):
        self.sources = sources
        self.errors = []

    async def propose(self, workspace, *, iteration, slots, seed):
        for path in sorted(workspace.directory.glob("candidates/*/verdict.json")):
            self.errors += json.loads(path.read_text())["errors"]
        yield Proposal(0, self.sources[iteration - 1], "000", "it helps")

    def usage(self, iteration):
        return ProposerUsage()


def run(directory, backend, proposer, iterations):
    validator = Validator(h0=H0, search_space=SearchSpace.FULL, backend=backend, scripted=None, harness_task_texts=())
    return asyncio.run(
        search.run(
            evaluate, archive=Archive(directory), incoming_source=H0, proposer=proposer, task_ids=TASKS, seeds=(0,),
            tag=ScoreTag("m", "t", "v", "s"), candidates=1, stop=lambda signals: signals.iteration >= iterations,
            validate=validator, on_commit=lambda record: None, seed=0, coverage_floor=0.5,
        )
    )  # fmt: skip


@pytest.mark.parametrize(
    ("source", "words"),
    [("async def run(:\n", "syntax error"), (H0 + "\nunknown.api()\n", "unknown"), ("import os\n" + H0, "os")],
    ids=["syntax", "unknown-api", "import"],
)
def test_j226_a_broken_candidate_has_no_score_and_its_error_reaches_the_next_proposal(tmp_path, backend, source, words):
    proposer = Writes(source, H0 + "\nX = 1\n")
    result = run(tmp_path, backend, proposer, 2)
    broken = Archive(tmp_path).candidates["001"]
    assert broken.score is None
    assert result.iterations[1].slots[0].state is SlotState.INVALID
    assert result.iterations[1].rollouts == 0
    assert any(words in error for error in proposer.errors)


def test_j227_a_void_episode_is_missing_data_for_every_candidate_alike(tmp_path, backend):
    run(tmp_path, backend, Writes(H0 + "\nBETTER = 1\n"), 1)
    before, after = (one.score for one in Archive(tmp_path).candidates.values())
    assert before.success_rate * 2 == 1  # one of the two tasks that have a reward; the void one is not a failure
    assert after.success_rate == 1
    assert [row.task_id for row in before.results] == [row.task_id for row in after.results] == list(TASKS)
    assert compare_scores(before, after).pairs == 2
