"""One evaluation of one arm: outcomes gathered, checked and put in order."""

from __future__ import annotations

from collections.abc import Sequence

from harness_search.archive import TraceRecord
from harness_search.canonical import sha256, source_bytes
from harness_search.scoring import Arm, EpisodeResult, Evaluate, Outcome, Score, ScoreTag


class SearchInfrastructureError(Exception):
    """Too many episodes of an evaluation are missing data. Nothing of it was recorded; resume when it is mended."""


class EvaluationError(Exception):
    """`evaluate` broke its promise of exactly one outcome per (arm, task, seed)."""


async def measure(
    evaluate: Evaluate,
    arm: Arm,
    task_ids: Sequence[str],
    seeds: Sequence[int],
    *,
    tag: ScoreTag,
    coverage_floor: float,
) -> tuple[Score, list[TraceRecord]]:
    """The arm's score and traces, tasks in the order given and seeds within them, whatever order they finished in.

    Raises:
        SearchInfrastructureError: fewer than `coverage_floor` of the episodes have a reward, or none has.
        EvaluationError: an episode is absent, doubled, or nobody asked for it.
    """
    outcomes = [one async for one in evaluate([arm], task_ids, seeds)]
    keys = episode_keys(task_ids, seeds)
    by_key: dict[tuple[str, int], Outcome] = {(one.task_id, one.seed): one for one in outcomes}
    if len(outcomes) != len(keys) or by_key.keys() != set(keys) or {one.arm for one in outcomes} != {arm.id}:
        raise EvaluationError(
            f"candidate {arm.id}: {len(outcomes)} outcomes for {len(keys)} episodes; exactly one per (task, seed) of "
            "that arm was asked for"
        )
    ordered = [by_key[key] for key in keys]
    rows = tuple(
        EpisodeResult(one.task_id, one.seed, one.reward, str(one.end), one.turns, one.sampled_tokens) for one in ordered
    )
    missing = [row for row in rows if row.reward is None]
    scored = len(rows) - len(missing)
    if scored == 0 or scored < coverage_floor * len(rows):
        raise SearchInfrastructureError(
            f"candidate {arm.id}: {len(missing)} of {len(rows)} episodes have no reward, the first is task "
            f"{missing[0].task_id} ({missing[0].end}); at least {coverage_floor:.0%} must have one. Nothing of this "
            "evaluation was recorded: mend the cause and resume"
        )
    score = Score(tag, sha256(source_bytes(arm.source)), rows)
    return score, [TraceRecord(one.task_id, one.seed, one.trace) for one in ordered]


def episode_keys(task_ids: Sequence[str], seeds: Sequence[int]) -> list[tuple[str, int]]:
    """(task, seed) of every episode of an evaluation, in the order of its rows."""
    return [(task_id, seed) for task_id in task_ids for seed in seeds]
