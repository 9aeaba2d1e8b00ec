"""Branches: a run that starts from a commit of another one (`--fork_from=<run_dir>@<entry>`).

The new run directory refers to the parent's journal entries, checkpoints, archives and evaluations by links; nothing of
the parent is copied or changed, and it must stay where it is. The seed is the parent's, so whatever both do next they
do with the same random numbers: what differs afterwards is what the changed settings did.

What the prefix did is followed as it is recorded, whatever the new settings would have done there.
"""

import dataclasses
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from whale_jax.config import ConfigError, RunConfig, all_settings
from whale_jax.evaluation.figures import evidence_path, figures_path
from whale_jax.journal import Journal, JournalError
from whale_jax.report.account import KIND as ACCOUNT
from whale_jax.rundir import Inputs, differences, read_record
from whale_jax.training.checkpoint import CheckpointError, Checkpoints

CHANGEABLE_GROUPS = ("schedule", "search", "proposer")
CHANGEABLE = ("max_rollouts", "accept", "learning_rate", "adam_b1", "adam_b2", "weight_decay", "clip_norm", "minibatch",
              "checkpoint_every")  # fmt: skip
"""Settings that a branch may change. The others decide what is measured and how (tasks, sampling, evaluation), or what
a checkpoint holds: with another one, the branch would not be comparable with its parent, or not begin at all."""

_MARK = ".forked"
"""Written when all links of a branch are there."""


@dataclasses.dataclass(frozen=True)
class ForkPoint:
    """A commit of another run.

    Attributes:
        run_dir: the parent.
        entry: number of the last journal entry that the branch shares.
        sha256: of the parent's journal up to there.
        steps: training steps behind commits of the prefix whose checkpoints the parent still has.
    """

    run_dir: Path
    entry: int
    sha256: str
    steps: tuple[int, ...]

    def record(self) -> dict[str, Any]:
        """What the branch's config.json holds of it."""
        return {"run_dir": str(self.run_dir), "entry": self.entry, "journal": self.sha256, "steps": list(self.steps)}


def fork_point(spec: str, config: RunConfig, inputs: Inputs) -> ForkPoint:
    """Reads `--fork_from`, and checks that a branch with these settings can start there. Writes nothing.

    Raises:
        ConfigError: there is no such commit or no checkpoint of it, or a setting differs that a branch cannot change.
    """
    run_dir, number = _parsed(spec)
    record = read_record(run_dir / "config.json")
    refuse_other_settings(spec, record, config, inputs)
    if not (run_dir / "journal").is_dir():
        raise ConfigError(f"--fork_from={spec}: {run_dir} has committed nothing yet")
    try:
        journal = Journal(run_dir / "journal")
    except JournalError as error:
        raise ConfigError(f"--fork_from={spec}: {error}") from error
    entries = journal.entries
    if number >= len(entries):
        raise ConfigError(f"--fork_from={spec}: the run has the entries 0 to {len(entries) - 1}")
    prefix = entries[: number + 1]
    if config.evaluation.test_schedule == "end" and any(_is_test(entry) for entry in prefix):
        first = next(entry["entry"] for entry in prefix if _is_test(entry))
        raise ConfigError(f"--fork_from={spec}: test is opened by entry {first}, after the run; name an earlier one")
    steps = _kept(spec, run_dir, prefix, entries, config)
    digest = entries[number + 1]["previous"] if number + 1 < len(entries) else journal.hash
    return ForkPoint(run_dir.resolve(), number, digest, steps)


def complete_fork(directory: Path) -> None:
    """Makes the links of a run directory whose config.json says that it is a branch. Whatever of them is there stays.

    Raises:
        ConfigError: the parent is gone or changed.
    """
    record = read_record(directory / "config.json").get("fork")
    if record is None or (directory / _MARK).exists():
        return
    parent = Path(record["run_dir"])
    try:
        entries = Journal(parent / "journal").entries[: record["entry"] + 1]
    except (JournalError, OSError) as error:
        raise ConfigError(f"{directory}: the run that it branches from cannot be read: {error}") from error
    for entry in entries:
        _link(parent, directory, f"journal/{entry['entry']:06d}.json")
        if entry["kind"] == "evaluation":
            evidence = evidence_path(Path(), entry["entry"])
            _link(parent, directory, evidence)
            _link(parent, directory, figures_path(evidence), needed=False)
        if entry["kind"] == "search":
            _link_iteration(parent, directory, entry)
    for step in record["steps"]:
        _link(parent, directory, f"checkpoints/{step}")
    _copy_account(parent, directory, record["entry"])
    (directory / _MARK).touch()


def _parsed(spec: str) -> tuple[Path, int]:
    path, at, number = spec.rpartition("@")
    if not at or not path or not number.isdecimal():
        raise ConfigError(f"--fork_from={spec}: must be <run_dir>@<entry>, the number of a file in its journal/")
    return Path(path), int(number)


def refuse_other_settings(spec: str, record: Mapping[str, Any], config: RunConfig, inputs: Inputs) -> None:
    """Raises ConfigError if a branch changes a setting or an input that it cannot.

    Args:
        spec: what `--fork_from` says, for the message.
        record: the parent's `settings` and `inputs`, as in its config.json.
    """
    free = {spec.name for group, spec in all_settings() if group in CHANGEABLE_GROUPS} | set(CHANGEABLE)
    if different := differences(record, config, inputs, free):
        raise ConfigError(
            f"--fork_from={spec}: {'; '.join(different)}. A branch may change the settings of schedule, search and "
            f"proposer, and {', '.join('--' + name for name in CHANGEABLE)}; the rest is its parent's"
        )


def _is_test(entry: Mapping[str, Any]) -> bool:
    return entry["kind"] == "evaluation" and entry["split"] == "test"


def _kept(
    spec: str, run_dir: Path, prefix: Iterable[Any], entries: Iterable[Any], config: RunConfig
) -> tuple[int, ...]:
    """Steps of the prefix with a checkpoint. Raises ConfigError unless the last one and the best pair's are there."""
    checkpoints = Checkpoints(run_dir / "checkpoints")
    present = checkpoints.steps()
    committed = {entry["step"]: entry["weights"] for entry in prefix if entry["kind"] == "weight"}

    def intact(step: int) -> bool:
        try:
            return checkpoints.meta(step)["weights"] == committed[step]
        except (CheckpointError, KeyError):
            return False

    kept = tuple(step for step in committed if step in present and intact(step))
    needed = {max(committed, default=0): "the weights of that commit"}
    scored = [
        entry for entry in prefix if entry["kind"] == "evaluation" and entry["split"] == config.evaluation.select_on
    ]
    if scored:
        needed.setdefault(max(scored, key=lambda entry: entry["mean_at_k"])["step"], "the best pair so far")
    for step, what in needed.items():
        if step and step not in kept:
            steps = {entry["step"]: entry["entry"] for entry in entries if entry["kind"] == "weight"}
            usable = ", ".join(f"step {step} (entry {steps[step]})" for step in steps if step in present)
            raise ConfigError(
                f"--fork_from={spec}: {what} are those of training step {step}, whose checkpoint is not kept. Kept "
                f"are {usable or 'none'}; a run with --keep_every=N keeps every N-th for branches"
            )
    return kept


def _link(parent: Path, directory: Path, name: str | Path, *, needed: bool = True) -> None:
    target, link = parent / name, directory / name
    if not target.exists():
        if needed:
            raise ConfigError(f"{directory}: {target} is missing, and the branch rests on it; restore it from a copy")
        return
    if not os.path.lexists(link):
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target.resolve(), target_is_directory=target.is_dir())


def _link_iteration(parent: Path, directory: Path, entry: Mapping[str, Any]) -> None:
    """One iteration of a search: its candidates, its proposer session, its confirmation, its record."""
    search = Path(f"cycle_{entry['cycle']:03d}") / "search"
    number = f"{entry['iteration']:03d}"
    for slot in entry["slots"]:
        if slot["candidate"] is not None:
            _link(parent, directory, search / "candidates" / slot["candidate"])
    _link(parent, directory, search / "sessions" / number, needed=False)
    _link(parent, directory, search / "confirmations" / f"{number}.json", needed=False)
    _link(parent, directory, search / "iterations" / f"{number}.json")


def _copy_account(parent: Path, directory: Path, last: int) -> None:
    """What the prefix has cost: the lines of its entries in the parent's metrics.jsonl, once more."""
    source, target = parent / "metrics.jsonl", directory / "metrics.jsonl"
    if not source.is_file() or target.exists():
        return
    lines = []
    for text in source.read_text(encoding="utf-8").splitlines():
        try:
            line = json.loads(text)
        except ValueError:  # half a line, which a kill left
            continue
        if line.get("kind") == ACCOUNT and line["entry"] <= last:
            lines.append(text + "\n")
    temporary = target.with_name(".metrics.jsonl.tmp")
    temporary.write_text("".join(lines), encoding="utf-8")
    os.replace(temporary, target)
