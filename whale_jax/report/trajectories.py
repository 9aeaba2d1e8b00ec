"""The trajectories of a report: which of them, how much of each, and packed so that a page draws them on demand.

A run keeps the raw trajectories of its search phases (`traces.jsonl.zst` beside each candidate); those of training and
of evaluations are not kept. Of more than a page should hold, the same tasks are taken of every candidate, so that two
candidates can still be read side by side.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import zstandard

from whale_jax.report.archives import ArchivedCandidate, SearchArchive
from whale_jax.report.packing import pack

CHUNK = 64
"""Trajectories that are unpacked together."""
LONGEST_SEGMENT = 200_000
"""Characters of one segment that a page holds; what is beyond is counted in its place."""

Boards = Callable[[Mapping[str, Any]], list[dict[str, Any]]]
"""Public trace → frames (`caption`, `board`: which of the page's boards); empty where the domain has no boards."""


@dataclass
class Packed:
    """Trajectories of one run.

    Attributes:
        rows: what the list shows of each, one list per trajectory, in the order of `COLUMNS`.
        chunks: base64 of gzip of a JSON list of `CHUNK` trajectories each (the last one may hold fewer).
        found: trajectories that the run keeps.
        unreadable: files that could not be read, one line each.
    """

    rows: list[list[Any]] = field(default_factory=list)
    chunks: list[str] = field(default_factory=list)
    found: int = 0
    unreadable: list[str] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Characters of the chunks in the page."""
        return sum(map(len, self.chunks))


COLUMNS = ("cycle", "candidate", "task", "seed", "reward", "end", "turns", "tool_calls", "tokens", "answer", "reason")


def pack_trajectories(archives: Sequence[SearchArchive], *, most: int, boards: Boards | None = None) -> Packed:
    """Packs up to `most` trajectories of a run's searches."""
    packed = Packed()
    scored = [(archive, one) for archive in archives for one in archive.candidates if one.score is not None]
    packed.found = sum(len(one.score.results) for _, one in scored if one.score is not None)
    share = most / packed.found if packed.found > most else 1.0
    chosen = {archive.cycle: _chosen(archive, share) for archive in archives}
    waiting: list[dict[str, Any]] = []
    for archive, candidate in scored:
        where = candidate.folder.relative_to(candidate.folder.parents[3])
        read = 0
        try:
            for record in _records(candidate):
                read += 1
                if record["task_id"] not in chosen[archive.cycle]:
                    continue
                trace = record["trace"]
                row = _row(archive.cycle, candidate.id, record)
                shown = {**_shown(trace), "frames": boards(trace) if boards else []}
                packed.rows.append(row)  # only when nothing can fail any more: a row's place says where its trace is
                waiting.append(shown)
                if len(waiting) == CHUNK:
                    packed.chunks.append(pack(waiting))
                    waiting = []
        except (OSError, zstandard.ZstdError, ValueError, KeyError, TypeError) as error:
            packed.unreadable.append(f"trajectories of {where} cannot be read ({type(error).__name__}: {error})")
        else:
            if candidate.score is not None and read < len(candidate.score.results):
                packed.unreadable.append(f"{where} holds {read} trajectories of {len(candidate.score.results)}")
    if waiting:
        packed.chunks.append(pack(waiting))
    return packed


def _records(candidate: ArchivedCandidate) -> Iterator[dict[str, Any]]:
    with (candidate.folder / "traces.jsonl.zst").open("rb") as file:
        stream = io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(file), "utf-8", errors="surrogatepass")
        for line in stream:
            if line.strip():
                yield json.loads(line)


def _chosen(archive: SearchArchive, share: float) -> set[str]:
    """The tasks whose trajectories are shown: the first by hash, so the same ones of every candidate of the search."""
    tasks = {row.task_id for one in archive.candidates if one.score is not None for row in one.score.results}
    by_hash = sorted(tasks, key=lambda task: hashlib.sha256(task.encode("utf-8", "surrogatepass")).digest())
    return set(by_hash[: int(len(by_hash) * share)])


def _row(cycle: int, candidate: str, record: Mapping[str, Any]) -> list[Any]:
    trace = record["trace"]
    return [
        cycle,
        candidate,
        record["task_id"],
        record["seed"],
        trace.get("reward"),
        trace.get("end", ""),
        trace.get("turns", 0),
        trace.get("tool_calls", 0),
        trace.get("sampled_tokens", 0),
        _short(trace.get("answer")),
        _short(trace.get("reason")),
    ]


def _short(text: Any, length: int = 200) -> str | None:
    return None if text is None else str(text)[:length]


def _shown(trace: Mapping[str, Any]) -> dict[str, Any]:
    """What the page reads of a trace: `chats` as lists of [source, turn, tokens, finish, text, characters left out]."""
    return {
        "returned": trace.get("returned"),
        "error": _short(trace.get("error"), 20_000),
        "answer": _short(trace.get("answer"), 20_000),
        "reason": _short(trace.get("reason"), 20_000),
        "chats": [[_segment(segment) for segment in chat] for chat in trace.get("chats", ())],
    }


def _segment(segment: Mapping[str, Any]) -> list[Any]:
    text = segment.get("text", "")
    kept = text[:LONGEST_SEGMENT]
    head = [segment.get("source", ""), segment.get("turn"), segment.get("tokens"), segment.get("finish")]
    return [*head, kept, len(text) - len(kept)]
