"""The search phase around the search: what proposers come to see of a run, acceptance by name, and the audit."""

import asyncio
import dataclasses
import json
from types import SimpleNamespace

import pytest

from harness_search.accept import ArchiveMax, Paired
from harness_search.proposers.base import Proposal, ProposerUsage
from harness_search.scoring import ScoreTag
from tests.whale_jax.rollout.conftest import FakeCodec, FakeDomain, FakeDriver, make_runner
from whale_jax.config import ConfigError, RunConfig
from whale_jax.domains.task import Split, Task
from whale_jax.domains.verdict import Verdict
from whale_jax.journal import Journal
from whale_jax.pair import Pair
from whale_jax.search_phase import acceptance, answers, search_phase

SECRET = "CANARY-secret"
REFERENCE = "CANARY-reference"
H0 = "A = 0\n"


async def harness(host, task, seed):
    chat = await host.open_chat("Answer.", [])
    await host.append(chat, "user", task.inputs["question"], None)
    return (await host.reply(chat, None))["id"]


class Domain(FakeDomain):
    """Its verdicts say the reference in their reason, as a careless verifier might."""

    def verify(self, task, answer_text, *, protocol="honest"):
        return Verdict(int(task.id == "harness-0"), "x", f"no match with {task.reference['answers']}")


class Proposer:
    """Writes one candidate per iteration and remembers what it saw."""

    name = "spy"

    def __init__(self):
        self.seen = {}

    async def propose(self, workspace, *, iteration, slots, seed):
        self.seen = {path.name: path.read_text() for path in workspace.directory.rglob("*") if path.is_file()}
        self.seen["objects"] = repr([workspace.failures(name) for name in workspace.candidates])
        yield Proposal(0, f"A = {iteration}\n", "000", "it helps")

    def usage(self, iteration):
        return ProposerUsage()


def tasks(split):
    return [
        Task(f"{split.value}-{number}", "fake", {"question": f"{split.value} question {number}?"},
             {"answers": [REFERENCE], "kind": REFERENCE}, split)
        for number in range(3)
    ]  # fmt: skip


def make_run(directory, proposer):
    driver = FakeDriver(FakeCodec())
    runner, _ = make_runner(driver, harness, Domain())
    said = []

    async def validate(source, known):
        return []

    async def stream(step, harness, requests):
        async for trace in runner.run(harness, requests):
            yield trace

    nothing = lambda *args, **kwargs: None  # noqa: E731
    return SimpleNamespace(
        dir=directory, journal=Journal(directory / "journal"), codec=FakeCodec(), stream=stream, searches=[], said=said,
        harness_tasks={task.id: task for task in tasks(Split.HARNESS)}, splits={split: tasks(split) for split in Split},
        proposer=proposer, validator=validate, config=RunConfig(), rollouts_left=None, progress=SimpleNamespace(
            say=said.append, advance=nothing),
        schedule=SimpleNamespace(after_iteration=lambda signals: SimpleNamespace(stop=len(signals.best_scores) > 2)),
        score_tag=lambda pair: ScoreTag("m", "t", "v", "s"),
        begin_phase=nothing, end_phase=nothing, spend=nothing, commit_account=nothing, rollouts=0,
        metrics=SimpleNamespace(write=nothing),
    )  # fmt: skip


def test_a_proposer_sees_no_reference_no_other_split_and_no_secret(tmp_path, monkeypatch):
    monkeypatch.setenv("GEMINI_API_KEY", SECRET)
    (tmp_path / "journal").mkdir()
    proposer = Proposer()
    run = make_run(tmp_path, proposer)
    pair = asyncio.run(search_phase(run, 0, Pair(0, "weights", H0)))
    assert pair.harness == H0
    everything = "\n".join(proposer.seen.values())
    assert "harness question 0?" in everything
    assert '"reward": 1' in everything
    for hidden in ("CANARY", "validation", "test question", "weight question", "no match"):
        assert hidden not in everything, hidden
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path
    assert json.loads((tmp_path / "cycle_000/search/audit.json").read_text())["000"]["with_answer"] == 0
    (summary,) = run.searches
    assert (summary["cycle"], summary["best"]["candidate"], summary["rule"]) == (0, "000", "archive_max")
    assert [one["flagged"] for one in summary["candidates"]] == [False] * 3
    assert [line.partition(": ")[0] for line in run.said] == [
        "cycle 1, search · incoming harness", "cycle 1, search · iteration 1", "cycle 1, search · iteration 2",
    ]  # fmt: skip


def test_rules_and_answers_come_from_the_settings_and_the_task():
    search = RunConfig().search
    assert acceptance(search) == ArchiveMax()
    assert acceptance(dataclasses.replace(search, acceptance="paired", confirm_rollouts=2)) == Paired(2)
    task = Task("t", "d", {"question": "q", "n": 3}, {"answers": ["a", "b"], "kind": "k"}, Split.HARNESS)
    assert answers(task).accepted == ["a", "b"]
    assert answers(task).inputs == ["q"]
    assert answers(dataclasses.replace(task, reference={"answer": "4"})).accepted == ["4"]


@pytest.mark.parametrize(("name", "flag"), [("gemini", "model"), ("command", "command"), ("replay", "replay_from")])
def test_a_proposer_without_what_it_needs_is_refused(name, flag):
    with pytest.raises(ConfigError, match=rf"--proposer={name} needs --.*{flag}"):
        RunConfig.from_values({"proposer": name})


def test_settings_that_came_late_change_no_hash_until_they_are_used():
    base = RunConfig().hash()
    assert RunConfig.from_values({"proposer_model": ""}).hash() == base
    assert RunConfig.from_values({"proposer_model": "m"}).hash() != base
