"""Who is the incumbent after an iteration: the rule's choice, and where the rule asks for it a trial on fresh rollouts.

The evidence of a trial is written before the iteration's record. What is there already is not measured again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from harness_search.accept import AcceptRule
from harness_search.archive import Archive, TraceRecord
from harness_search.records import ConfirmationRecord
from harness_search.scoring import Arm, EpisodeResult, Score

Measure = Callable[[Arm, Sequence[int]], Awaitable[tuple[Score, list[TraceRecord]]]]
"""Rolls an arm out on the search's tasks with the given seeds."""


async def accept(
    archive: Archive, rule: AcceptRule, seeds: Sequence[int], measure: Measure
) -> tuple[str, ConfirmationRecord | None, list[EpisodeResult]]:
    """The incumbent from here on; a challenger's trial if there was one, and the fresh episodes that it took.

    Every trial has seeds of its own, above the search's: nothing was ever chosen by the rollouts that decide it.
    """
    history = archive.iterations
    scores = {name: one.score for name, one in archive.candidates.items() if one.score is not None}
    incumbent = history[-1].incumbent if history else None
    trials = [record.confirmation for record in history if record.confirmation is not None]
    chosen = rule.choose(scores, incumbent, {one.challenger for one in trials if not one.accepted})
    if not rule.confirmations or incumbent is None or chosen == incumbent:
        return chosen, None, []
    first = max(seeds) + 1 + rule.confirmations * len(trials)
    fresh = tuple(range(first, first + rule.confirmations))
    (old, new), evidence = await _fresh_scores(archive, len(history), (incumbent, chosen), fresh, measure)
    comparison = rule.confirm(old, new)
    trial = ConfirmationRecord(incumbent, chosen, fresh, comparison.to_json(), comparison.better, evidence)
    return (chosen if comparison.better else incumbent), trial, [*old.results, *new.results]


async def _fresh_scores(
    archive: Archive, iteration: int, names: tuple[str, str], seeds: Sequence[int], measure: Measure
) -> tuple[tuple[Score, Score], str]:
    archived = archive.confirmation(iteration)
    if archived is not None:
        return archived
    arms = [Arm(name, archive.candidates[name].source) for name in names]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_measured(measure, arm, seeds)) for arm in arms]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None  # the first failure cancelled the other
    old, new = (task.result() for task in tasks)
    return (old, new), archive.add_confirmation(iteration, old, new)


async def _measured(measure: Measure, arm: Arm, seeds: Sequence[int]) -> Score:
    score, _ = await measure(arm, seeds)
    return score
