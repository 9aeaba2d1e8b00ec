"""What a study will do: every run's settings and inputs, checked as the main job checks them, and what it will cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from absl import flags as absl_flags

from whale_jax import flags
from whale_jax.assemble import Parts, read_parts
from whale_jax.config import ConfigError, RunConfig
from whale_jax.domains.task import Split
from whale_jax.expected import expected_work
from whale_jax.fork import refuse_other_settings
from whale_jax.rundir import Inputs
from whale_jax.schedule import make_schedule
from whale_jax.study.design import RunSpec, Study, StudyError


@dataclass(frozen=True)
class Planned:
    """A run whose settings and inputs are right.

    Attributes:
        parts: its inputs, shared by the runs that have the same.
        rollouts: of training and search, as far as they can be foreseen; what a branch shares is not its own.
        shared: rollouts that a branch shares.
        evaluations: episodes of evaluations and of the matrix.
        seconds: what they take, at the study's seconds per episode.
    """

    spec: RunSpec
    config: RunConfig
    parts: Parts
    rollouts: int
    shared: int
    evaluations: int
    seconds: float

    @property
    def inputs(self) -> Inputs:
        """Hashes of what it reads."""
        return self.parts.inputs


def plan_study(study: Study, out: Path) -> list[Planned]:
    """Every run of the study, in order.

    Raises:
        StudyError: settings or inputs are wrong, a branch changes what it cannot, or the runs of a domain have not the
            same budget of rollouts or do not use it; one line per problem.
    """
    problems: dict[str, list[str]] = {}
    planned: list[Planned] = []
    read: dict[object, Parts] = {}
    for spec in study.runs:
        try:
            config = _settings(spec, out)
            key = _what_inputs_depend_on(config)
            if key not in read:
                read[key] = read_parts(config)
            planned.append(_planned(study, spec, config, read[key], planned))
        except (ConfigError, OSError) as error:
            for line in str(error).splitlines():
                problems.setdefault(line, []).append(spec.name)
    lines = [f"{_several(names)}: {line}" for line, names in problems.items()] + _unequal(planned)
    if lines:
        raise StudyError("\n".join(lines))
    return planned


def _several(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _settings(spec: RunSpec, out: Path) -> RunConfig:
    values = absl_flags.FlagValues()
    flags.define(values)
    config = flags.parse(["whale_jax.study", *spec.argv(out)], values)
    if config.run.domain != spec.domain:
        raise ConfigError(f"its flagfiles say --domain={config.run.domain}")
    if config.run.stop_after != "never":
        raise ConfigError("--stop_after must be never: a run of a study goes to its end")
    return config


def _what_inputs_depend_on(config: RunConfig) -> object:
    """Equal for runs whose `Parts` are equal, their schedules apart."""
    groups = (config.model, config.data, config.judge, config.rollout, config.mesh)
    return config.run.domain, *(dataclasses.astuple(group) for group in groups)


def _planned(study: Study, spec: RunSpec, config: RunConfig, parts: Parts, before: Sequence[Planned]) -> Planned:
    shared = 0
    if spec.fork is not None:
        parent = next((one for one in before if one.spec.name == spec.parent), None)
        if parent is None:
            raise ConfigError(f"{spec.parent}, from which it branches, has problems of its own")
        record = {"settings": parent.config.values(), "inputs": dataclasses.asdict(parent.inputs)}
        refuse_other_settings(f"{spec.parent}@{spec.fork.entry}", record, config, parts.inputs)
        shared = _shared(parent.config, spec.fork.entry)
    tasks = {split: len(tasks) for split, tasks in parts.splits.items()}
    schedule = make_schedule(
        config.schedule, num_tasks=tasks[Split.WEIGHT], prompts_per_step=config.rollout.prompts_per_step
    )
    rollouts, cycles, evaluations = expected_work(config, schedule, tasks)
    if spec.fork is not None:
        evaluations -= len(parts.splits[Split.VALIDATION]) * config.evaluation.validation_samples
    if spec.matrix:
        cells = (cycles + 1) ** 2
        evaluations += cells * len(parts.splits[Split.VALIDATION]) * config.evaluation.validation_samples
    rollouts = max(0, rollouts - shared)
    seconds = (rollouts + evaluations) * study.seconds_per_episode * spec.cost
    return Planned(spec, config, parts, rollouts, shared, evaluations, seconds)


def _shared(parent: RunConfig, entry: int) -> int:
    """Rollouts of the parent up to a journal entry, where it trains alone: entry 0 evaluates, the others commit."""
    if parent.schedule.schedule != "weight_only" or parent.evaluation.eval_every:
        return 0
    return (
        entry * parent.training.checkpoint_every * parent.rollout.prompts_per_step * parent.rollout.samples_per_prompt
    )


def _unequal(planned: Sequence[Planned]) -> list[str]:
    """Runs of a domain whose budget is not that of its first run, or whose schedule ends well before it."""
    first: dict[str, Planned] = {}
    found = []
    for one in planned:
        budget = first.setdefault(one.spec.domain, one).config.run.max_rollouts
        if one.config.run.max_rollouts == 0:
            found.append(f"{one.spec.name}: --max_rollouts=0 is no budget; a study compares at equal rollouts")
        elif one.config.run.max_rollouts != budget:
            other = first[one.spec.domain].spec.name
            found.append(f"{one.spec.name}: --max_rollouts={one.config.run.max_rollouts}, and {other} has {budget}")
        elif not one.spec.ends_early and (ends := one.rollouts + one.shared) + _largest_unit(one) <= budget:
            found.append(f"{one.spec.name}: its schedule ends after {ends} of {budget} rollouts, which others use")
    return found


def _largest_unit(one: Planned) -> int:
    """Rollouts that a run makes or leaves as a whole: of a training step, or of an iteration of its search."""
    config = one.config
    step = config.rollout.prompts_per_step * config.rollout.samples_per_prompt
    if config.schedule.schedule == "weight_only":
        return step
    return max(step, config.search.candidates * len(one.parts.splits[Split.HARNESS]))
