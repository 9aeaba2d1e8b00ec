"""How much too high the best of several search scores is likely to be.

`archive_max` reports the largest of n noisy scores, which lies above the truth of the candidate it belongs to. The
estimate here is empirical Bayes: the scores' spread beyond their noise tells how far the candidates truly differ; under
that model the same search is drawn again many times, and the mean of (best score - that candidate's truth) is reported.
The tasks' common luck cancels, for every candidate runs the same tasks with the same seeds: noise is what two scores
differ by.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pvariance

from harness_search.scoring import Score

DRAWS = 2000


@dataclass(frozen=True)
class Inflation:
    """The best search score, and how much of it is likely to be luck (both in shares of 1)."""

    best: float
    expected: float


def inflation(scores: Sequence[Score]) -> Inflation:
    """Of the largest success rate among the scores of one search. One score has none."""
    rates = [float(score.success_rate) for score in scores]
    noise = fmean(_noise(score) for score in scores)
    spread = max(0.0, pvariance(rates) * len(rates) / max(1, len(rates) - 1) - noise) if len(rates) > 1 else 0.0
    shrink = spread / (spread + noise) if spread + noise > 0 else 0.0
    middle = fmean(rates)
    centres = [middle + shrink * (rate - middle) for rate in rates]
    rng = random.Random(0)
    total = 0.0
    for _ in range(DRAWS):
        truths = [rng.gauss(centre, math.sqrt(shrink * noise)) for centre in centres]
        seen = [truth + rng.gauss(0.0, math.sqrt(noise)) for truth in truths]
        winner = max(range(len(seen)), key=seen.__getitem__)
        total += seen[winner] - truths[winner]
    return Inflation(max(rates), max(0.0, total / DRAWS))


def _noise(score: Score) -> float:
    """Upper bound on a success rate's variance around its truth: all tasks alike. Never 0 (after Agresti-Coull)."""
    n = len(score.scored)
    rate = (float(score.success_rate) * n + 2) / (n + 4)
    return rate * (1 - rate) / (n + 4)
