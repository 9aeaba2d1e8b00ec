"""Which component holds a pair back now: a small budget on each alone, compared by validation gain per rollout.

The trials are the phases of the main loop in a run of their own: the weight steps and the search iteration that the run
would do next, with its keys, its place in D_weight and its optimizer state. They start from the same pair and are
evaluated on the same validation tasks with the same keys.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from whale_jax.config import RunConfig
from whale_jax.domains.task import Split
from whale_jax.evaluation.evaluate import Evaluation
from whale_jax.evaluation.mean_at_k import Estimate
from whale_jax.pair import Pair
from whale_jax.run import Milestone, Run
from whale_jax.schedule import Fixed
from whale_jax.search_phase import search_phase
from whale_jax.weight_phase import weight_phase

_NEVER = 10**9


class Component(StrEnum):
    """What a trial changes."""

    WEIGHTS = "weights"
    SEARCH = "search"


@dataclass(frozen=True)
class Interval:
    """A figure and its 95 % interval."""

    mean: float
    low: float
    high: float

    def to_json(self) -> dict[str, Any]:
        """`mean`, `ci95`; the mean is None when there is none."""
        return {"mean": None if math.isnan(self.mean) else self.mean, "ci95": [self.low, self.high]}


@dataclass(frozen=True)
class Trial:
    """What one component gained alone.

    Attributes:
        rollouts: training or search rollouts spent.
        gain: validation mean@k minus that of the pair before, paired over tasks.
        evaluation: of the pair that came out.
    """

    rollouts: int
    gain: Estimate
    evaluation: Evaluation

    @property
    def per_rollout(self) -> Interval:
        """The gain for each rollout spent, as a share (0.01 is one point)."""
        return Interval(*(value / self.rollouts for value in (self.gain.mean, self.gain.low, self.gain.high)))

    def to_json(self) -> dict[str, Any]:
        """JSON-able form."""
        return {
            "rollouts": self.rollouts,
            "mean_at_k": self.evaluation.summary()["mean_at_k"],
            "gain": self.gain.to_json(),
            "gain_per_rollout": self.per_rollout.to_json(),
        }


@dataclass(frozen=True)
class Findings:
    """Both trials from one pair, and the evaluation of that pair."""

    before: Evaluation
    trials: Mapping[Component, Trial]

    @property
    def difference(self) -> Interval:
        """Gain per rollout of the weights minus that of the search.

        The interval is made of the two gains' intervals as if they were independent (the square-and-add rule of Zou and
        Donner 2008). Both share the evaluation of the pair before, so it is, if anything, too wide.
        """
        one, other = (self.trials[component].per_rollout for component in Component)
        mean = one.mean - other.mean
        return Interval(
            mean,
            mean - math.hypot(one.mean - one.low, other.high - other.mean),
            mean + math.hypot(one.high - one.mean, other.mean - other.low),
        )

    @property
    def better(self) -> Component:
        """The component that gained more per rollout; the weights, with which a cycle begins, where none did."""
        return Component.SEARCH if self.difference.mean < 0 else Component.WEIGHTS

    @property
    def decided(self) -> bool:
        """Whether the difference is more than noise: its interval leaves 0 out."""
        return self.difference.low > 0 or self.difference.high < 0

    @property
    def rollouts(self) -> int:
        """Spent on both trials, validation apart."""
        return sum(trial.rollouts for trial in self.trials.values())

    def to_json(self) -> dict[str, Any]:
        """JSON-able form; `bottleneck` is None where the difference may be noise."""
        return {
            "before": self.before.summary()["mean_at_k"],
            "trials": {component.value: trial.to_json() for component, trial in self.trials.items()},
            "difference": self.difference.to_json(),
            "better": self.better.value,
            "bottleneck": self.better.value if self.decided else None,
        }

    def text(self) -> str:
        """The findings in one line for each trial, and one for the answer. Gains are in points per 1,000 rollouts."""
        lines = [f"{component:<8}{_text(trial)}" for component, trial in self.trials.items()]
        more = "neither" if self.difference.mean == 0 else self.better
        if self.decided:
            lines.append(f"bottleneck now: {self.better}")
        else:
            lines.append(f"bottleneck now: not decided at this budget, the intervals allow either; {more} gained more")
        return "\n".join(lines)


def trial_schedule(step: int, steps: int) -> Fixed:
    """The schedule of a probe from training step `step`: `steps` steps, and one search iteration."""
    return Fixed(total_steps=step + steps, phase_steps=steps, phase_iterations=1)


def trial_settings(config: RunConfig) -> RunConfig:
    """A run's settings for its trials: no budget, no commit, evaluation or test inside a phase."""
    return dataclasses.replace(
        config,
        run=dataclasses.replace(config.run, max_rollouts=0),
        training=dataclasses.replace(config.training, checkpoint_every=_NEVER),
        evaluation=dataclasses.replace(
            config.evaluation, eval_every=0, test_schedule="end", select_on="validation"
        ),
    )  # fmt: skip


def lend_checkpoint(checkpoints: Path, scratch: Path, step: int) -> None:
    """Lets a scratch run start from a checkpoint of another run, which is only read. Step 0 has none and needs none."""
    if step:
        (scratch / "checkpoints").mkdir(parents=True)
        # A link, since a checkpoint may be large: of two checkpoints, none is ever removed.
        (scratch / "checkpoints" / str(step)).symlink_to((checkpoints / str(step)).resolve(), target_is_directory=True)


async def run_trials(scratch: Run, cycle: int, pair: Pair, before: Evaluation | None = None) -> Findings:
    """Both trials from `pair`.

    Args:
        scratch: a run with `trial_schedule` and `trial_settings` in a directory of its own, which holds the pair's
            checkpoint.
        cycle: the run's next one, which is part of the keys.
        before: the pair's validation figures, where they are known.

    Raises:
        InfrastructureError, SearchInfrastructureError, TrainingDiverged: as the phases do.
    """
    scratch.policy.committed(pair.step, pair.weights)
    if before is None:
        before = await scratch.evaluate("probe, before", pair, Split.VALIDATION)
    scratch.milestones.append(Milestone("before", pair, 0, 0.0, before, None, before.mean))
    trials = {}
    for component in (Component.SEARCH, Component.WEIGHTS):
        start = scratch.rollouts
        if component is Component.SEARCH:
            after = await search_phase(scratch, cycle, pair)
        else:
            after, _ = await weight_phase(scratch, cycle, pair)
        spent = scratch.rollouts - start
        changed = (after.weights, after.harness) != (pair.weights, pair.harness)
        evaluation = await scratch.evaluate(f"probe, {component}", after, Split.VALIDATION) if changed else before
        trials[component] = Trial(spent, evaluation.minus(before), evaluation)
    return Findings(before, {component: trials[component] for component in Component})


def _text(trial: Trial) -> str:
    mean, low, high = (1e5 * value for value in dataclasses.astuple(trial.per_rollout))
    return (
        f"{100 * trial.gain.mean:+.1f} points for {trial.rollouts:,} rollouts: {mean:+.1f} points per 1,000 "
        f"(95 % interval {low:+.1f} to {high:+.1f})"
    )
