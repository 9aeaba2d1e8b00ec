"""The schedules decide as PAPER section 2 says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_jax.schedule import BUDGET_USED, Adaptive, SearchSignals, WeightSignals, make_schedule, steps_of
from whale_jax.settings import ScheduleSettings


@pytest.mark.parametrize(
    ("epochs", "tasks", "steps"),
    [(1, 18_946, 74), (1, 17_917, 70), (1, 16_384, 64), (0.2, 18_946, 15), (0.2, 17_917, 14), (0.2, 16_384, 13)],
)
def test_steps_are_those_of_the_paper(epochs, tasks, steps):
    assert steps_of(epochs, tasks, 256) == steps


def phase_lengths(settings, rewards_of, *, tasks=18_946):
    """Lengths of the weight phases until the budget is used, and whether the budget cut the last."""
    schedule = make_schedule(settings, num_tasks=tasks, prompts_per_step=256)
    done, lengths = 0, []
    while done < schedule.total_steps:
        rewards: list[float] = []
        while True:
            rewards.append(rewards_of(len(lengths), len(rewards)))
            decision = schedule.after_step(WeightSignals(rewards, done))
            if decision.stop:
                break
        lengths.append(len(rewards))
        done += len(rewards)
    return lengths, decision.reason == BUDGET_USED


def test_fixed_alternates_until_the_budget_is_used():
    settings = ScheduleSettings(schedule="fixed", weight_budget_epochs=4, weight_phase_epochs=0.6)
    assert phase_lengths(settings, lambda *_: 0.5) == ([44] * 6 + [32], True)


def test_a_budget_that_divides_cuts_no_phase():
    settings = ScheduleSettings(schedule="fixed", weight_budget_epochs=2, weight_phase_epochs=1)
    assert phase_lengths(settings, lambda *_: 0.5, tasks=2_560) == ([10, 10], False)


def test_stagewise_and_weight_only_have_one_full_weight_phase():
    for name in ("stagewise", "weight_only"):
        assert phase_lengths(ScheduleSettings(schedule=name, weight_budget_epochs=4), lambda *_: 0.5) == ([296], False)


def test_only_the_single_arms_lack_a_phase():
    def made(name):
        return make_schedule(ScheduleSettings(schedule=name), num_tasks=512, prompts_per_step=32)

    assert not made("weight_only").has_search_phase
    assert not made("harness_only").has_weight_phase
    assert made("harness_only").total_steps == 0
    assert all(
        made(name).has_search_phase and made(name).has_weight_phase for name in ("fixed", "adaptive", "stagewise")
    )


ADAPTIVE = Adaptive(
    total_steps=1000, window=3, burn_in=3, patience=3, min_iterations=6, patience_iterations=2, max_iterations=15
)


def weight_stop(rewards):
    """The step at which the adaptive weight phase stops, or None."""
    for steps in range(1, len(rewards) + 1):
        if ADAPTIVE.after_step(WeightSignals(rewards[:steps], 0)).stop:
            return steps
    return None


def test_a_flat_reward_stops_after_patience_and_burn_in():
    assert weight_stop([0.5] * 10) == 4  # best at step 1; step 4 is the first beyond the burn-in with patience used


def test_a_rising_reward_goes_on():
    assert weight_stop([step / 100 for step in range(100)]) is None


def test_an_equal_best_is_no_new_best():
    assert weight_stop([0.0, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3]) == 7  # the window's mean reaches 0.3 at step 4


def test_the_smoothing_window_holds_fewer_steps_at_the_start():
    decision = ADAPTIVE.after_step(WeightSignals([0.2, 0.4], 0))
    assert decision.signals["smoothed"] == pytest.approx(0.3)


def test_the_adaptive_phase_ends_with_the_budget():
    decision = ADAPTIVE.after_step(WeightSignals([0.1, 0.2], 998))
    assert (decision.stop, decision.reason) == (True, BUDGET_USED)


def search_stop(scores):
    for count in range(1, len(scores) + 1):
        if ADAPTIVE.after_iteration(SearchSignals(scores[:count], 0)).stop:
            return count - 1
    return None


def test_search_stops_at_the_minimum_when_nothing_improves():
    assert search_stop([0.3] * 20) == 6


def test_search_patience_counts_from_the_last_strict_best():
    assert search_stop([0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.4, 0.4, 0.4, 0.4]) == 8


def test_scores_are_compared_with_four_decimals():
    assert search_stop([0.30001, 0.30002, 0.30003, 0.30004, 0.30004, 0.30004, 0.30004]) == 6


def test_search_is_capped():
    assert search_stop([iteration / 100 for iteration in range(30)]) == 15


def test_counting_the_incoming_evaluation_proposes_once_less():
    settings = ScheduleSettings(search_phase_iterations=6, count_incoming_as_iteration=True)
    schedule = make_schedule(settings, num_tasks=512, prompts_per_step=32)
    stops = [schedule.after_iteration(SearchSignals([0.1] * count, 0)).stop for count in range(1, 7)]
    assert stops == [False] * 5 + [True]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=60))
def test_adaptive_never_stops_within_the_burn_in(rewards):
    stop = weight_stop(rewards)
    assert stop is None or stop > ADAPTIVE.burn_in
