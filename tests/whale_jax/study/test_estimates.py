"""Intervals over few seeds: known values, and what they cover when the truth is known."""

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from tests.whale_jax.study.made_study import scores
from whale_jax.study.estimates import Estimate, crossed, difference, over_seeds, pooled
from whale_jax.study.scores import Scores


def test_students_interval_over_seeds():
    values = {1: 0.30, 2: 0.34, 3: 0.29, 4: 0.36, 5: 0.31}
    estimate = over_seeds(values)
    low, high = ttest_1samp(list(values.values()), 0).confidence_interval(0.95)
    assert estimate is not None
    assert estimate.mean == pytest.approx(0.32)
    assert estimate.over_seeds == pytest.approx((low, high))
    assert over_seeds({}) is None
    assert over_seeds({3: 0.5}) == Estimate(0.5, {3: 0.5})


def test_variances_of_seeds_and_tasks_are_added():
    """2 seeds, 3 tasks: seeds' means 1/6 and 1/2, tasks' means 1/2, 1/2, 0; both have squared error 1/36."""
    estimate = crossed({1: np.array([0.0, 0.5, 0.0]), 2: np.array([1.0, 0.5, 0.0])})
    assert estimate is not None
    assert estimate.mean == pytest.approx(1 / 3)
    assert estimate.over_seeds == pytest.approx((1 / 3 - 12.7062 / 6, 1 / 3 + 12.7062 / 6), abs=1e-4)
    degrees = (1 / 18) ** 2 / ((1 / 36) ** 2 / 1 + (1 / 36) ** 2 / 2)
    assert degrees == pytest.approx(8 / 3)
    half = 3.4229 * (1 / 18) ** 0.5  # Student's 97.5 % point at 8/3 degrees of freedom
    assert estimate.over_both == pytest.approx((1 / 3 - half, 1 / 3 + half), abs=1e-3)


def test_what_is_missing_is_left_out():
    nan = np.nan
    estimate = crossed({1: np.array([nan, 0.5, 0.1]), 2: np.array([nan, nan, nan]), 3: np.array([nan, 0.3, nan])})
    assert estimate is not None
    assert estimate.by_seed == pytest.approx({1: 0.3, 3: 0.3})
    assert crossed({1: np.array([nan])}) is None
    one_task = crossed({1: np.array([nan, 0.2]), 2: np.array([nan, 0.4])})
    assert one_task is not None
    assert one_task.over_both is None
    assert pooled([np.array([0.2, nan, nan]), np.array([0.4, 0.1, nan])]) == pytest.approx([0.3, 0.1, nan], nan_ok=True)


def test_differences_are_paired_by_seed_and_task():
    def of(*rights, split="test"):
        return Scores.from_json(scores(rights, split=split))

    before, after = {1: of(0, 1, 2), 2: of(0, 0, 2), 9: of(0, 0, 0)}, {1: of(1, 1, 2), 2: of(2, 0, 2)}
    estimate = difference(before, after)
    assert estimate is not None
    assert estimate.by_seed == pytest.approx({1: 1 / 6, 2: 1 / 3})
    assert difference(before, {5: of(0, 0, 0)}) is None
    with pytest.raises(ValueError, match="seed 1: the two were scored on other tasks"):
        difference(before, {1: of(1, 1, 2, split="validation")})


@pytest.mark.parametrize(
    ("seeds", "both", "values", "verdict"),
    [
        ((0.1, 0.3), (0.05, 0.35), (0.1, 0.3), "ahead"),
        ((0.1, 0.3), (-0.05, 0.45), (0.1, 0.3), "not decided"),
        ((-0.1, 0.5), (0.05, 0.35), (0.1, 0.3), "not decided"),
        ((-0.3, -0.1), (-0.4, -0.1), (-0.2, -0.2), "behind"),
        ((0.0, 0.0), (0.0, 0.0), (0.0, 0.0), "no difference in any seed"),
        (None, None, (0.2,), "one seed"),
    ],
)
def test_a_difference_is_decided_where_both_intervals_exclude_zero(seeds, both, values, verdict):
    assert Estimate(0.0, dict(enumerate(values)), seeds, both).verdict == verdict


def test_the_intervals_hold_the_truth_as_often_as_they_say():
    """5 seeds and 60 tasks, both with effects of their own: the interval over both is meant for exactly that."""
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(400):
        table = 0.1 + rng.normal(0, 0.02, (5, 1)) + rng.normal(0, 0.2, (1, 60)) + rng.normal(0, 0.2, (5, 60))
        estimate = crossed(dict(enumerate(table)))
        assert estimate is not None
        assert estimate.over_both is not None
        low, high = estimate.over_both
        held += low <= 0.1 <= high
    assert 0.94 <= held / 400 <= 0.995
