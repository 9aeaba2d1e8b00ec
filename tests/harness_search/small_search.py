"""A search whose rollouts are made up, for tests of proposers: what matters is what they see and what they write."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness_search import search
from harness_search.archive import Archive
from harness_search.canonical import fingerprint
from harness_search.proposers.base import Proposer
from harness_search.scoring import Arm, Outcome, ScoreTag

H0 = "A = 0\n"
TASKS = ("task-0", "task-1", "task-2", "task-3")
TAG = ScoreTag(model="m", task_set="t", verifier="v", sampling="s")


async def evaluate(arms: Sequence[Arm], task_ids: Sequence[str], seeds: Sequence[int]) -> AsyncIterator[Outcome]:
    """A source solves the tasks whose number it names."""
    for arm in arms:
        for task in task_ids:
            for seed in seeds:
                reward = float(task[-1] in arm.source.partition("\n")[0])
                segment = {"source": "sampled", "text": f"words of {task}\n" * 20, "turn": 0, "finish": "stop"}
                yield Outcome(arm.id, task, seed, reward, "answered", 2, 10, {"answer": "x", "chats": [[segment]]})


async def check(source: str, known: Mapping[str, str]) -> Sequence[str]:
    errors = ["holds BAD"] if "BAD" in source else []
    return errors + ([f"is a copy of candidate {known[fingerprint(source)]}"] if fingerprint(source) in known else [])


def run(directory: Path, proposer: Proposer, *, iterations: int = 1, **changes: Any) -> search.SearchResult:
    """Two slots per iteration, four episodes per candidate."""
    settings: dict[str, Any] = {
        "archive": Archive(directory),
        "incoming_source": H0,
        "proposer": proposer,
        "task_ids": TASKS,
        "seeds": (0,),
        "tag": TAG,
        "candidates": 2,
        "stop": lambda signals: signals.iteration >= iterations,
        "validate": check,
        "on_commit": lambda record: None,
        "seed": 7,
        **changes,
    }
    return asyncio.run(search.run(evaluate, **settings))


def content(directory: Path) -> dict[str, bytes]:
    """Every file beneath a folder, by its path."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}
