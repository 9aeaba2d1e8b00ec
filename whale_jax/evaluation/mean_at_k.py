"""mean@k and its uncertainty: the mean over tasks of the share of k samples that are right, with 95 % intervals.

Tasks are the sampling unit, since the samples of one task are alike. An interval therefore comes from the spread
between tasks, with Student's t for their number, and speaks of other tasks of the same kind. Few or equal results never
make certainty:

- One arm: Wilson's interval at the effective sample size n_eff = p (1 - p) / (s² / n), which is what the spread s²
  between n tasks is worth in independent trials (Korn and Graubard 1998). It is held between n and the number of
  samples; with p at 0 or 1 it is n.
- Two arms on the same tasks: the differences per task, with half a pseudo-task in each of the four outcomes (both
  right, both wrong, either alone), which is the adjustment of Agresti and Min (2005) for paired proportions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy.special import stdtrit

Rewards = Mapping[str, Sequence[int | None]]
"""Task id → rewards of its samples; None is missing data."""


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95 % interval.

    Attributes:
        mean: the plain estimate (NaN without any scored task).
        low, high: the interval's ends; the widest possible ones for fewer than two tasks.
        tasks: tasks that the estimate rests on.
        samples: scored samples that it rests on (of both arms for a difference).
    """

    mean: float
    low: float
    high: float
    tasks: int
    samples: int

    @property
    def ci95(self) -> tuple[float, float]:
        """(low, high)."""
        return self.low, self.high

    def to_json(self) -> dict[str, Any]:
        """`mean`, `ci95`, `tasks`, `samples`; the mean is None when there is none."""
        mean = None if math.isnan(self.mean) else self.mean
        return {"mean": mean, "ci95": [self.low, self.high], "tasks": self.tasks, "samples": self.samples}


def task_means(rewards: Rewards) -> dict[str, float]:
    """Share of right answers among the scored samples of each task; a task without any is left out."""
    scored = {task: [reward for reward in samples if reward is not None] for task, samples in rewards.items()}
    return {task: sum(samples) / len(samples) for task, samples in scored.items() if samples}


def mean_at_k(rewards: Rewards) -> Estimate:
    """mean@k of one arm."""
    means = list(task_means(rewards).values())
    samples = _scored(rewards)
    n = len(means)
    if n == 0:
        return Estimate(math.nan, 0.0, 1.0, 0, 0)
    mean = sum(means) / n
    if n == 1:
        return Estimate(mean, 0.0, 1.0, 1, samples)
    squared_error = sum((value - mean) ** 2 for value in means) / (n - 1) / n
    trials = float(n)
    if 0.0 < mean < 1.0:
        trials = min(max(mean * (1 - mean) / squared_error, n), samples) if squared_error > 0 else samples
    t = _t95(n - 1)
    spread = 1 + t * t / trials
    centre = (mean + t * t / (2 * trials)) / spread
    half = t / spread * math.sqrt(mean * (1 - mean) / trials + t * t / (4 * trials * trials))
    return Estimate(mean, min(mean, max(0.0, centre - half)), max(mean, min(1.0, centre + half)), n, samples)


def paired_difference(before: Rewards, after: Rewards) -> Estimate:
    """mean@k of `after` minus that of `before`, over the tasks that have a score in both."""
    first, second = task_means(before), task_means(after)
    shared = sorted(first.keys() & second.keys())
    samples = sum(_scored({task: arm[task] for task in shared}) for arm in (before, after))
    differences = [second[task] - first[task] for task in shared]
    n = len(differences)
    if n == 0:
        return Estimate(math.nan, -1.0, 1.0, 0, 0)
    mean = sum(differences) / n
    if n == 1:
        return Estimate(mean, -1.0, 1.0, 1, samples)
    weight = n + 2
    centre = sum(differences) / weight
    variance = (sum(value * value for value in differences) + 1) / weight - centre * centre
    half = _t95(n - 1) * math.sqrt(variance / weight)
    return Estimate(mean, max(-1.0, centre - half), min(1.0, centre + half), n, samples)


def _scored(rewards: Rewards) -> int:
    return sum(reward is not None for samples in rewards.values() for reward in samples)


def _t95(degrees: int) -> float:
    """Two-sided 95 % point of Student's t."""
    return float(stdtrit(degrees, 0.975))
