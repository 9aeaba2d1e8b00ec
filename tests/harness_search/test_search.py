"""The loop on a made-up world: what it records, when it stops, and that a search cut anywhere ends the same."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from harness_search import durable, search, workspace
from harness_search.archive import Archive, ArchiveError, Invalid
from harness_search.canonical import fingerprint
from harness_search.proposers.base import EmptySlot, Proposal, ProposerUnreachable, ProposerUsage, SessionFailed
from harness_search.proposers.edits import Edit
from harness_search.proposers.offline import OfflineProposer
from harness_search.records import Decision, IterationRecord, SessionState, SlotState
from harness_search.scoring import Arm, Outcome, ScoreTag
from harness_search.search import EvaluationError, SearchBudgetError, SearchInfrastructureError, SearchSignals

H0 = "A = 0\nB = 0\nC = 0\nD = 0\n"
TASKS = tuple(f"task-{index}" for index in range(8))
TAG = ScoreTag(model="m", task_set="t", verifier="v", sampling="s")


def edit(name: str, sign: str) -> Edit:
    def apply(source: str) -> str | None:
        return source.replace(f"{name} = 0", f"{name} = 1") if f"{name} = 0" in source else None

    return Edit(f"set-{name}", f"axis-{name}", f"{name} helps", "useful", (sign,), apply)


CATALOGUE = [edit("A", "no_answer"), edit("B", "turn_budget"), edit("C", "no_tool_call"), edit("D", "timeout")]


def draw(*key: object) -> float:
    """A fixed uniform number of a key: the world's keyed sampling."""
    return int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:8]) / 2**64


@dataclass
class World:
    """An `evaluate` whose outcomes come in another order at every call, as a loaded engine's do."""

    missing: Callable[[str, str], bool] = lambda arm, task: False
    before_outcome: Callable[[], None] = lambda: None
    calls: list[str] = field(default_factory=list)
    orders: random.Random = field(default_factory=lambda: random.Random(0))

    async def evaluate(
        self, arms: Sequence[Arm], task_ids: Sequence[str], seeds: Sequence[int]
    ) -> AsyncIterator[Outcome]:
        episodes = [(arm, task, seed) for arm in arms for task in task_ids for seed in seeds]
        self.calls += [arm.id for arm in arms]
        self.orders.shuffle(episodes)
        for arm, task, seed in episodes:
            await asyncio.sleep(0)
            self.before_outcome()
            chance = 0.2 + 0.3 * arm.source.count("A = 1") + 0.2 * arm.source.count("B = 1")
            reward: float | None = float(draw(task, seed) < chance)
            end = "answered" if reward else "turn_budget"
            if self.missing(arm.id, task):
                reward, end = None, "infrastructure"
            segment = {"source": "sampled", "text": f"{task} é", "turn": 0, "finish": "stop"}
            trace = {"end": end, "answer": "x", "chats": [[segment]], "secret": "not for proposers"}
            yield Outcome(arm.id, task, seed, reward, end, 2, 10, trace)


async def validate(source: str, archived: Mapping[str, str]) -> list[str]:
    errors = ["holds BAD"] if "BAD" in source else []
    return errors + ([f"is a copy of {archived[fingerprint(source)]}"] if fingerprint(source) in archived else [])


@dataclass
class Scripted:
    """A proposer that plays a list of sessions; an exception in a session is raised there."""

    sessions: Sequence[Sequence[Proposal | EmptySlot | Exception]]
    name: str = "scripted"
    seen: list[workspace.Workspace] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)

    async def propose(
        self, workspace: workspace.Workspace, *, iteration: int, slots: int, seed: int
    ) -> AsyncGenerator[Proposal | EmptySlot, None]:
        self.seen.append(workspace)
        self.slots.append(slots)
        for item in self.sessions[iteration - 1]:
            if isinstance(item, Exception):
                raise item
            await asyncio.sleep(0)
            yield item

    def usage(self, iteration: int) -> ProposerUsage:
        return ProposerUsage(calls=iteration, input_tokens=100)


def write(slot: int, source: str, parent: str = "000") -> Proposal:
    return Proposal(slot, source, parent, "it helps", "axis")


def after(iterations: int) -> Callable[[SearchSignals], bool]:
    return lambda signals: signals.iteration >= iterations


def settings(directory: Path, **changes: Any) -> dict[str, Any]:
    defaults: dict[str, Any] = {
        "archive": Archive(directory),
        "incoming_source": H0,
        "proposer": OfflineProposer(CATALOGUE),
        "task_ids": TASKS,
        "seeds": (0, 1),
        "tag": TAG,
        "candidates": 2,
        "stop": after(3),
        "validate": validate,
        "on_commit": lambda record: None,
        "seed": 7,
    }
    return {**defaults, **changes}


def run(directory: Path, world: World | None = None, **changes: Any) -> search.SearchResult:
    return asyncio.run(search.run((world or World()).evaluate, **settings(directory, **changes)))


def content(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.fixture(autouse=True)
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def test_finds_the_edits_that_help_and_records_every_iteration(tmp_path: Path) -> None:
    records: list[IterationRecord] = []
    result = run(tmp_path, on_commit=records.append)
    assert "A = 1" in result.source
    assert "B = 1" in result.source
    assert records == list(result.iterations) == list(Archive(tmp_path).iterations)
    assert [record.iteration for record in records] == [0, 1, 2, 3]
    assert [record.decision for record in records] == [*[Decision.GO_ON] * 3, Decision.STOP]
    assert records[0].session is SessionState.INCOMING
    assert records[0].incumbent_before is None
    assert records[0].accepted is None
    assert all(record.rollouts == 16 * len(record.slots) for record in records)
    assert records[0].sampled_tokens == 160
    assert sum(records[1].ends.values()) == records[1].rollouts
    assert result.rollouts == 16 * 7
    scores = [record.best_score for record in records]
    assert scores == sorted(scores)
    assert scores[-1] > scores[0]


def test_same_seed_same_bytes_and_another_seed_another_search(tmp_path: Path) -> None:
    run(tmp_path / "a", World(orders=random.Random(1)))
    run(tmp_path / "b", World(orders=random.Random(2)))
    run(tmp_path / "c", seed=8)
    assert content(tmp_path / "a") == content(tmp_path / "b")
    assert content(tmp_path / "a") != content(tmp_path / "c")


def test_all_arms_run_the_same_tasks_with_the_same_seeds(tmp_path: Path) -> None:
    run(tmp_path)
    scores = [one.score for one in Archive(tmp_path).candidates.values()]
    wanted = [(task, seed) for task in TASKS for seed in (0, 1)]
    assert all(score is not None and [row.key for row in score.results] == wanted for score in scores)


class Killed(BaseException):
    """Stands for the end of the process: nothing in the code under test may catch it."""


class Killer:
    """Cuts the process before the n-th step that changes the disk or hands over an outcome, or halfway through it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at: int | None = None
        self.steps = 0
        for module, name in [(durable, "make_directory"), (durable, "publish"), (durable, "replace")]:
            monkeypatch.setattr(module, name, self._before(getattr(module, name)))
        monkeypatch.setattr(durable, "write_bytes", self._halfway(durable.write_bytes))
        monkeypatch.setattr(workspace, "_dump", self._before(workspace._dump))

    def step(self) -> None:
        self.steps += 1
        if self.steps - 1 == self.at:
            raise Killed

    def _before(self, function: Callable[..., None]) -> Callable[..., None]:
        def wrapped(*args: Any) -> None:
            self.step()
            function(*args)

        return wrapped

    def _halfway(self, function: Callable[..., None]) -> Callable[..., None]:
        def wrapped(path: Path, data: bytes) -> None:
            try:
                self.step()
            except Killed:
                function(path, data[: len(data) // 2])
                raise
            function(path, data)

        return wrapped


def test_a_search_cut_at_any_step_and_resumed_leaves_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killer = Killer(monkeypatch)

    def attempt(directory: Path, at: int | None) -> list[IterationRecord]:
        killer.at, killer.steps = at, 0
        committed: list[IterationRecord] = []

        def on_commit(record: IterationRecord) -> None:
            killer.step()
            committed.append(record)

        world = World(before_outcome=killer.step)
        run(directory, world, on_commit=on_commit, task_ids=TASKS[:2], seeds=(0,), stop=after(2))
        return committed

    wanted = attempt(tmp_path / "whole", None)
    steps = killer.steps
    assert steps > 70
    for at in range(steps):
        directory = tmp_path / f"cut-{at}"
        with pytest.raises(Killed):
            attempt(directory, at)
        assert attempt(directory, None) == wanted, f"cut at step {at}"
        assert content(directory) == content(tmp_path / "whole"), f"cut at step {at}"


def test_a_finished_search_is_only_read(tmp_path: Path) -> None:
    first = run(tmp_path)
    world = World()
    committed: list[IterationRecord] = []
    again = run(tmp_path, world, on_commit=committed.append)
    assert again == first
    assert world.calls == []
    assert committed == list(first.iterations)


def test_resume_refuses_another_searchs_archive(tmp_path: Path) -> None:
    run(tmp_path)
    for changes, word in [
        ({"incoming_source": "X = 0\n"}, "incoming harness"),
        ({"tag": replace(TAG, model="another")}, "other conditions"),
        ({"seeds": (0,)}, "other conditions"),
    ]:
        with pytest.raises(ArchiveError, match=word):
            run(tmp_path, **changes)


def test_resume_refuses_a_proposer_that_changed_its_mind(tmp_path: Path) -> None:
    def cut(record: IterationRecord) -> None:
        if record.iteration == 1:
            raise Killed

    first = Scripted([[write(0, "A = 1\n"), write(1, "B = 1\n")]] * 2)
    with pytest.raises(Killed):
        run(tmp_path, proposer=first, on_commit=cut, stop=after(1))
    (tmp_path / "iterations" / "001.json").unlink()
    with pytest.raises(ArchiveError, match="now proposes something else than the archived candidate 002"):
        run(tmp_path, proposer=Scripted([[write(0, "A = 1\n"), write(1, "B = 2\n")]]), stop=after(1))


def test_invalid_candidates_use_their_slot_and_are_never_rolled_out(tmp_path: Path) -> None:
    world = World()
    proposer = Scripted([[write(0, "BAD"), write(1, "A = 1\n")], [write(0, H0), write(1, "A = 1  # same\n")]])
    result = run(tmp_path, world, proposer=proposer, stop=after(2))
    assert world.calls == ["000", "002"]
    states = [[slot.state for slot in record.slots] for record in result.iterations[1:]]
    assert states == [[SlotState.INVALID, SlotState.SCORED], [SlotState.INVALID] * 2]
    assert result.iterations[2].rollouts == 0
    assert result.iterations[2].slots[1].detail == "is a copy of 002"
    outcome = Archive(tmp_path).candidates["001"].outcome
    assert outcome == Invalid(("holds BAD",))


def test_copies_within_one_session_and_unknown_parents_are_invalid(tmp_path: Path) -> None:
    proposer = Scripted([[write(0, "A = 1\n"), write(1, "A  =  1\n"), write(2, "B = 1\n", parent="099")]])
    result = run(tmp_path, proposer=proposer, stop=after(1), candidates=3)
    assert [slot.state for slot in result.iterations[1].slots] == [SlotState.SCORED, *[SlotState.INVALID] * 2]
    assert "parent '099'" in result.iterations[1].slots[2].detail


def test_a_failed_session_spends_its_iteration_and_keeps_what_it_wrote(tmp_path: Path) -> None:
    proposer = Scripted([[write(0, "A = 1\n"), SessionFailed("gave up")], [SessionFailed("again")], []])
    result = run(tmp_path, proposer=proposer)
    one, two, three = result.iterations[1:]
    assert (one.session, one.session_error) == (SessionState.FAILED, "gave up")
    assert [slot.state for slot in one.slots] == [SlotState.SCORED, SlotState.EMPTY]
    assert one.accepted == "001"
    assert one.usage["calls"] == 1
    assert (two.session, two.rollouts, two.incumbent) == (SessionState.FAILED, 0, "001")
    assert three.session is SessionState.COMPLETED
    assert [slot.detail for slot in three.slots] == ["the session ended without writing it"] * 2


def test_an_empty_slot_is_spent_with_its_reason(tmp_path: Path) -> None:
    result = run(tmp_path, proposer=OfflineProposer(CATALOGUE[:1]), stop=after(2))
    assert [slot.state for slot in result.iterations[1].slots] == [SlotState.SCORED, SlotState.EMPTY]
    assert "no edit" in result.iterations[1].slots[1].detail
    assert [slot.state for slot in result.iterations[2].slots] == [SlotState.EMPTY] * 2
    assert len(Archive(tmp_path).candidates) == 2


def test_more_candidates_than_slots_are_not_taken(tmp_path: Path) -> None:
    proposer = Scripted([[write(slot, f"A = {slot + 1}\n") for slot in range(5)]])
    assert len(run(tmp_path, proposer=proposer, stop=after(1)).iterations[1].slots) == 2
    assert len(Archive(tmp_path).candidates) == 3


def test_a_session_sees_committed_iterations_alone(tmp_path: Path) -> None:
    proposer = Scripted([[write(0, "A = 1\n"), write(1, "BAD")], []])
    run(tmp_path, proposer=proposer, stop=after(2))
    assert [list(one.candidates) for one in proposer.seen] == [["000"], ["000", "001", "002"]]
    assert [one.incumbent for one in proposer.seen] == ["000", "001"]


def test_missing_data_is_no_failure_and_no_score(tmp_path: Path) -> None:
    world = World(missing=lambda arm, task: task == "task-0")
    result = run(tmp_path, world, stop=after(0), coverage_floor=0.8)
    score = result.best.score
    assert score is not None
    assert len(score.scored) == 14
    assert float(score.success_rate) == sum(row.reward or 0 for row in score.scored) / 14
    assert result.iterations[0].missing == 2
    assert result.iterations[0].ends["infrastructure"] == 2


def test_too_much_missing_data_stops_the_search_at_its_last_commit(tmp_path: Path) -> None:
    broken = World(missing=lambda arm, task: arm == "003" and task == "task-0")
    with pytest.raises(SearchInfrastructureError, match=r"candidate 003: 2 of 16 .* task-0 \(infrastructure\)"):
        run(tmp_path, broken)
    archive = Archive(tmp_path)
    assert len(archive.iterations) == 2
    run(tmp_path)
    run(tmp_path / "whole")
    assert content(tmp_path / "iterations") == content(tmp_path / "whole" / "iterations")


def test_nothing_scored_is_infrastructure_whatever_the_floor(tmp_path: Path) -> None:
    with pytest.raises(SearchInfrastructureError):
        run(tmp_path, World(missing=lambda arm, task: True), coverage_floor=0.0)


def test_an_unreachable_proposer_stops_the_search_and_it_resumes(tmp_path: Path) -> None:
    cut = Scripted([[write(0, "A = 1\n"), ProposerUnreachable("no route")]])
    with pytest.raises(ProposerUnreachable, match="no route"):
        run(tmp_path, proposer=cut, stop=after(1))
    assert len(Archive(tmp_path).iterations) == 1
    whole = Scripted([[write(0, "A = 1\n"), write(1, "B = 1\n")]])
    run(tmp_path, proposer=whole, stop=after(1))
    run(tmp_path / "whole", proposer=whole, stop=after(1))
    assert content(tmp_path / "iterations") == content(tmp_path / "whole" / "iterations")


@pytest.mark.parametrize(("budget", "rollouts"), [(16, 16), (47, 32), (48, 48), (79, 64), (10_000, 112)])
def test_the_rollout_budget_is_never_exceeded(tmp_path: Path, budget: int, rollouts: int) -> None:
    result = run(tmp_path, max_rollouts=budget)
    assert result.rollouts == rollouts <= budget
    assert result.iterations[-1].decision is (Decision.STOP if budget == 10_000 else Decision.BUDGET)


def test_a_small_budget_offers_fewer_slots(tmp_path: Path) -> None:
    proposer = Scripted([[write(0, "A = 1\n"), write(1, "B = 1\n")]])
    run(tmp_path, proposer=proposer, max_rollouts=47)
    assert proposer.slots == [1]


def test_a_budget_below_the_incoming_evaluation_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SearchBudgetError, match=r"15 rollouts .* \(16\)"):
        run(tmp_path, max_rollouts=15)


def test_stop_sees_the_archives_best_after_each_iteration(tmp_path: Path) -> None:
    seen: list[SearchSignals] = []

    def stop(signals: SearchSignals) -> bool:
        seen.append(signals)
        return signals.iteration == 2

    result = run(tmp_path, stop=stop)
    assert seen[-1].best_scores == tuple(record.best_score for record in result.iterations)
    assert [signals.rollouts for signals in seen] == [16, 48, 80]


@pytest.mark.parametrize("fault", ["lost", "doubled", "stranger", "wrong arm"])
def test_an_evaluation_that_breaks_its_promise_is_an_error(tmp_path: Path, fault: str) -> None:
    async def evaluate(arms: Sequence[Arm], tasks: Sequence[str], seeds: Sequence[int]) -> AsyncIterator[Outcome]:
        outcomes = [one async for one in World().evaluate(arms, tasks, seeds)]
        change: dict[str, Any] = {"stranger": {"task_id": "who"}, "wrong arm": {"arm": "999"}}.get(fault, {})
        first = replace(outcomes[0], **change)
        for one in {"lost": outcomes[1:], "doubled": [first, *outcomes]}.get(fault, [first, *outcomes[1:]]):
            yield one

    with pytest.raises(EvaluationError, match="candidate 000"):
        asyncio.run(search.run(evaluate, **settings(tmp_path)))


def test_a_slot_is_evaluated_while_the_session_goes_on(tmp_path: Path) -> None:
    async def both() -> search.SearchResult:
        evaluated = asyncio.Event()

        class Waiting(Scripted):
            async def propose(
                self, workspace: workspace.Workspace, *, iteration: int, slots: int, seed: int
            ) -> AsyncGenerator[Proposal | EmptySlot, None]:
                yield write(0, "A = 1\n")
                await evaluated.wait()  # for ever, if evaluations waited for the session's end
                yield write(1, "B = 1\n")

        async def evaluate(arms: Sequence[Arm], tasks: Sequence[str], seeds: Sequence[int]) -> AsyncIterator[Outcome]:
            async for one in World().evaluate(arms, tasks, seeds):
                yield one
            if arms[0].id == "001":
                evaluated.set()

        return await search.run(evaluate, **settings(tmp_path, proposer=Waiting([]), stop=after(1)))

    assert asyncio.run(both()).iterations[1].rollouts == 32
