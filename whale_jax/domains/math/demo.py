"""The embedded demo: problems made and worked out here, in seconds, the same in every run."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from hashlib import blake2b

from whale_jax.domains.math.problems import Kind, Problem, generate
from whale_jax.domains.math.rows import NAME
from whale_jax.domains.task import Split, Task

PROBLEMS_PER_KIND = 200
SPLIT_SHARES = {Split.WEIGHT: 0.46, Split.HARNESS: 0.16, Split.VALIDATION: 0.14, Split.TEST: 0.24}
SEED = 0


def _order(text: str) -> bytes:
    return blake2b(f"math-demo\x1f{text}".encode(), digest_size=16).digest()


def to_task(problem: Problem, split: Split) -> Task:
    """A problem as a task. The kind is part of the reference: it would help a harness."""
    reference = {"answer": str(problem.answer), "kind": problem.kind.value}
    return Task(problem.id, NAME, {"question": problem.question}, reference, split)


def make_tasks(*, per_kind: int = PROBLEMS_PER_KIND, seed: int = SEED) -> dict[Split, tuple[Task, ...]]:
    """`per_kind` problems of every kind, each kind cut into the splits by a seeded hash; in the order of that hash."""
    splits: dict[Split, list[Task]] = {split: [] for split in SPLIT_SHARES}
    for kind in Kind:
        problems = sorted(generate(kind, per_kind, seed), key=lambda problem: _order(problem.id))
        for split, part in _parts(problems).items():
            splits[split] += [to_task(problem, split) for problem in part]
    return {split: tuple(sorted(tasks, key=lambda task: _order(task.id))) for split, tasks in splits.items()}


def _parts(problems: Sequence[Problem]) -> dict[Split, Sequence[Problem]]:
    parts, start, share = {}, 0, 0.0
    for split in SPLIT_SHARES:
        share += SPLIT_SHARES[split]
        end = round(share * len(problems))
        parts[split] = problems[start:end]
        start = end
    return parts


@functools.cache
def demo_tasks() -> dict[Split, tuple[Task, ...]]:
    """The tasks of each split."""
    return make_tasks()
