"""How much a run does: steps, searches, evaluations, and the rollouts of each."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from whale_jax.config import RunConfig
from whale_jax.domains.manifest import MANIFEST_NAME, Manifest
from whale_jax.domains.task import Split
from whale_jax.plan.plan import PlanError
from whale_jax.schedule import Fixed, make_schedule
from whale_jax.storage.inputs import local_file

PAPER_TASKS: Mapping[str, Mapping[Split, int]] = {
    "searchqa": {Split.WEIGHT: 18_946, Split.HARNESS: 256, Split.VALIDATION: 256, Split.TEST: 700},
    "math": {Split.WEIGHT: 17_917, Split.HARNESS: 256, Split.VALIDATION: 256, Split.TEST: 60},
    "chess": {Split.WEIGHT: 16_384, Split.HARNESS: 256, Split.VALIDATION: 256, Split.TEST: 256},
}
"""PAPER section 5; a validation split of 256 is what `whale_jax.prepare` sets apart."""


@dataclass(frozen=True)
class Counts:
    """What a whole run does.

    Attributes:
        steps: training steps.
        cycles: weight phases.
        searches: search phases.
        iterations: of a search phase, the incoming harness's evaluation (iteration 0) left out.
        step_rollouts: of a training step.
        arm_rollouts: of one harness in a search.
        candidates: of an iteration.
        evaluations: on validation.
        evaluation_rollouts: of one of them.
        tests: on test.
        test_rollouts: of one of them.
    """

    steps: int
    cycles: int
    searches: int
    iterations: int
    step_rollouts: int
    arm_rollouts: int
    candidates: int
    evaluations: int
    evaluation_rollouts: int
    tests: int
    test_rollouts: int

    @property
    def rollouts(self) -> dict[str, int]:
        """Of the whole run, by what they are for; candidates of every iteration valid."""
        return {
            "train": self.steps * self.step_rollouts,
            "search": self.searches * (1 + self.iterations * self.candidates) * self.arm_rollouts,
            "evaluation": self.evaluations * self.evaluation_rollouts + self.tests * self.test_rollouts,
        }


def count(config: RunConfig) -> Counts:
    """What a run of these settings does, as its schedule guesses before it starts.

    Raises:
        PlanError: how many tasks there are is not known.
    """
    tasks = {split: _tasks(config, split) for split in Split}
    rollout, evaluation = config.rollout, config.evaluation
    schedule = make_schedule(config.schedule, num_tasks=tasks[Split.WEIGHT], prompts_per_step=rollout.prompts_per_step)
    cycles, iterations = schedule.guess()
    searches = cycles if schedule.has_search_phase else 0
    if isinstance(schedule, Fixed) and searches and not config.schedule.final_search and schedule.phase_steps:
        searches -= schedule.total_steps % schedule.phase_steps > 0
    evaluations = 1 + (cycles if schedule.has_weight_phase else 0) + searches
    if evaluation.eval_every:
        evaluations += schedule.total_steps // evaluation.eval_every
    return Counts(
        steps=schedule.total_steps,
        cycles=cycles if schedule.has_weight_phase else 0,
        searches=searches,
        iterations=iterations,
        step_rollouts=rollout.prompts_per_step * rollout.samples_per_prompt,
        arm_rollouts=tasks[Split.HARNESS],
        candidates=config.search.candidates,
        evaluations=evaluations,
        evaluation_rollouts=tasks[Split.VALIDATION] * evaluation.validation_samples,
        tests=evaluations if evaluation.test_schedule == "always" else 2,
        test_rollouts=tasks[Split.TEST] * evaluation.test_samples,
    )


def _tasks(config: RunConfig, split: Split) -> int:
    """Tasks of a split: as the settings limit them, as they were prepared, or the paper's number."""
    limit = getattr(config.data, f"{split.value}_tasks")
    if limit:
        return limit
    if config.data.task_dir is not None:
        try:
            manifest = local_file("task_dir", f"{config.data.task_dir}/{MANIFEST_NAME}", config.run.work_dir)
            outputs = {file.path: file.rows for file in Manifest.read(manifest.parent).outputs}
        except (OSError, ValueError, KeyError, TypeError):
            outputs = {}
        rows = outputs.get(f"{split.value}.jsonl")
        if rows:
            return rows
    try:
        return PAPER_TASKS[config.run.domain][split]
    except KeyError:
        raise PlanError(
            f"--{split.value}_tasks=0 takes all tasks, and how many there are in --domain={config.run.domain} is not "
            "known here; say a number"
        ) from None


def microbatches(config: RunConfig, rows: int, tokens: float, fill: float) -> int:
    """Micro-batches of a mini-batch of trajectories of `tokens` positions each, rows filled to `fill`."""
    return max(1, math.ceil(config.training.minibatch * tokens / (rows * config.training.row_len * fill)))
