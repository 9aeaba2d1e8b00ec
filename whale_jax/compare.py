"""Runs and branches side by side: `python -m whale_jax.compare RUN RUN … [--json]`.

Accuracy against rollouts and tokens, what else was spent, and each run minus the first: paired over the tasks that both
were scored on, with 95 % intervals. Runs need not be finished. Nothing is written. Exit status: 0 done, 2 refused.
"""

import argparse
import contextlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from whale_jax.config import ConfigError, all_settings
from whale_jax.evaluation.evaluate import Evaluation
from whale_jax.evaluation.evidence import read_evidence
from whale_jax.journal import Journal, JournalError
from whale_jax.report.account import Account, account
from whale_jax.rundir import read_record
from whale_jax.storage.bucket import BucketError
from whale_jax.storage.opening import run_to_read

SHOWN = ("schedule", "search_space", "proposer", "seed")
"""Settings that stand in the table; `differs` in the object holds all that decide a run and are not the first one's."""


@dataclass(frozen=True)
class Point:
    """An evaluated pair on the way.

    Attributes:
        label: what had just been done.
        entry: number of the journal entry.
        step, harness: of the pair.
        rollouts, sampled_tokens: of training and search before it, the shared prefix of a branch included.
        evaluation: on the split that selects.
    """

    label: str
    entry: int
    step: int
    harness: str
    rollouts: int
    sampled_tokens: int
    evaluation: Evaluation


@dataclass(frozen=True)
class RunView:
    """What a comparison reads of a run.

    Attributes:
        name: as it was named on the command line.
        record: its config.json.
        points: validation in order (test, where the protocol selects on it); never empty.
        tests: test figures by (step, harness) of the pair.
        spent: its account.
    """

    name: str
    record: Mapping[str, Any]
    points: Sequence[Point]
    tests: Mapping[tuple[int, str], Evaluation]
    spent: Account

    @property
    def best(self) -> Point:
        """The pair that the run returns, or would return now: the best one, of equals the earliest."""
        return max(self.points, key=lambda point: point.evaluation.mean)

    def test(self, point: Point) -> Evaluation | None:
        """Test figures of a pair, where test was opened for it."""
        return self.tests.get((point.step, point.harness))


def read_run(path: Path) -> RunView:
    """Reads a run directory.

    Raises:
        ConfigError: it is no run directory, is damaged, or holds no evaluation yet.
    """
    record = read_record(path / "config.json")
    try:
        entries = Journal(path / "journal").entries if (path / "journal").is_dir() else []
        points, tests = _evaluations(path, entries, record["settings"].get("select_on", "validation"))
    except (JournalError, OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    if not points:
        raise ConfigError(f"{path}: nothing was evaluated yet")
    return RunView(str(path), record, points, tests, account(entries, path / "metrics.jsonl"))


def _evaluations(
    path: Path, entries: Sequence[Mapping[str, Any]], select_on: str
) -> tuple[list[Point], dict[tuple[int, str], Evaluation]]:
    points: list[Point] = []
    tests: dict[tuple[int, str], Evaluation] = {}
    rollouts = tokens = 0
    for entry in entries:
        if entry["kind"] != "evaluation":
            rollouts += entry["rollouts"]
            tokens += sum(part["sampled_tokens"] for part in entry.get("steps", [entry]))
            continue
        evaluation = read_evidence(path, entry)
        if entry["split"] == "test":
            tests[entry["step"], entry["harness"]] = evaluation
        if entry["split"] == select_on:
            place = (entry["label"], entry["entry"], entry["step"], entry["harness"], rollouts, tokens)
            points.append(Point(*place, evaluation))
    return points, tests


def compare(runs: Sequence[RunView]) -> dict[str, Any]:
    """Everything as JSON: `runs`, each with its settings, curve, account, and its difference to the first run."""
    first = runs[0]
    return {"reference": first.name, "runs": [_described(run, first) for run in runs]}


def _described(run: RunView, first: RunView) -> dict[str, Any]:
    initial, best = run.points[0], run.best
    before = first.record["settings"]
    deciding = {spec.name for _, spec in all_settings() if not spec.metadata["operational"]}
    return {
        "run": run.name,
        "settings": {name: run.record["settings"].get(name) for name in SHOWN},
        "differs": {
            name: value
            for name, value in run.record["settings"].items()
            if name in deciding and before.get(name) != value
        },
        "fork": run.record.get("fork"),
        "curve": [
            {
                "label": point.label,
                "entry": point.entry,
                "rollouts": point.rollouts,
                "sampled_tokens": point.sampled_tokens,
                **point.evaluation.estimate.to_json(),
            }
            for point in run.points
        ],
        "returned": {"label": best.label, "step": best.step, "harness": best.harness},
        "selecting": best.evaluation.estimate.to_json(),
        "test": {name: _estimate(run.test(point)) for name, point in (("initial", initial), ("returned", best))},
        "spent": run.spent.to_json()["total"],
        "minus_first": None if run is first else _difference(run, first),
    }


def _estimate(evaluation: Evaluation | None) -> dict[str, Any] | None:
    return None if evaluation is None else evaluation.estimate.to_json()


def _difference(run: RunView, first: RunView) -> dict[str, Any]:
    """Paired differences of the returned pairs; None where one of them has no figures, or their tasks are others."""
    same = run.record["inputs"].get("data") == first.record["inputs"].get("data")
    ours, theirs = run.test(run.best), first.test(first.best)
    selecting = run.best.evaluation.minus(first.best.evaluation) if same else None
    test = ours.minus(theirs) if same and ours is not None and theirs is not None else None
    seeds = [one.record["settings"].get("seed") for one in (run, first)]
    return {
        "selecting": selecting.to_json() if selecting and selecting.tasks else None,
        "test": test.to_json() if test and test.tasks else None,
        "same_tasks": same,
        "common_random_numbers": same and seeds[0] == seeds[1],
    }


def show(compared: Mapping[str, Any], console: Console) -> None:
    """The comparison as tables."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    figures = ("rollouts", "sampled", "FLOP", "proposer", "min", "validation", "test", "minus first, test")
    columns = ("run", *SHOWN, *figures)
    for name in columns:
        table.add_column(name, justify="left" if name in ("run", *SHOWN[:3]) else "right", no_wrap=True)
    for run in compared["runs"]:
        table.add_row(*_row(run))
    console.print(table)
    console.print(
        "% with 95 % intervals; test is that of the returned pair, which validation picked; rollouts: all, evaluations "
        "and a branch's prefix included; sampled, proposer: tokens",
        style="dim",
    )
    for run in compared["runs"]:
        console.print(f"\n{run['run']}" + _origin(run["fork"]), style="bold")
        if run["differs"]:
            console.print("  " + " ".join(f"--{name}={value}" for name, value in run["differs"].items()), style="dim")
        for point in run["curve"]:
            console.print(f"  {point['rollouts']:>9,} rollouts  {_percent(point)}  {point['label']}", highlight=False)
        difference = run["minus_first"]
        if difference is not None and not difference["same_tasks"]:
            console.print("  other tasks than the first run's: nothing is paired")
        elif difference is not None and not difference["common_random_numbers"]:
            console.print("  another seed than the first run's: paired over tasks, not over random numbers")


def _row(run: Mapping[str, Any]) -> list[str]:
    spent, difference = run["spent"], run["minus_first"] or {}
    tokens = [spent["proposer"].get(name, 0) for name in ("input_tokens", "output_tokens")]
    return [
        run["run"],
        *(str(run["settings"][name]) for name in SHOWN),
        f"{spent['rollouts']:,}",
        f"{spent['sampled_tokens']:,}",
        "?" if spent["flops"] is None else f"{spent['flops']:.2g}",
        "?" if None in tokens else f"{sum(tokens):,}",
        "?" if spent["seconds"] is None else f"{spent['seconds'] / 60:.1f}",
        _percent(run["selecting"]),
        _percent(run["test"]["returned"]),
        _percent(difference.get("test"), sign="+") if run["minus_first"] else "",
    ]


def _percent(estimate: Mapping[str, Any] | None, sign: str = "") -> str:
    if estimate is None or estimate["mean"] is None:
        return "-"
    low, high = estimate["ci95"]
    return f"{100 * estimate['mean']:{sign}.1f} ({100 * low:{sign}.1f} to {100 * high:{sign}.1f})"


def _origin(fork: Mapping[str, Any] | None) -> str:
    return "" if fork is None else f", a branch of {fork['run_dir']}@{fork['entry']}"


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m whale_jax.compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help="run directories, local or gs://; the first is what others are held to"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    args = parser.parse_args(argv[1:])
    try:
        with contextlib.ExitStack() as stack:
            runs = [stack.enter_context(run_to_read(run)).directory for run in args.runs]
            compared = compare([read_run(run) for run in runs])
    except (BucketError, ConfigError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps(compared, indent=1, sort_keys=True))
    else:
        show(compared, Console(highlight=False, width=None if sys.stdout.isatty() else 200))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
