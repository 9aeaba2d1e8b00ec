"""Right answers in text that the harness wrote: what counts, who is flagged, and that no workspace learns of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harness_search.archive import Archive, TraceRecord
from harness_search.audit import Answers, answer_in_harness_text, audit
from harness_search.records import Decision, IterationRecord, ProposalRecord, SessionState, SlotRecord, SlotState
from harness_search.scoring import EpisodeResult, Score, ScoreTag
from harness_search.workspace import materialise


def trace(*segments: tuple[str, str]) -> dict[str, Any]:
    return {"answer": "x", "end": "answered", "chats": [[{"source": who, "text": text} for who, text in segments]]}


@pytest.mark.parametrize(
    ("segments", "accepted", "inputs", "found"),
    [
        ([("harness", "The answer is Ankara.")], ["Ankara"], (), True),
        ([("harness", "the answer: ÁNKARA!")], ["Ankara"], (), True),
        ([("tool", "Ankara"), ("sampled", "Ankara"), ("prompt", "Ankara")], ["Ankara"], (), False),
        ([("harness", "Ankarans live there")], ["Ankara"], (), False),
        ([("harness", "New   York\nCity")], ["york city"], (), True),
        ([("harness", "Is Ankara in Turkey? Answer.")], ["Ankara"], ["Is Ankara in Turkey?"], False),
        ([("harness", "Is Ankara in Turkey? It is Ankara.")], ["Ankara"], ["Is Ankara in Turkey?"], True),
        ([("harness", "legal: e2e4, d2d4")], ["d2d4"], (), True),
        ([("harness", "x = 42;")], ["42"], (), True),
        ([("harness", "420")], ["42"], (), False),
        ([("harness", "anything")], ["", "?!"], (), False),
        ([], ["x"], (), False),
    ],
)
def test_what_counts(
    segments: Sequence[tuple[str, str]], accepted: list[str], inputs: Sequence[str], found: bool
) -> None:
    assert answer_in_harness_text(trace(*segments), Answers(accepted, inputs)) is found


def add(archive: Archive, leaks: int, rewards: int, total: int = 40) -> str:
    """A candidate whose first `leaks` episodes hold the answer in harness text."""
    rows = [EpisodeResult(f"t{number}", 0, float(number < rewards), "answered", 1, 1) for number in range(total)]
    traces = [
        TraceRecord(f"t{number}", 0, trace(("harness", "CANARY gold" if number < leaks else "nothing")))
        for number in range(total)
    ]
    iteration = len(archive.iterations)
    proposal = ProposalRecord("x", iteration, 0, "000") if iteration else ProposalRecord("incoming", 0)
    score = Score(ScoreTag("m", "t", "v", "s"), "h", tuple(rows))
    one = archive.add_scored(f"A = {iteration}\n", proposal, score, traces)
    incumbent = archive.iterations[-1].incumbent if iteration else None
    best = one.id if rewards > 20 or incumbent is None else incumbent
    archive.commit_iteration(
        IterationRecord(
            iteration, SessionState.COMPLETED, (SlotRecord(0, SlotState.SCORED, one.id, one.hash),), "archive_max",
            incumbent, best, 0.5, total, 0, total, {"answered": total}, Decision.GO_ON,
        )
    )  # fmt: skip
    return one.id


def test_more_than_five_points_above_the_incumbent_is_flagged(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    add(archive, leaks=4, rewards=20)
    add(archive, leaks=6, rewards=10)  # + 5 points: not more than 5
    add(archive, leaks=7, rewards=30)  # + 7.5 points, and the incumbent from here on
    add(archive, leaks=9, rewards=10)  # + 5 points above its incumbent, 12.5 above the first
    found = audit(archive, lambda task: Answers(["gold"]))
    assert [one.with_answer for one in found.values()] == [4, 6, 7, 9]
    assert [one.flagged for one in found.values()] == [False, False, True, False]
    assert [one.incumbent for one in found.values()] == [None, "000", "000", "002"]
    assert found["001"].rewarded == 6
    written = json.loads((tmp_path / "audit.json").read_text())
    assert written["002"]["flagged"] is True
    assert written["002"]["share"] == 7 / 40


def test_counts_are_made_once_and_survive_a_damaged_file(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    add(archive, leaks=4, rewards=20)
    asked: list[str] = []

    def answers(task: str) -> Answers:
        asked.append(task)
        return Answers(["gold"])

    first = audit(archive, answers)
    assert len(asked) == 40
    add(archive, leaks=8, rewards=20)
    again = audit(Archive(tmp_path), answers)
    assert len(asked) == 80
    assert again["000"] == first["000"]
    for damage in ("{", "[]", '{"000": 3}'):
        (tmp_path / "audit.json").write_text(damage)
        assert audit(archive, answers) == again


def test_no_workspace_learns_of_it(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    add(archive, leaks=4, rewards=20)
    audit(archive, lambda task: Answers(["gold"]))
    materialise(archive, slots=1, rollouts_left=None)
    names = {path.name for path in (tmp_path / "workspace").rglob("*")}
    assert "audit.json" not in names
    for path in (tmp_path / "workspace").rglob("*.json"):
        assert "with_answer" not in path.read_text()
        assert "flagged" not in path.read_text()
