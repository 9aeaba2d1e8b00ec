"""The candidates of a run's search phases, as a report shows them.

Read file by file: `harness_search.archive.Archive` belongs to the search that writes, and tidies up when it is opened.
A candidate appears in one rename, so what is there is whole; what an earlier version did not write is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from harness_search.inflation import inflation
from harness_search.scoring import Score
from whale_jax.evaluation.mean_at_k import Rewards, mean_at_k, paired_difference
from whale_jax.report.run_files import ReportError, RunFiles, read_object


@dataclass(frozen=True)
class ArchivedCandidate:
    """One candidate: its own files, and what the archive says of it beside them.

    Attributes:
        id: "000" is the incoming harness.
        folder: where its files are.
        source: harness.py.
        proposal: proposal.json.
        verdict: verdict.json.
        score: None for an invalid candidate.
        audit: its lines of audit.json; empty before the search has ended.
    """

    id: str
    folder: Path
    source: str
    proposal: Mapping[str, Any]
    verdict: Mapping[str, Any]
    score: Score | None
    audit: Mapping[str, Any]

    @property
    def harness_hash(self) -> str:
        return self.verdict.get("files", {}).get("harness.py", "")

    @property
    def rewards(self) -> Rewards:
        """Task → rewards of its seeds."""
        found: dict[str, list[int | None]] = {}
        for row in self.score.results if self.score else ():
            found.setdefault(row.task_id, []).append(None if row.reward is None else int(row.reward > 0.5))
        return found


@dataclass(frozen=True)
class SearchArchive:
    """One search phase: its candidates, and the journal's iterations."""

    cycle: int
    candidates: Sequence[ArchivedCandidate]
    iterations: Sequence[Mapping[str, Any]]

    @property
    def best(self) -> str | None:
        """The incumbent after the last committed iteration."""
        return self.iterations[-1]["incumbent"] if self.iterations else None

    @cached_property
    def inflation(self) -> Mapping[str, float] | None:
        """The best search score and how much of it is likely to be luck, as `harness_search.inflation` has it."""
        scores = [one.score for one in self.candidates if one.score is not None]
        if not scores:
            return None
        luck = inflation(scores)
        return {"best_search_score": luck.best, "expected": luck.expected}


def read_archives(run: RunFiles) -> list[SearchArchive]:
    """Every search phase of a run, in order.

    Raises:
        ReportError: scores are damaged.
    """
    found = []
    for folder in sorted(run.directory.glob("cycle_*/search")):
        cycle = int(folder.parent.name.removeprefix("cycle_"))
        iterations = [moment.entry for moment in run.of_kind("search") if moment.entry["cycle"] == cycle]
        found.append(SearchArchive(cycle, list(_candidates(folder)), iterations))
    return found


def _candidates(folder: Path) -> Iterator[ArchivedCandidate]:
    audits = read_object(folder / "audit.json")
    for path in sorted(folder.glob("candidates/[0-9]*")):
        if not path.name.isdecimal():
            continue
        try:
            scores = read_object(path / "scores.json")
            score = Score.from_json(scores) if scores else None
        except (KeyError, TypeError, ValueError) as error:
            raise ReportError(f"{path}/scores.json is damaged ({error!r}); restore it from a copy") from error
        yield ArchivedCandidate(
            id=path.name,
            folder=path,
            source=_text(path / "harness.py"),
            proposal=read_object(path / "proposal.json"),
            verdict=read_object(path / "verdict.json"),
            score=score,
            audit=audits.get(path.name, {}),
        )


def _text(path: Path) -> str:
    return path.read_bytes().decode("utf-8", "surrogatepass") if path.is_file() else ""


def archive_json(archive: SearchArchive) -> dict[str, Any]:
    """The archive for the page: `tasks` (ids in order) and `candidates`, whose `rewards` follow that order.

    A candidate's `versus` holds its paired difference to its parent, with a 95 % interval, where both have scores.
    """
    by_id = {one.id: one for one in archive.candidates}
    tasks = list(dict.fromkeys(task for one in archive.candidates for task in one.rewards))
    accepted = {
        one["incumbent"] for one in archive.iterations if one["incumbent_before"] not in (None, one["incumbent"])
    }
    trials = {
        trial["challenger"]: trial
        for entry in archive.iterations
        if (trial := entry.get("confirmation")) is not None
    }  # fmt: skip
    details = {
        slot["candidate"]: slot["detail"]
        for entry in archive.iterations
        for slot in entry["slots"]
        if slot["candidate"] is not None and slot["detail"]
    }
    return {
        "cycle": archive.cycle,
        "tasks": tasks,
        "best": archive.best,
        "inflation": archive.inflation,
        "empty": [
            {"iteration": entry["iteration"], "slot": slot["slot"], "detail": slot["detail"]}
            for entry in archive.iterations
            for slot in entry["slots"]
            if slot["candidate"] is None
        ],
        "sessions": [
            {"iteration": entry["iteration"], "state": entry["session"], "error": entry["session_error"]}
            for entry in archive.iterations
            if entry["session_error"]
        ],
        "candidates": [
            {
                **_candidate_json(one, by_id.get(one.proposal.get("parent") or ""), tasks),
                "accepted": one.id in accepted,
                "best": one.id == archive.best,
                "trial": trials.get(one.id),
                "detail": details.get(one.id, ""),
            }
            for one in archive.candidates
        ],
    }


def _candidate_json(one: ArchivedCandidate, parent: ArchivedCandidate | None, tasks: Sequence[str]) -> dict[str, Any]:
    proposal, score = one.proposal, one.score
    rewards = one.rewards
    out: dict[str, Any] = {
        "id": one.id,
        "iteration": proposal.get("iteration"),
        "slot": proposal.get("slot"),
        "parent": proposal.get("parent"),
        "proposer": proposal.get("proposer", ""),
        "hypothesis": proposal.get("hypothesis", ""),
        "axis": proposal.get("axis", ""),
        "edits": proposal.get("edits", []),
        "hash": one.harness_hash,
        "errors": one.verdict.get("errors", []),
        "source": one.source,
        "flagged": bool(one.audit.get("flagged", False)),
        "answer_share": one.audit.get("share"),
        "incumbent_share": one.audit.get("incumbent_share"),
        "rewards": [_task_reward(rewards.get(task, ())) for task in tasks],
        "score": None,
    }
    if score is not None:
        out["score"] = mean_at_k(rewards).to_json()
        out |= {"turns": float(score.mean_turns), "tokens": score.sampled_tokens, "ends": score.ends}
        out |= {"episodes": len(score.results), "scored": len(score.scored)}
        if parent is not None and parent.score is not None:
            out["versus"] = paired_difference(parent.rewards, rewards).to_json()
    return out


def _task_reward(samples: Sequence[int | None]) -> float | None:
    scored = [reward for reward in samples if reward is not None]
    return sum(scored) / len(scored) if scored else None
