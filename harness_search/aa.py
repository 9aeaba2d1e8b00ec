"""The A/A test: one harness against itself. What it shows is noise, and nothing smaller can be told from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import NormalDist
from typing import Any

from harness_search.measure import measure
from harness_search.paired import ALPHA, compare_scores, per_task, standard_error
from harness_search.scoring import Arm, Evaluate, Score, ScoreTag

POWER = 0.8


@dataclass(frozen=True)
class NoiseFloor:
    """What two evaluations of one harness with different seeds differ by. Rates and differences are shares of 1.

    Attributes:
        tasks, rollouts: the size of each of the two evaluations; rollouts per task.
        first, second: the two success rates; `difference` is second - first.
        noise: standard error of a difference of this size between any two harnesses like this one. Never 0.
        p_value: of the exact one-sided test that the second is better, though it is the same.
        smallest_effect: by rollouts per task, the smallest true difference that `paired` sees with probability `power`.
    """

    tasks: int
    rollouts: int
    first: float
    second: float
    difference: float
    noise: float
    p_value: float
    smallest_effect: dict[int, float]
    alpha: float = ALPHA
    power: float = POWER

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def text(self) -> str:
        lines = [
            f"one harness against itself, {self.tasks} tasks x {self.rollouts} rollouts each time",
            f"success rates {100 * self.first:.1f} % and {100 * self.second:.1f} %: "
            f"a difference of {100 * self.difference:+.1f} points that means nothing",
            f"noise floor (standard error of such a difference): {100 * self.noise:.1f} points",
            f"smallest effect seen with probability {self.power:g} at level {self.alpha:g}:",
            *(
                f"  {rollouts} rollouts per task: {100 * size:.1f} points"
                for rollouts, size in self.smallest_effect.items()
            ),
        ]
        return "\n".join(lines)


async def aa_test(
    evaluate: Evaluate,
    source: str,
    task_ids: Sequence[str],
    tag: ScoreTag,
    *,
    rollouts: int,
    coverage_floor: float = 0.9,
) -> NoiseFloor:
    """Evaluates the harness twice, with seeds 0 to k - 1 and k to 2 k - 1.

    Raises:
        SearchInfrastructureError, EvaluationError: as `measure`.
    """
    scores: list[Score] = []
    for first in (0, rollouts):
        seeds = range(first, first + rollouts)
        score, _ = await measure(
            evaluate, Arm("000", source), task_ids, list(seeds), tag=tag, coverage_floor=coverage_floor
        )
        scores.append(score)
    return noise_floor(scores[0], scores[1], rollouts)


def noise_floor(first: Score, second: Score, rollouts: int) -> NoiseFloor:
    """The figures of two evaluations of one harness whose seeds differ by `rollouts`."""
    moved = tuple(replace(row, seed=row.seed - rollouts) for row in second.results)
    again = Score(second.tag, second.harness, moved)
    comparison = compare_scores(first, again)
    noise = standard_error(*per_task(first, again))
    reach = NormalDist().inv_cdf(1 - ALPHA) + NormalDist().inv_cdf(POWER)
    counts = sorted({1, 2, 4, 8, rollouts})
    effects = {count: reach * noise * (rollouts / count) ** 0.5 for count in counts}
    return NoiseFloor(
        comparison.tasks, rollouts, comparison.before, comparison.after, comparison.difference, noise,
        comparison.p_value, effects,
    )  # fmt: skip
