"""How much a run is going to do, as far as its schedule lets that be seen before it starts."""

import math
from collections.abc import Mapping
from typing import NamedTuple

from whale_jax.config import RunConfig
from whale_jax.domains.task import Split
from whale_jax.schedule import Schedule


class Expected(NamedTuple):
    """Rollouts of training and search together, cycles, and episodes of evaluations."""

    rollouts: int
    cycles: int
    evaluations: int


def expected_work(config: RunConfig, schedule: Schedule, tasks: Mapping[Split, int]) -> Expected:
    """What a run of these settings does; `tasks` is how many each split has."""
    rollout, evaluation = config.rollout, config.evaluation
    cycles, iterations = schedule.guess()
    rollouts = schedule.total_steps * rollout.prompts_per_step * rollout.samples_per_prompt
    if schedule.has_search_phase:
        rollouts += cycles * (1 + iterations * config.search.candidates) * tasks[Split.HARNESS]
    if 0 < config.run.max_rollouts < rollouts:
        cycles = math.ceil(cycles * config.run.max_rollouts / rollouts)
        rollouts = config.run.max_rollouts
    milestones = 1 + cycles * (schedule.has_weight_phase + schedule.has_search_phase)
    if evaluation.eval_every:
        milestones += schedule.total_steps // evaluation.eval_every
    tests = milestones if evaluation.test_schedule == "always" else 2
    episodes = milestones * tasks[Split.VALIDATION] * evaluation.validation_samples
    return Expected(rollouts, cycles, episodes + tests * tasks[Split.TEST] * evaluation.test_samples)
