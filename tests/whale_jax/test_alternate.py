"""What the outer loop does where a budget ends in the middle of a phase."""

import asyncio

import pytest

import whale_jax.hand_over
from tests.whale_jax.small_world import export, settings, small_run, whole
from whale_jax.policy import Policy
from whale_jax.weight_phase import ROLLOUTS_USED


@pytest.mark.parametrize(("final_search", "phases"), [(True, ["weight", "search", "search"]), (False, ["weight"])])
def test_a_phase_that_the_rollout_budget_cuts_short_gets_its_search_only_where_asked(
    tmp_path, monkeypatch, final_search, phases
):
    monkeypatch.setattr(whale_jax.hand_over, "export_checkpoint", export)
    config = settings(samples_per_prompt=10, max_rollouts=39, final_search=final_search)
    with small_run(tmp_path, config) as run:
        asyncio.run(whole(run))
        entries = run.journal.entries
    assert [entry["kind"] for entry in entries if entry["kind"] in ("weight", "search")] == phases
    (weight,) = [entry for entry in entries if entry["kind"] == "weight"]
    assert weight["decision"]["reason"] == ROLLOUTS_USED


@pytest.mark.parametrize(("schedule", "times"), [("fixed", 1), ("weight_only", 1), ("harness_only", 0)])
def test_a_run_that_begins_with_weights_compiles_their_step_during_its_first_evaluation(
    tmp_path, monkeypatch, schedule, times
):
    monkeypatch.setattr(whale_jax.hand_over, "export_checkpoint", export)
    seen = []
    compile_ahead = Policy.compile_ahead

    def begin(policy: Policy) -> None:
        seen.append(len(run.journal.entries))
        compile_ahead(policy)

    monkeypatch.setattr(Policy, "compile_ahead", begin)
    config = settings(schedule=schedule)
    with small_run(tmp_path, config) as run:
        asyncio.run(whole(run))
    assert seen == [0] * times
    with small_run(tmp_path, config) as run:  # one that goes on has no such evaluation
        asyncio.run(whole(run))
    assert seen == [0] * times
