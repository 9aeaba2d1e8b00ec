"""Candidates on disk: complete or absent, never replaced, verified; and what a workspace shows of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from harness_search import durable
from harness_search.archive import Archive, ArchiveError, Invalid, Scored, TraceRecord
from harness_search.canonical import json_bytes
from harness_search.records import Decision, IterationRecord, ProposalRecord, SessionState, SlotRecord, SlotState
from harness_search.scoring import EpisodeResult, Score, ScoreTag
from harness_search.workspace import materialise

SOURCE = "A = 1  # Ünïcode\n"
PROPOSAL = ProposalRecord("offline", 1, 0, "000", "it helps", "axis", ("edit",))
CANARY = "CANARY-7f3a"


def score(*rewards: float | None) -> Score:
    rows = [EpisodeResult(f"task-{index}", 0, reward, "answered", 2, 5) for index, reward in enumerate(rewards)]
    return Score(ScoreTag("m", "t", "v", "s"), "hash", tuple(rows))


def traces(count: int, **extra: Any) -> list[TraceRecord]:
    segment = {"source": "sampled", "text": "hi ünïcode", "turn": 0, "finish": "stop", **extra}
    return [
        TraceRecord(f"task-{index}", 0, {"end": "answered", "answer": "x", "chats": [[segment]], **extra})
        for index in range(count)
    ]


def fill(directory: Path) -> Archive:
    """One scored candidate of iteration 0, one invalid and one scored of iteration 1."""
    archive = Archive(directory)
    incoming = archive.add_scored("A = 0\n", ProposalRecord("incoming", 0), score(0, 1), traces(2))
    archive.commit_iteration(record(0, SlotRecord(0, SlotState.SCORED, incoming.id, incoming.hash, 0.5, 2.0)))
    bad = archive.add_invalid("A = (", PROPOSAL, ["does not parse"])
    good = archive.add_scored(SOURCE, PROPOSAL, score(1, None), traces(2))
    slots = [
        SlotRecord(0, SlotState.INVALID, bad.id, bad.hash, detail="does not parse"),
        SlotRecord(1, SlotState.SCORED, good.id, good.hash, 1.0, 2.0),
    ]
    archive.commit_iteration(record(1, *slots))
    return archive


def record(iteration: int, *slots: SlotRecord) -> IterationRecord:
    return IterationRecord(
        iteration=iteration,
        session=SessionState.COMPLETED if iteration else SessionState.INCOMING,
        slots=slots,
        rule="archive_max",
        incumbent_before="000" if iteration else None,
        incumbent="002" if iteration else "000",
        best_score=0.5,
        rollouts=2,
        missing=0,
        sampled_tokens=10,
        ends={"answered": 2},
        decision=Decision.GO_ON,
        usage={"calls": 0},
    )


def test_what_is_written_is_what_is_loaded(tmp_path: Path) -> None:
    written = fill(tmp_path)
    loaded = Archive(tmp_path)
    assert list(loaded.candidates) == ["000", "001", "002"]
    assert loaded.candidates == written.candidates
    assert loaded.iterations == written.iterations
    assert loaded.candidates["002"].source == SOURCE
    assert loaded.candidates["001"].outcome == Invalid(("does not parse",))
    assert loaded.candidates["002"].outcome == Scored(score(1, None))
    assert loaded.traces("002") == traces(2)
    assert loaded.traces("001") == []
    assert loaded.next_id == "003"


def test_the_three_outcomes_have_different_files(tmp_path: Path) -> None:
    fill(tmp_path)
    names = {path.name: {one.name for one in path.iterdir()} for path in (tmp_path / "candidates").iterdir()}
    evidence = {"harness.py", "proposal.json", "verdict.json"}
    assert names == {
        "000": evidence | {"scores.json", "traces.jsonl.zst"},
        "001": evidence,
        "002": evidence | {"scores.json", "traces.jsonl.zst"},
    }


@pytest.mark.parametrize("name", ["harness.py", "proposal.json", "verdict.json", "scores.json", "traces.jsonl.zst"])
@pytest.mark.parametrize("damage", ["changed", "cut", "removed"])
def test_damage_is_named_with_its_file(tmp_path: Path, name: str, damage: str) -> None:
    fill(tmp_path)
    path = tmp_path / "candidates" / "002" / name
    data = path.read_bytes()
    if damage == "removed":
        path.unlink()
    else:
        changed = data[:-1] + bytes([data[-1] ^ 1]) if name == "traces.jsonl.zst" else data.replace(b"1", b"2")
        path.write_bytes(data[: len(data) // 2] if damage == "cut" else changed)
    with pytest.raises(ArchiveError, match="002"):
        Archive(tmp_path)


def test_recompressed_traces_are_the_same_evidence(tmp_path: Path) -> None:
    fill(tmp_path)
    path = tmp_path / "candidates" / "002" / "traces.jsonl.zst"
    rows = zstandard.ZstdDecompressor().decompress(path.read_bytes())
    path.write_bytes(zstandard.ZstdCompressor(level=19).compress(rows))
    assert Archive(tmp_path).traces("002") == traces(2)


def test_a_gap_in_the_ids_is_an_error(tmp_path: Path) -> None:
    fill(tmp_path)
    shutil.rmtree(tmp_path / "candidates" / "001")
    with pytest.raises(ArchiveError, match="001 is missing"):
        Archive(tmp_path)


def test_a_lost_last_candidate_is_missed_by_its_iteration(tmp_path: Path) -> None:
    fill(tmp_path)
    shutil.rmtree(tmp_path / "candidates" / "002")
    with pytest.raises(ArchiveError, match="candidate 002 is missing"):
        Archive(tmp_path)


def test_an_archive_never_replaces_and_never_deletes_what_is_not_its_own(tmp_path: Path) -> None:
    archive = fill(tmp_path)
    candidates = tmp_path / "candidates"
    (candidates / "notes.txt").write_text("mine")
    (candidates / "000.bak").mkdir()
    unfinished = candidates / f"{durable.TEMPORARY_PREFIX}003"
    unfinished.mkdir()
    (unfinished / "harness.py").write_text("half")
    assert len(Archive(tmp_path).candidates) == 3
    assert (candidates / "notes.txt").read_text() == "mine"
    assert (candidates / "000.bak").is_dir()
    assert not unfinished.exists()

    (candidates / "003").mkdir()  # somebody else's, and empty: a rename alone would replace it
    with pytest.raises(FileExistsError, match="never replaces"):
        archive.add_invalid("x", PROPOSAL, ["no"])


def test_iterations_are_consecutive(tmp_path: Path) -> None:
    archive = fill(tmp_path)
    with pytest.raises(ArchiveError, match="iteration 3 cannot follow iteration 1"):
        archive.commit_iteration(record(3))


def test_evidence_must_be_complete(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    with pytest.raises(ArchiveError, match="same episodes in the same order"):
        archive.add_scored(SOURCE, PROPOSAL, score(0, 1), traces(2)[::-1])
    with pytest.raises(ArchiveError, match="with its errors"):
        archive.add_invalid(SOURCE, PROPOSAL, [])
    assert Archive(tmp_path).candidates == {}


def test_lone_surrogates_survive(tmp_path: Path) -> None:
    Archive(tmp_path).add_invalid("A = '\ud800'\n", PROPOSAL, ["bad \udfff"])
    candidate = Archive(tmp_path).candidates["000"]
    assert candidate.source == "A = '\ud800'\n"
    assert candidate.outcome == Invalid(("bad \udfff",))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None, max_examples=50)
@given(st.dictionaries(st.text(), VALUES))
def test_canonical_json_is_one_line_and_reads_back(value: dict[str, Any]) -> None:
    data = json_bytes(value)
    assert json.loads(data) == value
    assert data.count(b"\n") == 1
    assert json_bytes(dict(reversed(value.items()))) == data


def test_the_workspace_shows_sources_scores_traces_and_history(tmp_path: Path) -> None:
    workspace = materialise(fill(tmp_path), slots=3, rollouts_left=100)
    root = tmp_path / "workspace"
    assert (root / "candidates" / "002" / "harness.py").read_text(encoding="utf-8") == SOURCE
    assert json.loads((root / "candidates" / "001" / "verdict.json").read_text())["errors"] == ["does not parse"]
    trace = json.loads((root / "candidates" / "000" / "traces" / "0001.json").read_text())
    assert trace["chats"][0][0]["text"] == "hi ünïcode"
    assert len(json.loads((root / "history.json").read_text())) == 2
    assert json.loads((root / "budget.json").read_text()) == {
        "incumbent": "002", "iteration": 2, "rollouts_left": 100, "slots": 3, "proposer_usage": {"calls": 0},
    }  # fmt: skip
    assert [len(workspace.failures(name)) for name in ("000", "001", "002")] == [1, 0, 0]


def test_the_workspace_shows_no_field_it_does_not_know(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    one = archive.add_scored("A = 0\n", ProposalRecord("incoming", 0), score(0, 0), traces(2, reference=CANARY))
    archive.commit_iteration(record(0, SlotRecord(0, SlotState.SCORED, one.id, one.hash)))
    workspace = materialise(archive, slots=1, rollouts_left=None)
    files = [path for path in (tmp_path / "workspace").rglob("*") if path.is_file()]
    assert len(files) == 9
    assert not any(CANARY in path.read_text() for path in files)
    assert CANARY not in str(workspace.failures("000"))


@pytest.mark.parametrize("content", [None, b"", b"[]", b"{}"])
def test_a_damaged_view_is_written_again(tmp_path: Path, content: bytes | None) -> None:
    archive = fill(tmp_path)
    materialise(archive, slots=1, rollouts_left=None)
    verdict = tmp_path / "workspace" / "candidates" / "000" / "verdict.json"
    whole = verdict.read_bytes()
    verdict.unlink()
    if content is not None:
        verdict.write_bytes(content)
    materialise(archive, slots=1, rollouts_left=None)
    assert verdict.read_bytes() == whole


@pytest.mark.parametrize("content", [b"[]", b"{}", b'{"files": 3}'])
@pytest.mark.parametrize("name", ["candidates/001/verdict.json", "iterations/000.json"])
def test_a_record_of_another_shape_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    fill(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ArchiveError, match="is not what was written"):
        Archive(tmp_path)


def test_an_incumbent_that_is_no_candidate_is_an_error(tmp_path: Path) -> None:
    fill(tmp_path)
    path = sorted((tmp_path / "iterations").iterdir())[-1]
    path.write_text(json.dumps(json.loads(path.read_text()) | {"incumbent": "777"}))
    with pytest.raises(ArchiveError, match="777"):
        Archive(tmp_path)


def test_the_workspace_of_another_archive_is_replaced(tmp_path: Path) -> None:
    materialise(fill(tmp_path), slots=1, rollouts_left=None)
    for name in ("candidates", "iterations"):
        shutil.rmtree(tmp_path / name)
    archive = Archive(tmp_path)
    one = archive.add_scored("B = 9\n", ProposalRecord("incoming", 0), score(1, 1), traces(2))
    archive.commit_iteration(record(0, SlotRecord(0, SlotState.SCORED, one.id, one.hash)))
    materialise(archive, slots=1, rollouts_left=None)
    candidates = tmp_path / "workspace" / "candidates"
    assert (candidates / "000" / "harness.py").read_text() == "B = 9\n"
    assert [path.name for path in candidates.iterdir()] == ["000"]
