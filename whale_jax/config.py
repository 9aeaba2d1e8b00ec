"""The configuration of a run: every group of settings (`settings`), checked together.

Every check of a setting is made here (`RunConfig.check`), before anything heavy starts.
"""

import dataclasses
import hashlib
import json
import math
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args, get_origin

from harness_search.proposers.build import ProposerOptions
from whale_jax.settings import (
    DOMAINS,
    DataSettings,
    EvaluationSettings,
    JudgeSettings,
    MeshSettings,
    ModelSettings,
    RolloutSettings,
    RunSettings,
    ScheduleSettings,
    SearchSettings,
    TrainingSettings,
)


class ConfigError(ValueError):
    """One or more settings are wrong; the message names each flag, its value, and what it must be."""


_GROUPS: dict[str, type] = {
    "run": RunSettings,
    "model": ModelSettings,
    "data": DataSettings,
    "judge": JudgeSettings,
    "schedule": ScheduleSettings,
    "rollout": RolloutSettings,
    "training": TrainingSettings,
    "mesh": MeshSettings,
    "search": SearchSettings,
    "proposer": ProposerOptions,
    "evaluation": EvaluationSettings,
}


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """All settings of a run."""

    run: RunSettings = dataclasses.field(default_factory=RunSettings)
    model: ModelSettings = dataclasses.field(default_factory=ModelSettings)
    data: DataSettings = dataclasses.field(default_factory=DataSettings)
    judge: JudgeSettings = dataclasses.field(default_factory=JudgeSettings)
    schedule: ScheduleSettings = dataclasses.field(default_factory=ScheduleSettings)
    rollout: RolloutSettings = dataclasses.field(default_factory=RolloutSettings)
    training: TrainingSettings = dataclasses.field(default_factory=TrainingSettings)
    mesh: MeshSettings = dataclasses.field(default_factory=MeshSettings)
    search: SearchSettings = dataclasses.field(default_factory=SearchSettings)
    proposer: ProposerOptions = dataclasses.field(default_factory=ProposerOptions)
    evaluation: EvaluationSettings = dataclasses.field(default_factory=EvaluationSettings)

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> "RunConfig":
        """Builds and checks a configuration from flag names.

        Raises:
          ConfigError: for an unknown name or a value out of range; all problems are listed at once.
        """
        known = {spec.name: group for group, spec in all_settings()}
        unknown = sorted(set(values) - set(known))
        if unknown:
            raise ConfigError("unknown settings: " + ", ".join("--" + name for name in unknown))
        config = cls(
            **{
                group: kind(**{f.name: values[f.name] for f in dataclasses.fields(kind) if f.name in values})
                for group, kind in _GROUPS.items()
            }
        )
        config.check()
        return config

    def values(self) -> dict[str, Any]:
        """Every setting by flag name."""
        return {spec.name: getattr(getattr(self, group), spec.name) for group, spec in all_settings()}

    def hashed_values(self) -> dict[str, Any]:
        """The settings that decide what a run computes: all but the operational ones."""
        operational = {spec.name for _, spec in all_settings() if spec.metadata["operational"]}
        return {name: value for name, value in self.values().items() if name not in operational}

    def searchqa_options(self) -> dict[str, str]:
        """The settings that SearchQA alone takes, by the names of its loader; those that are not given are left out."""
        given = {"retriever_url": self.data.retriever_url, **dataclasses.asdict(self.judge)}
        return {name: value for name, value in given.items() if value is not None}

    def hash(self) -> str:
        """SHA-256 of the settings that decide what a run computes; late ones at their default are left out."""
        unset = {spec.name: spec.default for _, spec in all_settings() if spec.metadata["late"]}
        values = {
            name: value for name, value in self.hashed_values().items() if name not in unset or value != unset[name]
        }
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()

    def check(self) -> None:
        """Raises ConfigError with one line per problem."""
        problems = [*self._range_problems(), *self._combination_problems()]
        if problems:
            raise ConfigError("\n".join(problems))

    def _range_problems(self) -> Iterator[str]:
        for group, spec in all_settings():
            value, (kind, optional) = getattr(getattr(self, group), spec.name), value_type(spec)
            if value is None and optional:
                continue
            choices = get_args(kind) if get_origin(kind) is Literal else None
            if choices is not None:
                if value not in choices:
                    yield f"--{spec.name} must be one of {', '.join(choices)}, got {value!r}"
                continue
            if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
                yield f"--{spec.name} must be UTF-8 text, got {value!r}"
                continue
            if isinstance(value, float) and not math.isfinite(value):
                yield f"--{spec.name} must be a finite number, got {value}"
                continue
            at_least, above = spec.metadata["at_least"], spec.metadata["above"]
            if at_least is not None and value < at_least:
                yield f"--{spec.name} must be >= {at_least}, got {value}"
            if above is not None and value <= above:
                yield f"--{spec.name} must be > {above}, got {value}"

    def _combination_problems(self) -> Iterator[str]:
        schedule, rollout, training = self.schedule, self.rollout, self.training
        if rollout.top_p > 1:
            yield f"--top_p must be <= 1, got {rollout.top_p}"
        for name in ("adam_b1", "adam_b2"):
            if getattr(training, name) >= 1:
                yield f"--{name} must be < 1, got {getattr(training, name)}"
        if 0 < self.data.weight_tasks < rollout.prompts_per_step:
            limit = self.data.weight_tasks
            yield f"--prompts_per_step must be <= --weight_tasks ({limit}), got {rollout.prompts_per_step}"
        if self.data.max_bad_rows > 1:
            yield f"--max_bad_rows is a share and must be <= 1, got {self.data.max_bad_rows}"
        if training.row_len < rollout.max_len:
            yield f"--row_len must be >= --max_len ({rollout.max_len}) for a long chat to fit; got {training.row_len}"
        if rollout.extend_chunk > rollout.max_len:
            yield f"--extend_chunk must be <= --max_len ({rollout.max_len}), got {rollout.extend_chunk}"
        if schedule.min_iterations > schedule.max_iterations:
            limit = schedule.max_iterations
            yield f"--min_iterations must be <= --max_iterations ({limit}), got {schedule.min_iterations}"
        for proposer, name in (
            ("gemini", "proposer_model"),
            ("command", "proposer_command"),
            ("replay", "replay_from"),
        ):
            if self.search.proposer == proposer and not getattr(self.proposer, name):
                yield f"--proposer={proposer} needs --{name}"
        if self.run.domain not in DOMAINS and ":" not in self.run.domain:
            known = ", ".join(DOMAINS)
            yield f"--domain must be one of {known}, or package.module:function, got {self.run.domain!r}"
        if self.run.domain != "searchqa":
            for name in self.searchqa_options():
                yield f"--{name} is a setting of --domain=searchqa alone"
        if self.judge.judge_model is None:
            for name in ("judge_prompt", "judge_cache"):
                if getattr(self.judge, name) is not None:
                    yield f"--{name} needs --judge_model"
        if self.data.retriever_url is not None and self.data.task_dir is None:
            yield "--retriever_url needs --task_dir: the demo's questions are about the demo's corpus"
        mesh = self.mesh
        if mesh.num_processes > 1 and mesh.sizes is None:
            yield (
                f"--num_processes={mesh.num_processes} needs a mesh over all devices: --mesh_data, --mesh_fsdp, "
                "--mesh_tensor"
            )
        if mesh.coordinator_address is not None:
            if mesh.num_processes == 1:
                yield "--coordinator_address needs --num_processes greater than 1"
            if not mesh.coordinator_address.rpartition(":")[2].isdecimal():
                yield f"--coordinator_address must be host:port, got {mesh.coordinator_address!r}"
        if mesh.process_id >= mesh.num_processes:
            yield f"--process_id must be < --num_processes ({mesh.num_processes}), got {mesh.process_id}"
        if mesh.process_id and mesh.coordinator_address is None:
            yield "--process_id needs --coordinator_address"
        if self.evaluation.select_on == "test" and self.evaluation.test_schedule != "always":
            yield "--select_on=test needs --test_schedule=always"


def all_settings() -> Iterator[tuple[str, dataclasses.Field]]:
    """Every (group name, field) in order."""
    for group, kind in _GROUPS.items():
        for spec in dataclasses.fields(kind):
            yield group, spec


def on_this_machine(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A recorded run's settings without the mesh and the processes that it ran on."""
    places = {spec.name for spec in dataclasses.fields(MeshSettings)}
    return {name: value for name, value in settings.items() if name not in places}


def value_type(spec: dataclasses.Field) -> tuple[Any, bool]:
    """The field's type without None, and whether None is allowed."""
    kind: Any = spec.type
    if get_origin(kind) in (typing.Union, types.UnionType):
        inner = [arm for arm in get_args(kind) if arm is not type(None)]
        return inner[0], True
    return kind, False
