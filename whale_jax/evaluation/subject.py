"""What an evaluation outside a run works on: settings, inputs and tasks, and the pairs of a run if there is one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whale_jax import flags
from whale_jax.assemble import Parts, read_parts
from whale_jax.config import ConfigError, RunConfig, on_this_machine
from whale_jax.domains.task import Split, Task
from whale_jax.evaluation.history import Made, Station, check_inputs, find_initial_harness, read_history
from whale_jax.pair import Pair
from whale_jax.rundir import read_record
from whale_jax.training.checkpoint import Checkpoints


@dataclass(frozen=True)
class Subject:
    """Inputs, read and checked.

    Attributes:
        directory: the run's, which is only read; None without a run.
        stations: the run's pairs in order; without a run, the one of checkpoint and harness.
        split: where the tasks are from.
        tasks: what is scored.
        samples: per task, as the settings say for this split.
        settings: those that were given, by flag name: not the run's, and no defaults.
    """

    config: RunConfig
    parts: Parts
    directory: Path | None
    stations: Sequence[Station]
    split: Split
    tasks: Sequence[Task]
    samples: int
    settings: Mapping[str, Any]

    def kept(self, pair: Pair) -> bool:
        """Whether the pair's weights can be had: they are the initial ones, or their checkpoint lies there."""
        return pair.step == 0 or pair.step in self.kept_steps()

    def kept_steps(self) -> list[int]:
        """Steps whose checkpoints lie in the run directory."""
        return [] if self.directory is None else Checkpoints(self.directory / "checkpoints").steps()


def read_subject(
    settings: Mapping[str, Any], split: Split, num_tasks: int | None, argv: Sequence[str], *, trains: bool = False
) -> Subject:
    """Reads and checks every input, cheapest first; nothing heavy has started when it returns.

    Args:
        settings: those given on the command line, by flag name.
        num_tasks: the first so many tasks; None: as many as the settings say.
        argv: where `settings` are from, for messages.
        trains: phases are to be run as well, so the settings of training and search and the other splits are theirs.

    Raises:
        ConfigError: an input is missing or wrong, or is not the run's.
        JournalError: the run's journal is damaged.
    """
    directory = Path(settings["run_dir"]) if settings.get("run_dir") is not None else None
    record = None if directory is None else read_record(directory / "config.json")
    merged = {**({} if record is None else on_this_machine(record["settings"])), **settings}
    if "harness" not in settings:
        merged["harness"] = None  # a run's is found by its hash
    config = flags.settled(merged if trains else {**merged, **_only_scored(merged, split, num_tasks)}, argv)
    parts = read_parts(config)
    available = parts.splits[split]
    if num_tasks is not None and num_tasks > len(available):
        raise ConfigError(f"--num_tasks={num_tasks}: the {split.value} split holds {len(available)} tasks")
    harness = parts.harness
    if directory is not None and record is not None:
        check_inputs(directory, record, parts.inputs, other_data="task_dir" in settings)
        harness = find_initial_harness(directory, record, parts.domain.h0)
    first = Pair(0, parts.initial.weights, harness)
    evaluation = config.evaluation
    samples = {Split.VALIDATION: evaluation.validation_samples, Split.TEST: evaluation.test_samples}
    return Subject(
        config=config,
        parts=parts,
        directory=directory,
        stations=[Station("initial", Made.INITIAL, first)] if directory is None else read_history(directory, first),
        split=split,
        tasks=available[:num_tasks],
        samples=samples.get(split, 1),
        settings=settings,
    )


def _only_scored(merged: Mapping[str, Any], split: Split, num_tasks: int | None) -> dict[str, Any]:
    """Settings for scoring alone. Nothing is trained or searched, so bounds that only these have must not stand in the
    way: the schedule and the length of packed rows are set to what no check minds. Every split but the scored one is
    whole."""
    defaults = RunConfig().values()
    row_len = max(merged.get(name, defaults[name]) for name in ("row_len", "max_len"))
    whole = {f"{other.value}_tasks": 0 for other in Split if other is not split or num_tasks is not None}
    return {"schedule": "harness_only", "row_len": row_len, **whole}
