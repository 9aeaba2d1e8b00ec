"""Weights or harness next? The schedule that asks a probe before every phase (`--schedule=probe`)."""

import shutil

from whale_jax.evaluation.probe import Component, lend_checkpoint, run_trials, trial_schedule, trial_settings
from whale_jax.pair import Pair
from whale_jax.report.account import account
from whale_jax.run import Run


async def choose(run: Run, cycle: int, pair: Pair) -> Component:
    """The kind of the next phase: that which gained more per rollout in a probe from `pair`, noise or not.

    No probe is made where there is no choice: the weight budget is used (the run then ends), the search budget is used,
    or the rollout budget holds no probe. A probe spends rollouts of the run's budget and leaves nothing but its journal
    entry; one that was cut is made again, to the same result.
    """
    steps = min(run.config.schedule.probe_steps, run.schedule.total_steps - pair.step)
    iterations = sum(search["iterations"] for search in run.searches)
    searched = iterations >= run.config.schedule.search_budget_iterations
    inherited = run.journal.next_inherited() is not None  # then there was a probe, whatever this run could afford
    if not inherited and (steps <= 0 or searched or not run.affords_probe(steps)):
        return Component.WEIGHTS
    where = {"cycle": cycle, "step": pair.step, "harness": pair.harness_hash}
    entry = run.journal.replay("probe", **where)
    if entry is None:
        entry = run.journal.append("probe", {**where, **await _probe(run, cycle, pair, steps)})
        run.commit_account()
    run.spend(entry["rollouts"])
    return Component(entry["better"])


async def _probe(run: Run, cycle: int, pair: Pair, steps: int) -> dict[str, object]:
    """The fields of the journal entry."""
    run.progress.show(f"cycle {cycle + 1}, probe")
    directory = run.dir / "probe"
    shutil.rmtree(directory, ignore_errors=True)  # what a job that was cut in its probe left
    directory.mkdir()
    run.home.bring(run.dir / "checkpoints" / str(pair.step))
    lend_checkpoint(run.dir / "checkpoints", directory, pair.step)
    before = next(one.validation for one in reversed(run.milestones) if one.pair == pair)
    try:
        with run.scratch(directory, trial_settings(run.config), trial_schedule(pair.step, steps)) as scratch:
            findings = await run_trials(scratch, cycle, pair, before)
            trials = [entry for entry in scratch.journal.entries if entry["kind"] != "evaluation"]
            spent = account(trials, directory / "metrics.jsonl").total
    finally:
        run.swap.forget()
    run.meter.trained(spent.trained_tokens or 0)
    run.progress.say("\n".join(f"cycle {cycle + 1}, probe · {line}" for line in findings.text().splitlines()))
    shutil.rmtree(directory)
    return {
        **findings.to_json(),
        "weights": pair.weights,
        "rollouts": findings.rollouts,
        "sampled_tokens": spent.sampled_tokens,
        "usage": spent.proposer,
    }
