"""What a proposer sees: the archive as plain files, and the same as objects.

    <dir>/budget.json                         iteration, slots, rollouts left, incumbent, the proposer's usage so far
          history.json                        every iteration so far: slots, scores, decisions
          candidates/000/harness.py           source
                         proposal.json        parent, hypothesis, axis, edits
                         verdict.json         outcome and errors
                         scores.json          summary and one row per episode (scored candidates)
                         broke_fixed.json     episodes that it broke and fixed, against every earlier scored candidate
                         traces/0000.json     one raw trajectory per row of scores.json, in its order

A workspace is a view: it is derived from the archive at the start of an iteration and can be deleted at any time. Of a
trace it shows the fields listed in `VISIBLE_FIELDS` and nothing else, whatever an evaluation may have put there.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness_search import durable
from harness_search.archive import Archive, Candidate, Invalid
from harness_search.canonical import sha256, source_bytes
from harness_search.compare import broke_fixed
from harness_search.records import IterationRecord

VISIBLE_FIELDS = (
    "task_id", "end", "reward", "answer", "returned", "error", "turns", "tool_calls", "sampled_tokens", "chats",
)  # fmt: skip
VISIBLE_SEGMENT_FIELDS = ("source", "text", "turn", "finish", "tokens")


@dataclass(frozen=True)
class Workspace:
    """The state of a search at the start of an iteration.

    Attributes:
        directory: where the plain files are.
        candidates: those of committed iterations, oldest first.
        incumbent: id of the best so far.
        history: the committed iterations.
        rollouts_left: what the budget still allows; None without a limit.
    """

    directory: Path
    candidates: Mapping[str, Candidate]
    incumbent: str
    history: Sequence[IterationRecord]
    rollouts_left: int | None
    _archive: Archive

    @property
    def archive_directory(self) -> Path:
        """The archive's own folder, which no proposer may see."""
        return self._archive.directory

    def session_directory(self, iteration: int) -> Path:
        """Where a proposer keeps the record of that iteration's session."""
        return self._archive.directory / "sessions" / f"{iteration:03d}"

    def fingerprint(self) -> dict[str, str]:
        """SHA-256 of every file, by path. What is no plain file has its kind instead."""
        found: dict[str, str] = {}
        for path in sorted(self.directory.rglob("*")):
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                found[str(path.relative_to(self.directory))] = "not a plain file"
            elif path.is_file():
                found[str(path.relative_to(self.directory))] = sha256(path.read_bytes())
        return found

    def discard(self) -> None:
        """Throws the files away: the next iteration writes them anew from the archive, which is read again first.

        Raises:
            ArchiveError: the archive itself was changed.
        """
        if self.directory.is_symlink():
            self.directory.unlink()
        shutil.rmtree(self.directory, ignore_errors=True)  # it may be gone already
        self._archive.verify()

    def failures(self, candidate_id: str) -> list[Mapping[str, Any]]:
        """Visible traces of the candidate's failed episodes (reward 0; missing ones have not failed)."""
        candidate = self.candidates[candidate_id]
        if candidate.score is None:
            return []
        pairs = zip(candidate.score.results, self._archive.traces(candidate_id), strict=True)
        return [visible(record.trace) for row, record in pairs if row.failed]


def materialise(archive: Archive, *, slots: int, rollouts_left: int | None) -> Workspace:
    """Writes the workspace of the next iteration under `<archive>/workspace` and returns it."""
    history = archive.iterations
    committed = {slot.candidate for record in history for slot in record.slots}
    # Candidates of an iteration that was cut are in the archive and not yet part of the state.
    candidates = {name: one for name, one in archive.candidates.items() if name in committed}
    directory = archive.directory / "workspace"
    (directory / "candidates").mkdir(parents=True, exist_ok=True)
    durable.discard_temporaries(directory / "candidates")
    for path in (directory / "candidates").iterdir():
        if path.name.isdecimal() and not _shows(path, candidates.get(path.name)):
            shutil.rmtree(path)  # left over from another archive that stood here
    for candidate in candidates.values():
        if not (directory / "candidates" / candidate.id).exists():
            earlier = [one for one in candidates.values() if one.id < candidate.id]
            _write_candidate(archive, candidate, earlier, directory / "candidates")
    incumbent = history[-1].incumbent
    budget = {
        "iteration": len(history), "slots": slots, "rollouts_left": rollouts_left, "incumbent": incumbent,
        "proposer_usage": total_usage(history),
    }  # fmt: skip
    _write(directory / "budget.json", budget)
    _write(directory / "history.json", [record.to_json() for record in history])
    return Workspace(directory, candidates, incumbent, history, rollouts_left, archive)


def total_usage(history: Sequence[IterationRecord]) -> dict[str, int | float | None]:
    """What the proposer's sessions have used so far, summed by kind; None where one of them could not say."""
    total: dict[str, int | float | None] = {}
    for record in history:
        for name, used in record.usage.items():
            before = total.get(name, 0)
            total[name] = None if used is None or before is None else before + used
    return total


def visible(trace: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a trace that a proposer may see."""
    shown = {name: trace[name] for name in VISIBLE_FIELDS if name in trace}
    shown["chats"] = [
        [{name: segment[name] for name in VISIBLE_SEGMENT_FIELDS if name in segment} for segment in chat]
        for chat in trace.get("chats", ())
    ]
    return shown


def _shows(path: Path, candidate: Candidate | None) -> bool:
    """Whether the view of a candidate is whole; one that was cut or damaged is written again."""
    try:
        shown = json.loads((path / "verdict.json").read_bytes())
    except (OSError, ValueError):
        return False
    return candidate is not None and isinstance(shown, dict) and shown.get("hash") == candidate.hash


def _write_candidate(archive: Archive, candidate: Candidate, earlier: Sequence[Candidate], parent: Path) -> None:
    temporary = parent / (durable.TEMPORARY_PREFIX + candidate.id)
    (temporary / "traces").mkdir(parents=True)
    (temporary / "harness.py").write_bytes(source_bytes(candidate.source))
    _dump(temporary / "proposal.json", candidate.proposal.to_json())
    score = candidate.score
    errors = list(candidate.outcome.errors) if isinstance(candidate.outcome, Invalid) else []
    verdict = {"outcome": "scored" if score else "invalid", "errors": errors, "hash": candidate.hash}
    _dump(temporary / "verdict.json", verdict)
    if score:
        _dump(temporary / "scores.json", score.to_json())
        against = {one.id: broke_fixed(one.score, score).to_json() for one in earlier if one.score}
        _dump(temporary / "broke_fixed.json", against)
        for index, record in enumerate(archive.traces(candidate.id)):
            _dump(temporary / "traces" / f"{index:04d}.json", visible(record.trace))
    durable.publish(temporary, parent / candidate.id)


def _write(path: Path, value: Any) -> None:
    temporary = path.with_name(durable.TEMPORARY_PREFIX + path.name)
    _dump(temporary, value)
    durable.replace(temporary, path)


def _dump(path: Path, value: Any) -> None:
    text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False)
    path.write_bytes(text.encode("utf-8", "backslashreplace") + b"\n")
