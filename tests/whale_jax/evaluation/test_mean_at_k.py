"""mean@k, its intervals, and paired differences."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whale_jax.evaluation.mean_at_k import mean_at_k, paired_difference, task_means

REWARDS = st.dictionaries(
    st.integers(0, 30).map(str), st.lists(st.sampled_from([0, 1, None]), min_size=1, max_size=8), max_size=20
)


def test_the_mean_is_over_tasks_and_missing_data_is_not_zero() -> None:
    rewards = {"a": [1, 1, None, None], "b": [0, 0, 0, 0], "c": [None] * 4, "d": [1, 0, 0, 1]}
    assert task_means(rewards) == {"a": 1.0, "b": 0.0, "d": 0.5}
    estimate = mean_at_k(rewards)
    assert (estimate.mean, estimate.tasks, estimate.samples) == (0.5, 3, 10)


def test_an_interval_by_hand() -> None:
    """100 tasks, half all right and half all wrong: the samples of a task add nothing, so it is Wilson's for 50 of 100,
    with t(99) = 1.9842 in place of 1.96."""
    estimate = mean_at_k({str(task): [task % 2] * 8 for task in range(100)})
    t2 = 1.98422**2
    half = math.sqrt(t2) / (1 + t2 / 100) * math.sqrt(0.25 / 100 + t2 / 40_000)
    assert estimate.ci95 == pytest.approx((0.5 - half, 0.5 + half), abs=2e-5)


@pytest.mark.parametrize("value", [0, 1])
def test_equal_results_are_never_certainty(value: int) -> None:
    estimate = mean_at_k({str(task): [value] * 8 for task in range(50)})
    assert estimate.mean == value
    assert 0.05 < estimate.high - estimate.low < 0.1
    same = {str(task): [1, 0] for task in range(50)}
    estimate = mean_at_k(same)
    assert estimate.high - estimate.low > 0.15
    difference = paired_difference(same, same)
    assert difference.mean == 0
    assert -0.1 < difference.low < -0.02
    assert 0.02 < difference.high < 0.1


def test_too_few_tasks_say_nothing() -> None:
    assert math.isnan(mean_at_k({}).mean)
    assert mean_at_k({}).to_json() == {"mean": None, "ci95": [0.0, 1.0], "tasks": 0, "samples": 0}
    assert mean_at_k({"a": [1] * 8}).ci95 == (0.0, 1.0)
    assert paired_difference({"a": [1]}, {"a": [0]}).ci95 == (-1.0, 1.0)
    assert math.isnan(paired_difference({"a": [1]}, {"b": [0]}).mean)


def test_differences_are_paired_by_task() -> None:
    before = {"a": [0, 0], "b": [1, 0], "c": [1, 1], "only": [1, 1]}
    after = {"a": [1, 0], "b": [1, 1], "c": [1, 1], "d": [0, 0]}
    difference = paired_difference(before, after)
    assert (difference.mean, difference.tasks, difference.samples) == (pytest.approx(1 / 3), 3, 12)


@given(REWARDS, REWARDS)
@settings(max_examples=50, deadline=None)
def test_intervals_hold_the_mean_and_stay_in_range(one: dict, two: dict) -> None:
    estimate = mean_at_k(one)
    assert 0 <= estimate.low < estimate.high <= 1
    assert math.isnan(estimate.mean) or estimate.low <= estimate.mean <= estimate.high
    difference, reverse = paired_difference(one, two), paired_difference(two, one)
    assert -1 <= difference.low < difference.high <= 1
    if difference.tasks:
        assert difference.low <= difference.mean <= difference.high
        assert reverse.mean == pytest.approx(-difference.mean)
        assert reverse.ci95 == pytest.approx((-difference.high, -difference.low))


@pytest.mark.parametrize(("tasks", "spread"), [(30, 0.5), (50, 3.0)])
def test_intervals_cover(tasks: int, spread: float) -> None:
    """Tasks with their own success rates (Beta), k = 8, two arms of which one is better: nominal coverage at least,
    within what the repetitions can tell, and not far above it."""
    rng = np.random.default_rng(0)
    hits, pair_hits = 0, 0
    for _ in range(250):
        rates = rng.beta(0.3 * spread, 0.7 * spread, tasks)
        better = rates + 0.5 * (1 - rates) * rates
        one, two = (rng.random((tasks, 8)) < p[:, None] for p in (rates, better))
        first = {str(task): [int(value) for value in row] for task, row in enumerate(one)}
        second = {str(task): [int(value) for value in row] for task, row in enumerate(two)}
        estimate, difference = mean_at_k(first), paired_difference(first, second)
        true_gain = 0.5 * (0.3 * 0.7) * spread / (spread + 1)
        hits += estimate.low <= 0.3 <= estimate.high
        pair_hits += difference.low <= true_gain <= difference.high
    assert 0.92 <= hits / 250 <= 0.99
    assert pair_hits / 250 >= 0.93
