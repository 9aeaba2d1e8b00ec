"""WHALE's outer loop: weights, then harness, until the weight budget is used (PAPER section 1, Algorithms 1 and 2).

The loop is written once for a fresh and for a resumed run: every commit is asked for in the journal first, and only
what is not there is done (`journal.Journal`).
"""

import dataclasses

from whale_jax.choose import choose
from whale_jax.evaluation.evaluate import Evaluation
from whale_jax.evaluation.probe import Component
from whale_jax.run import Milestone, Run
from whale_jax.schedule import BUDGET_USED
from whale_jax.search_phase import search_phase
from whale_jax.weight_phase import ROLLOUTS_USED, weight_phase


@dataclasses.dataclass(frozen=True)
class Returned:
    """The outcome of a run.

    Attributes:
      initial: the initial pair.
      returned: the best pair on the selecting split; the initial one if nothing was better.
      initial_test: test figures of the initial pair.
      returned_test: test figures of the returned pair.
      cycles: cycles begun.
    """

    initial: Milestone
    returned: Milestone
    initial_test: Evaluation
    returned_test: Evaluation
    cycles: int


class Stopped(Exception):
    """`--stop_after` ended the job at a phase boundary; the same command goes on from there."""


async def alternate(run: Run) -> Returned:
    """Alternates weight and search phases, then scores the initial and the returned pair on test.

    Where the schedule probes, a probe chooses the kind of each phase. A branch first follows the phases of its parent.

    Raises:
      Stopped: at the phase boundary that `--stop_after` names.
    """
    schedule = run.schedule
    pair = run.initial_pair
    if schedule.has_weight_phase and not schedule.probes and not run.journal.entries:
        run.policy.compile_ahead()
    await run.milestone("initial", pair)
    cycle = 0
    while True:
        truncated = inherited = False
        probed = schedule.probes if (after := run.journal.next_inherited()) is None else after["kind"] == "probe"
        alone = await choose(run, cycle, pair) if probed else None
        if _comes(run, "weight", cycle, schedule.has_weight_phase and alone is not Component.SEARCH):
            if run.journal.next_inherited() is None and (pair.step >= schedule.total_steps or not run.affords_step()):
                break
            pair, decision = await weight_phase(run, cycle, pair)
            truncated = decision.reason in (BUDGET_USED, ROLLOUTS_USED)
            await run.milestone(f"cycle {cycle + 1}, weights", pair)
            _maybe_stop(run, "weight_phase")
        searches = schedule.has_search_phase and alone is not Component.WEIGHTS
        searches = searches and (run.config.schedule.final_search or not truncated) and run.affords_search()
        if _comes(run, "search", cycle, searches):
            pair = await search_phase(run, cycle, pair)
            inherited = run.journal.followed_inherited
            await run.milestone(f"cycle {cycle + 1}, search", pair)
            _maybe_stop(run, "search_phase")
        cycle += 1
        if not schedule.has_weight_phase and not inherited:
            break
    initial, best = run.milestones[0], run.best
    return Returned(initial, best, await run.test(initial), await run.test(best), cycle)


def _comes(run: Run, kind: str, cycle: int, scheduled: bool) -> bool:
    """Whether a phase of this kind comes next in the cycle: as scheduled, unless the parent's journal says."""
    entry = run.journal.next_inherited()
    return scheduled if entry is None else (entry["kind"], entry.get("cycle")) == (kind, cycle)


def _maybe_stop(run: Run, phase: str) -> None:
    """Stops after a phase if this job did any of it, or of the evaluation after it; what the journal has is no work."""
    if run.config.run.stop_after == phase and run.worked:
        raise Stopped(phase)
