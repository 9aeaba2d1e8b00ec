"""Means and differences over a few seeds, with intervals that say how few.

Runs with the same seed share their tasks and sampling keys, so two methods are compared by the differences
d[seed, task] between their shares of right samples. Of these, two 95 % intervals are given:

- *over seeds*: Student's t of the seeds' mean differences. It speaks of other seeds on these very tasks.
- *over seeds and tasks*: the variances of the seeds' means and of the tasks' means are added (both hold the noise of a
  single difference, which is so counted twice), with the degrees of freedom of Welch and Satterthwaite (Satterthwaite
  1946), most of which are the tasks': it may be the narrower of the two. It speaks of other seeds and other tasks of
  the same kind.

A difference is called decided only where both exclude zero. Nothing is corrected for the number of questions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from whale_jax.study.scores import Scores

Interval = tuple[float, float]


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds.

    Attributes:
        mean: of the seeds' values.
        by_seed: what each came to.
        over_seeds: 95 % interval; None for fewer than two seeds.
        over_both: the same over seeds and tasks; None for fewer than two seeds or tasks, and where there are no tasks.
    """

    mean: float
    by_seed: Mapping[int, float]
    over_seeds: Interval | None = None
    over_both: Interval | None = None

    @property
    def verdict(self) -> str:
        """`ahead`, `behind`, `not decided`, `no difference in any seed`, or `one seed`; for a difference."""
        if len(self.by_seed) < 2:
            return "one seed"
        if all(value == 0 for value in self.by_seed.values()):
            return "no difference in any seed"
        intervals = [interval for interval in (self.over_seeds, self.over_both) if interval is not None]
        if all(low > 0 for low, _ in intervals):
            return "ahead"
        return "behind" if all(high < 0 for _, high in intervals) else "not decided"


def over_seeds(values: Mapping[int, float]) -> Estimate | None:
    """Student's interval of one value per seed; None without any."""
    if not values:
        return None
    numbers = np.array(list(values.values()), float)
    mean, count = float(numbers.mean()), len(numbers)
    if count < 2:
        return Estimate(mean, dict(values))
    half = _t95(count - 1) * float(numbers.std(ddof=1)) / count**0.5
    return Estimate(mean, dict(values), (mean - half, mean + half))


def difference(before: Mapping[int, Scores], after: Mapping[int, Scores]) -> Estimate | None:
    """mean@k of `after` minus that of `before`, paired by the seeds that both have and by task; None without any.

    Raises:
        ValueError: two that are to be paired were scored on other tasks.
    """
    shared = sorted(before.keys() & after.keys())
    for seed in shared:
        if before[seed].tasks != after[seed].tasks:
            raise ValueError(f"seed {seed}: the two were scored on other tasks, and cannot be paired")
    return crossed({seed: after[seed].shares - before[seed].shares for seed in shared})


def crossed(differences: Mapping[int, np.ndarray]) -> Estimate | None:
    """The estimate of differences by seed and task.

    Args:
        differences: per seed [tasks], the same tasks in the same order; NaN is missing data. A seed without any is left
            out.
    """
    kept = {seed: row for seed, row in differences.items() if np.isfinite(row).any()}
    estimate = over_seeds({seed: float(np.nanmean(row)) for seed, row in kept.items()})
    if estimate is None or estimate.over_seeds is None:
        return estimate
    table = np.stack(list(kept.values()))
    table = table[:, np.isfinite(table).any(axis=0)]
    if table.shape[1] < 2:
        return estimate
    seeds = _squared_error(np.nanmean(table, axis=1)), len(table) - 1
    tasks = _squared_error(np.nanmean(table, axis=0)), table.shape[1] - 1
    total = seeds[0] + tasks[0]
    half = 0.0
    if total > 0:
        degrees = total**2 / sum(error**2 / degrees for error, degrees in (seeds, tasks))
        half = _t95(degrees) * total**0.5
    return Estimate(estimate.mean, estimate.by_seed, estimate.over_seeds, (estimate.mean - half, estimate.mean + half))


def _squared_error(values: np.ndarray) -> float:
    """Of the mean of the values."""
    return float(values.var(ddof=1)) / len(values)


def _t95(degrees: float) -> float:
    """Two-sided 95 % point of Student's t."""
    return float(stdtrit(degrees, 0.975))


def pooled(rows: Sequence[np.ndarray]) -> np.ndarray:
    """The mean over several differences on the same tasks, [tasks]; NaN where none of them has a value."""
    table = np.stack(rows)
    known = np.isfinite(table)
    total = np.where(known, table, 0.0).sum(axis=0)
    return np.divide(total, known.sum(axis=0), out=np.full(total.shape, np.nan), where=known.any(axis=0))
