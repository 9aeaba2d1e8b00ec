"""A weight phase: online rejection-sampling fine-tuning under a harness that stands still (PAPER section 3)."""

import asyncio
import dataclasses
import time
from collections.abc import Mapping
from typing import Any

from whale_jax.pair import Pair
from whale_jax.rollout.ledger import Ledger
from whale_jax.rollout.runner import EpisodeRequest
from whale_jax.rollout.trace import harness_overhead
from whale_jax.run import Run
from whale_jax.schedule import Decision, WeightSignals
from whale_jax.stages import memory
from whale_jax.training.weight_step import StepReport

ROLLOUTS_USED = "rollout budget used"
"""The reason of a phase that `--max_rollouts` ends."""


async def weight_phase(run: Run, cycle: int, pair: Pair) -> tuple[Pair, Decision]:
    """Trains until the schedule or a budget says stop; each commit holds the steps since the last.

    Returns:
      The pair with the new weights, and the decision that ended the phase.

    Raises:
      Infrastructure: too many episodes of a step could not be scored.
    """
    steps_before, rewards = pair.step, []
    run.begin_phase("weights", cycle)
    while True:
        entry = run.journal.replay("weight", cycle=cycle, first_step=pair.step + 1)
        if entry is None:
            entry = await _train_until_commit(run, cycle, pair, steps_before, rewards)
        else:
            run.progress.advance(entry["rollouts"], replayed=True)
        rewards += [step["reward"] for step in entry["steps"]]
        run.spend(entry["rollouts"])
        run.training_curve += [(step["rollouts_so_far"], step["reward"]) for step in entry["steps"]]
        run.policy.committed(entry["step"], entry["weights"])
        pair = Pair(entry["step"], entry["weights"], pair.harness)
        decision = Decision(**entry["decision"])
        if decision.stop:
            run.end_phase()
            return pair, decision
        if run.evaluates_at(pair.step):
            await run.milestone(f"cycle {cycle + 1}, step {pair.step}", pair)


async def _train_until_commit(run: Run, cycle: int, pair: Pair, steps_before: int, rewards: list[float]) -> Any:
    policy = run.policy
    policy.move_to(pair.step)
    where = {"journal": run.journal.hash, "cycle": cycle, "first_step": pair.step + 1}
    steps: list[dict[str, Any]] = policy.take_unfinished(where)
    if steps:
        run.progress.say(
            f"cycle {cycle + 1}, weights · goes on after step {steps[-1]['step']}, which no commit has yet"
        )
    per_step = run.config.rollout.prompts_per_step * run.config.rollout.samples_per_prompt
    run.progress.advance(per_step * len(steps), replayed=True)
    policy.warm_up()
    sampler = policy.sampler.state_dict()
    try:
        while True:
            if steps:
                record = steps[-1]
                decision = _decide(
                    run, [*rewards, *(step["reward"] for step in steps)], steps_before, per_step * len(steps)
                )
                if decision.stop or run.commits_at(record["step"]):
                    break
            run.journal.settle(wait=False)
            with run.profiled(policy.step + 1):
                steps.append(await _train_step(run, cycle, pair, run.rollouts + per_step * (len(steps) + 1)))
            sampler = policy.sampler.state_dict()
    except asyncio.CancelledError:
        if steps:
            policy.save_unfinished(where, steps, sampler)
            run.progress.say(f"saved {len(steps)} step(s) since the last commit; the same command goes on after them")
        raise
    weights, saving = run.save()
    entry = run.journal.append(
        "weight",
        {
            "cycle": cycle,
            "first_step": pair.step + 1,
            "step": policy.step,
            "steps": steps,
            "rollouts": per_step * len(steps),
            "decision": {"stop": decision.stop, "reason": decision.reason, "signals": decision.signals},
            "weights": weights,
            "version": policy.version,
            "sampler": policy.sampler.state_dict(),
            "harness": pair.harness_hash,
        },
        after=saving,
    )
    policy.drop_unfinished()
    run.commit_account()
    return entry


async def _train_step(run: Run, cycle: int, pair: Pair, rollouts_so_far: int) -> dict[str, Any]:
    """One step: rollouts with the policy as it is, then one pass over what was accepted. Its record for the journal."""
    policy, settings = run.policy, run.config.rollout
    step, started = policy.step + 1, time.monotonic()
    requests = [
        EpisodeRequest(task=run.weight_tasks[task_id], sample=sample, purpose="train", cycle=cycle, step=step)
        for task_id in policy.sampler.next(settings.prompts_per_step)
        for sample in range(settings.samples_per_prompt)
    ]
    # On-policy: `pair` is the last commit, and the policy may be some steps further.
    traces = await run.rollout(policy.step, pair.harness, requests)
    rolled = time.monotonic()
    ledger = Ledger.from_traces(traces)
    run.require_coverage(ledger, f"training step {step}")
    report = run.train(traces)
    record = {
        "step": step,
        "reward": ledger.reward_mean,
        "rollouts_so_far": rollouts_so_far,
        "accepted": report.accepted,
        "unscored": ledger.unscored,
        "ends": ledger.ends,
        "sampled_tokens": ledger.sampled_tokens,
        "updates": len(report.updates),
    }
    _show(
        run,
        cycle,
        record,
        report,
        rollout_seconds=rolled - started,
        train_seconds=time.monotonic() - rolled,
        overhead=harness_overhead(trace.effort for trace in traces),
    )
    return record


def _show(
    run: Run,
    cycle: int,
    record: Mapping[str, Any],
    report: StepReport,
    *,
    rollout_seconds: float,
    train_seconds: float,
    overhead: Mapping[str, float],
) -> None:
    """A training step on the terminal and in the metrics; `overhead` is `trace.harness_overhead`'s."""
    rate = record["sampled_tokens"] / rollout_seconds
    run.progress.show(
        f"cycle {cycle + 1}, weights · step {record['step']}/{run.schedule.total_steps} · "
        f"reward {record['reward']:.3f} · accepted {record['accepted']} · {rate:,.0f} tokens/s"
    )
    values: dict[str, float | int | str | None] = {
        **{name: value for name, value in record.items() if isinstance(value, int | float)},
        **{f"end_{name}": count for name, count in record["ends"].items()},
        **{f"engine_{name}": count for name, count in run.meter.stats().items()},
        "cycle": cycle,
        "loss": report.loss,
        "grad_norm": report.grad_norm,
        "learning_rate": run.config.training.learning_rate,
        "trained_tokens": report.tokens,
        "fill_rate": report.fill_rate,
        "tokens_per_second": rate,
        "packed_tokens": report.packed_tokens,
        "packed_positions": report.packed_positions,
        "bf16_changed_share": run.swap.taken_changed_share(),
        **run.stages.since("weight step"),
        **run.runner.idle_since("weight step"),
        **overhead,
        "rollout_seconds": rollout_seconds,
        "train_seconds": train_seconds,
        **memory(),
    }
    run.meter.trained(report.packed_tokens)
    if report.mismatch is not None:
        mismatch = {f"mismatch_{name}": value for name, value in dataclasses.asdict(report.mismatch).items()}
        values |= mismatch
    run.metrics.write("weight", record["rollouts_so_far"], values)


def _decide(run: Run, rewards: list[float], steps_before: int, rollouts_since_commit: int) -> Decision:
    """The schedule's decision, unless the next step would pass the rollout budget."""
    decision = run.schedule.after_step(WeightSignals(rewards, steps_before))
    if not decision.stop and not run.affords_step(rollouts_since_commit):
        return Decision(True, ROLLOUTS_USED, decision.signals)
    return decision
