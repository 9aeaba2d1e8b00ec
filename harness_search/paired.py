"""Statistics of two harnesses on the same tasks with the same seeds.

The unit is the task: rollouts of one task depend on each other through it, tasks do not. For task i with k_i pairs of
rewards, D_i = sum over its pairs of (after - before), an integer. Everything is exact or a pure function of these.

- `sign_flip_p`: if the two harnesses are the same, every D_i is as likely as -D_i, so the distribution of the sum over
  random signs is known: a randomisation test, exact for any number of tasks and any spread among them. Equal
  differences everywhere give p = 2^-n, never 0.
- `lower_bound`: a one-sided bound on the mean difference from the t distribution over tasks, with two made-up tasks
  that differ by +1 and -1 added (after Agresti and Min 2005): its spread is never 0, however alike the tasks are.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from harness_search.scoring import Score, check_comparable

ALPHA = 0.05
"""Largest probability of accepting one of two identical candidates, per decision."""


@dataclass(frozen=True)
class PairedComparison:
    """How two scores over the same episodes differ.

    Attributes:
        before, after: mean rewards over the pairs.
        tasks: how many have at least one pair.
        pairs: episodes that have a reward in both.
        difference: after - before.
        lower: one-sided lower bound on it at level 1 - alpha.
        p_value: of the exact one-sided test that the two are the same.
        alpha: the level.
    """

    before: float
    after: float
    tasks: int
    pairs: int
    difference: float
    lower: float
    p_value: float
    alpha: float = ALPHA

    @property
    def better(self) -> bool:
        """Whether `after` is better at this level: the exact test and the bound both say so."""
        return self.p_value <= self.alpha and self.lower > 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def compare_scores(before: Score, after: Score, alpha: float = ALPHA) -> PairedComparison:
    """Compares two scores pair by pair; an episode without a reward in one of them is left out.

    Raises:
        TagMismatchError: the scores were not measured under the same conditions.
        ValueError: a reward is neither 0 nor 1, or no episode has a reward in both.
    """
    known = _pairs(before, after)
    differences, sizes = per_task(before, after)
    return PairedComparison(
        before=sum(old for _, old, _ in known) / len(known),
        after=sum(now for _, _, now in known) / len(known),
        tasks=len(sizes),
        pairs=len(known),
        difference=sum(differences) / len(known),
        lower=lower_bound(differences, sizes, alpha),
        p_value=sign_flip_p(differences),
        alpha=alpha,
    )


def per_task(before: Score, after: Score) -> tuple[list[int], list[int]]:
    """D_i and k_i of every task that has a pair. Raises as `compare_scores`."""
    sums: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for task, old, now in _pairs(before, after):
        sums[task] += int(now) - int(old)
        counts[task] += 1
    return [sums[task] for task in counts], list(counts.values())


def _pairs(before: Score, after: Score) -> list[tuple[str, float, float]]:
    check_comparable([before, after])
    new = {row.key: row.reward for row in after.results}
    pairs = [(row.task_id, row.reward, new[row.key]) for row in before.results]
    known = [(task, old, now) for task, old, now in pairs if old is not None and now is not None]
    if any(reward not in (0, 1) for _, *rewards in known for reward in rewards):
        raise ValueError("a paired comparison needs rewards that are 0 or 1")
    if not known:
        raise ValueError("no episode has a reward under both harnesses")
    return known


def sign_flip_p(differences: Sequence[int]) -> float:
    """P(sum of ±D_i >= sum of D_i) over independent fair signs, exactly.

    Equal sizes |D| = a together are a binomial on a grid of step 2a; the groups are convolved.
    """
    sizes = Counter(abs(int(one)) for one in differences if one)
    law = np.ones(1)
    for size, count in sizes.items():
        # Probabilities of the number of plus signs, at positions 0, 2a, 4a, ... above the smallest possible sum.
        group = np.zeros(2 * size * count + 1)
        group[:: 2 * size] = [math.comb(count, plus) / 2**count for plus in range(count + 1)]
        law = np.convolve(law, group)
    lowest = -sum(size * count for size, count in sizes.items())
    return float(min(1.0, law[sum(int(one) for one in differences) - lowest :].sum()))


def lower_bound(differences: Sequence[int], sizes: Sequence[int], alpha: float = ALPHA) -> float:
    """One-sided bound on the mean per-task difference at level 1 - alpha, never above the mean itself."""
    shares = np.asarray(differences, dtype=float) / np.asarray(sizes, dtype=float)
    mean, error = _with_two_more(shares)
    return min(mean - t_quantile(1 - alpha, len(shares) + 1) * error, float(shares.mean()))


def standard_error(differences: Sequence[int], sizes: Sequence[int]) -> float:
    """Standard error of the mean per-task difference; never 0."""
    return _with_two_more(np.asarray(differences, dtype=float) / np.asarray(sizes, dtype=float))[1]


def _with_two_more(shares: np.ndarray) -> tuple[float, float]:
    sample = np.concatenate([shares, [1.0, -1.0]])
    return float(sample.mean()), float(sample.std(ddof=1) / math.sqrt(len(sample)))


def t_quantile(level: float, freedom: int) -> float:
    """Quantile of Student's t for level >= 1/2: exact for 1 and 2 degrees of freedom, else the expansion in 1/freedom.

    Reference: Abramowitz and Stegun, 26.7.5. Its error is below 0.01 from 3 degrees of freedom on at the level 0.95.
    """
    if freedom == 1:
        return math.tan(math.pi * (level - 0.5))
    if freedom == 2:
        return (2 * level - 1) * math.sqrt(2 / (4 * level * (1 - level)))
    z, v = NormalDist().inv_cdf(level), freedom
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    )
