"""Candidates on disk: immutable, numbered, verified.

    <dir>/candidates/000/harness.py          the source, as written
                         proposal.json       who proposed it, from which parent, with which hypothesis
                         scores.json         scored candidates alone: conditions, summary, one row per episode
                         traces.jsonl.zst    scored candidates alone: the raw trajectories, one per row of scores.json
                         verdict.json        outcome, errors, and the hashes of the files above
    <dir>/confirmations/003.json             fresh scores of an iteration's incumbent and challenger (paired acceptance)
    <dir>/iterations/000.json                one per iteration, written after its candidates: the index

A candidate is evidence first: it is written whole into a temporary sibling and published by one rename, so it is there
completely or not at all. Ids are consecutive; a name in use is never written again. Three outcomes stay apart:
`Scored`, `Invalid` (never rolled out, no score) and missing data, which is no candidate at all and is not recorded.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import zstandard

from harness_search import durable
from harness_search.canonical import fingerprint, json_bytes, sha256, source_bytes
from harness_search.records import IterationRecord, ProposalRecord
from harness_search.scoring import Score

TRACE_LEVEL = 6
_NOT_WHAT_WAS_WRITTEN = (AttributeError, KeyError, TypeError, ValueError)
"""What reading a record raises when it is JSON, but not ours."""


class ArchiveError(Exception):
    """The archive on disk is not what was written, or a write would break a rule of it."""


@dataclass(frozen=True)
class Scored:
    """The candidate was rolled out."""

    score: Score


@dataclass(frozen=True)
class Invalid:
    """The candidate failed validation and was never rolled out: it has errors and no score."""

    errors: tuple[str, ...]


@dataclass(frozen=True)
class Candidate:
    """One archived candidate. `hash` covers all its files, traces included."""

    id: str
    source: str
    proposal: ProposalRecord
    outcome: Scored | Invalid
    fingerprint: str
    hash: str

    @property
    def score(self) -> Score | None:
        return self.outcome.score if isinstance(self.outcome, Scored) else None


@dataclass(frozen=True)
class TraceRecord:
    """One raw trajectory, in the order of the score's rows."""

    task_id: str
    seed: int
    trace: Mapping[str, Any]


class Archive:
    """The archive of one search; loads and verifies what is there.

    Raises:
        ArchiveError: on opening, when files are missing, changed, or out of sequence; it names the file.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self._candidates_dir = self.directory / "candidates"
        self._iterations_dir = self.directory / "iterations"
        for path in (self._candidates_dir, self._iterations_dir):
            path.mkdir(parents=True, exist_ok=True)
            durable.discard_temporaries(path)
        self._candidates = {name: self._load(name) for name in _sequence(self._candidates_dir, suffix="")}
        self._iterations = [self._load_iteration(name) for name in _sequence(self._iterations_dir, suffix=".json")]

    @property
    def candidates(self) -> Mapping[str, Candidate]:
        """By id, oldest first."""
        return dict(self._candidates)

    @property
    def iterations(self) -> Sequence[IterationRecord]:
        """The committed iterations, in order."""
        return tuple(self._iterations)

    @property
    def next_id(self) -> str:
        return f"{len(self._candidates):03d}"

    def add_scored(
        self, source: str, proposal: ProposalRecord, score: Score, traces: Sequence[TraceRecord]
    ) -> Candidate:
        """Publishes a rolled-out candidate under the next id. `traces` are in the order of the score's rows."""
        if [(trace.task_id, trace.seed) for trace in traces] != [row.key for row in score.results]:
            raise ArchiveError("traces and score rows must be the same episodes in the same order")
        rows = b"".join(json_bytes(asdict(trace)) for trace in traces)
        return self._add(source, proposal, Scored(score), {"scores.json": json_bytes(score.to_json())}, rows)

    def add_invalid(self, source: str, proposal: ProposalRecord, errors: Sequence[str]) -> Candidate:
        """Publishes a candidate that failed validation, with its errors, under the next id."""
        if not errors:
            raise ArchiveError("an invalid candidate is recorded with its errors, and there are none")
        return self._add(source, proposal, Invalid(tuple(errors)), {}, None)

    def verify(self) -> None:
        """Reads every candidate again. Raises ArchiveError when one is no longer what was written."""
        for name, candidate in self._candidates.items():
            if self._load(name).hash != candidate.hash:
                raise ArchiveError(f"{self._candidates_dir / name} was changed while the search ran; restore it")

    def traces(self, candidate_id: str) -> list[TraceRecord]:
        """The raw trajectories of a scored candidate, verified again; none for an invalid one."""
        if isinstance(self._candidates[candidate_id].outcome, Invalid):
            return []
        path = self._candidates_dir / candidate_id / "traces.jsonl.zst"
        rows = _decompress(path)
        verdict = _parse(path, _read(path.parent / "verdict.json"))
        _check_hash(path, rows, verdict["files"]["traces.jsonl"])
        return [TraceRecord(**json.loads(row)) for row in rows.decode().split("\n") if row]

    def confirmation(self, iteration: int) -> tuple[tuple[Score, Score], str] | None:
        """Fresh scores of that iteration's incumbent and challenger, with the evidence's hash; None without any."""
        path = self._confirmation_path(iteration)
        if not path.exists():
            return None
        data = _read(path)
        content = _parse(path, data)
        return (Score.from_json(content["incumbent"]), Score.from_json(content["challenger"])), sha256(data)

    def add_confirmation(self, iteration: int, incumbent: Score, challenger: Score) -> str:
        """Writes the evidence of an iteration's confirmation and returns its hash."""
        path = self._confirmation_path(iteration)
        path.parent.mkdir(exist_ok=True)
        data = json_bytes({"incumbent": incumbent.to_json(), "challenger": challenger.to_json()})
        temporary = path.with_name(durable.TEMPORARY_PREFIX + path.name)
        durable.write_bytes(temporary, data)
        durable.publish(temporary, path)
        return sha256(data)

    def _confirmation_path(self, iteration: int) -> Path:
        return self.directory / "confirmations" / f"{iteration:03d}.json"

    def commit_iteration(self, record: IterationRecord) -> None:
        """Writes the next iteration's record: after its candidates, and last."""
        index = len(self._iterations)
        if record.iteration != index:
            raise ArchiveError(f"iteration {record.iteration} cannot follow iteration {index - 1}")
        name = f"{index:03d}.json"
        temporary = self._iterations_dir / (durable.TEMPORARY_PREFIX + name)
        durable.write_bytes(temporary, json_bytes(record.to_json()))
        durable.publish(temporary, self._iterations_dir / name)
        self._iterations.append(record)

    def _add(
        self,
        source: str,
        proposal: ProposalRecord,
        outcome: Scored | Invalid,
        files: Mapping[str, bytes],
        rows: bytes | None,
    ) -> Candidate:
        files = {"harness.py": source_bytes(source), "proposal.json": json_bytes(proposal.to_json()), **files}
        hashes = {name: sha256(data) for name, data in files.items()}
        if rows is not None:
            # The hash is of the rows, not of their compressed form, which another zstd version may write differently.
            hashes["traces.jsonl"] = sha256(rows)
            files["traces.jsonl.zst"] = zstandard.ZstdCompressor(level=TRACE_LEVEL, threads=0).compress(rows)
        verdict: dict[str, Any] = {"fingerprint": fingerprint(source), "files": hashes}
        verdict["outcome"] = "scored" if isinstance(outcome, Scored) else "invalid"
        verdict["errors"] = list(outcome.errors) if isinstance(outcome, Invalid) else []
        files["verdict.json"] = json_bytes(verdict)

        name = self.next_id
        temporary = self._candidates_dir / (durable.TEMPORARY_PREFIX + name)
        durable.make_directory(temporary)
        for file, data in files.items():
            durable.write_bytes(temporary / file, data)
        durable.publish(temporary, self._candidates_dir / name)
        candidate = Candidate(name, source, proposal, outcome, verdict["fingerprint"], sha256(files["verdict.json"]))
        self._candidates[name] = candidate
        return candidate

    def _load(self, name: str) -> Candidate:
        directory = self._candidates_dir / name
        try:
            return self._read_candidate(directory)
        except _NOT_WHAT_WAS_WRITTEN as error:
            raise ArchiveError(f"{directory} is not what was written ({error!r}); restore it from a copy") from error

    def _read_candidate(self, directory: Path) -> Candidate:
        verdict_bytes = _read(directory / "verdict.json")
        verdict = _parse(directory / "verdict.json", verdict_bytes)
        contents: dict[str, bytes] = {}
        for file, expected in verdict["files"].items():
            traces = file == "traces.jsonl"
            path = directory / (file + ".zst" if traces else file)
            contents[file] = _decompress(path) if traces else _read(path)
            _check_hash(path, contents[file], expected)
        outcome: Scored | Invalid
        if verdict["outcome"] == "scored":
            outcome = Scored(Score.from_json(json.loads(contents["scores.json"])))
        else:
            outcome = Invalid(tuple(verdict["errors"]))
        return Candidate(
            id=directory.name,
            source=contents["harness.py"].decode("utf-8", "surrogatepass"),
            proposal=ProposalRecord.from_json(json.loads(contents["proposal.json"])),
            outcome=outcome,
            fingerprint=verdict["fingerprint"],
            hash=sha256(verdict_bytes),
        )

    def _load_iteration(self, name: str) -> IterationRecord:
        path = self._iterations_dir / f"{name}.json"
        try:
            record = IterationRecord.from_json(_parse(path, _read(path)))
        except _NOT_WHAT_WAS_WRITTEN as error:
            raise ArchiveError(f"{path} is not what was written ({error!r}); restore it from a copy") from error
        for slot in record.slots:
            if slot.candidate is None:
                continue
            candidate = self._candidates.get(slot.candidate)
            if candidate is None or candidate.hash != slot.hash:
                state = "missing" if candidate is None else "changed"
                raise ArchiveError(f"{path}: candidate {slot.candidate} is {state}; restore it from a copy")
        if record.confirmation is not None:
            evidence = self._confirmation_path(record.iteration)
            _check_hash(evidence, _read(evidence), record.confirmation.hash)
        if record.incumbent not in self._candidates:
            raise ArchiveError(f"{path}: its incumbent {record.incumbent!r} is no candidate; restore it from a copy")
        return record


def _sequence(directory: Path, *, suffix: str) -> list[str]:
    """Names 000, 001, ... in a directory. Entries that are not numbers belong to someone else and are ignored."""
    names: Iterable[str] = (path.name.removesuffix(suffix) for path in directory.glob("[0-9]*" + suffix))
    numbers = sorted(int(name) for name in names if name.isdecimal())
    if numbers != list(range(len(numbers))):
        missing = next(index for index, number in enumerate(numbers) if number != index)
        raise ArchiveError(f"{directory}: entry {missing:03d} is missing, later ones exist; restore it from a copy")
    return [f"{number:03d}" for number in numbers]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ArchiveError(f"{path} is missing; restore it from a copy, or start with an empty directory") from None


def _parse(path: Path, data: bytes) -> dict[str, Any]:
    try:
        return json.loads(data)
    except ValueError as error:
        raise ArchiveError(f"{path} is not what was written ({error}); restore it from a copy") from None


def _decompress(path: Path) -> bytes:
    try:
        return zstandard.ZstdDecompressor().decompress(_read(path))
    except zstandard.ZstdError as error:
        raise ArchiveError(f"{path}: {error}; restore it from a copy") from None


def _check_hash(path: Path, data: bytes, expected: str) -> None:
    if sha256(data) != expected:
        raise ArchiveError(f"{path} was changed after it was written (its hash differs); restore it from a copy")
