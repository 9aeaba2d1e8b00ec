"""Scores a harness, or the pairs of a run: `python -m whale_jax.evaluate [--harness=… | --run_dir=… …] [flags]`.

    --harness=… --show           every conversation, segment by segment with its source
    --run_dir=… --step=returned  a pair of a run
    --run_dir=… --matrix         every weights of a run under every harness of it
    --run_dir=… --probe          what holds the run's latest pair back now, its weights or its harness

Flags of the main job have their meaning there; those about training and search decide nothing but in a probe. With
--run_dir, the run's own settings stand in place of the defaults, and the run itself is only read. See docs/evaluate.md.
Exit status: 0 done; 2 bad settings or input; 3, 6, 8 and 9 infrastructure, as of the main job (what was measured of a
matrix is kept); 4 training diverged (in a probe); 130 interrupted.
"""

import asyncio
import dataclasses
import json
import logging
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from absl import flags as absl_flags
from rich.console import Console

from harness_search.contract import HarnessError
from whale_jax import flags
from whale_jax.assemble import Parts
from whale_jax.config import ConfigError
from whale_jax.domains.task import Split
from whale_jax.ends import GOES_ON_WHEN_MENDED, end_of
from whale_jax.evaluation import matrix
from whale_jax.evaluation.calls import CallRecorder
from whale_jax.evaluation.evaluate import Evaluation, evaluation_requests
from whale_jax.evaluation.history import Station, find_station
from whale_jax.evaluation.pairs import PairServer, pair_server
from whale_jax.evaluation.probe_run import probe_run
from whale_jax.evaluation.show import print_episode, print_evaluation
from whale_jax.evaluation.subject import Subject, read_subject
from whale_jax.journal import JournalError
from whale_jax.main import print_errors, use_all_cores
from whale_jax.pair import Pair
from whale_jax.report.progress import Progress
from whale_jax.rundir import remember
from whale_jax.storage.opening import refuse_bucket
from whale_jax.training.step import TrainingDiverged

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Options:
    """The command's own flags; their help says what they mean."""

    split: Split
    num_tasks: int | None
    samples: int | None
    show: bool
    json: bool
    unseal: bool
    step: str | None
    matrix: bool
    probe: bool

    def check(self, settings: Mapping[str, Any]) -> None:
        """Raises ConfigError where they contradict each other or the settings given."""
        if self.split is Split.TEST and not self.unseal:
            raise ConfigError("--split=test: the test set is sealed until the end of a run; --unseal opens it")
        has_run = settings.get("run_dir") is not None
        whole = [name for name in ("matrix", "probe") if getattr(self, name)]
        if whole and not has_run:
            raise ConfigError(f"--{whole[0]} needs --run_dir")
        if self.step is not None and not has_run:
            raise ConfigError(f"--step={self.step} needs --run_dir")
        if has_run and self.step is None and not whole:
            raise ConfigError("--run_dir needs --step (a training step, returned, or initial), --matrix or --probe")
        given = {"step": self.step, "show": self.show, "harness": settings.get("harness"), "probe": self.probe}
        for name in (name for name, value in given.items() if whole and value and name != whole[0]):
            raise ConfigError(f"--{whole[0]} takes its pairs from the run: --{name} does not go with it")
        if self.probe and self.split is not Split.VALIDATION:
            raise ConfigError(f"--probe measures on validation: --split={self.split.value} does not go with it")


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns its exit status."""
    values = absl_flags.FlagValues()
    flags.define(values)
    _define(values)
    try:
        settings = flags.given(argv, values)
        if values["help"].value:
            print(f"{__doc__}\n{values.get_help()}")
            return 0
        own = {field.name: values[field.name].value for field in dataclasses.fields(Options)}
        refuse_bucket("run_dir", settings.get("run_dir"), "copy the run first (gcloud storage cp --recursive)")
        options = Options(**{**own, "split": Split(own["split"])})
        options.check(settings)
        console = Console(highlight=False)
        if options.probe:
            result = _probe(settings, options, argv, console)
        else:
            subject = read_subject(settings, options.split, options.num_tasks, argv)
            result = _matrix(subject, options, console) if options.matrix else _pair(subject, options, console)
        if options.json:
            print(json.dumps(result))
        return 0
    except (ConfigError, JournalError, HarnessError) as error:
        print_errors(error)
        return 2
    except GOES_ON_WHEN_MENDED as error:
        print_errors(error)
        return end_of(error)
    except TrainingDiverged as error:
        print_errors(error)
        return 4
    except KeyboardInterrupt:
        print("interrupted; cells of a matrix that were measured are kept", file=sys.stderr)
        return 130


def _define(values: absl_flags.FlagValues) -> None:
    module: dict[str, Any] = {"flag_values": values, "module_name": "the evaluation"}
    absl_flags.DEFINE_enum("split", "validation", [split.value for split in Split], "tasks that are scored", **module)
    absl_flags.DEFINE_integer("num_tasks", None, "the first N tasks; default: as many as the run uses", 1, **module)
    absl_flags.DEFINE_integer(
        "samples", None, "samples per task (k of mean@k); default: --validation_samples or --test_samples, 1 on weight "
        "and harness tasks, and 1 with --show", 1, **module
    )  # fmt: skip
    absl_flags.DEFINE_bool("show", False, "print every conversation, segment by segment with its source", **module)
    absl_flags.DEFINE_bool("json", False, "print one JSON object as the last line", **module)
    absl_flags.DEFINE_bool("unseal", False, "allow --split=test; a run remembers that it was done", **module)
    absl_flags.DEFINE_string("step", None, "with --run_dir: a training step, returned, or initial", **module)
    absl_flags.DEFINE_bool("matrix", False, "with --run_dir: score every (weights, harness) pair of the run", **module)
    absl_flags.DEFINE_bool("probe", False, "with --run_dir: what holds the run's latest pair back", **module)
    absl_flags.DEFINE_bool("help", False, "print all flags and stop", short_name="h", **module)


def _pair(subject: Subject, options: Options, console: Console) -> dict[str, Any]:
    """Scores one pair and prints it; returns the object of `--json`."""
    station = _station(subject, options)
    _break_seal(subject, f"'{station.label}'")
    samples = options.samples or (1 if options.show else subject.samples)
    extra: dict[str, Any] = {}
    if options.show:
        recorder = CallRecorder(subject.parts.domain)
        parts = dataclasses.replace(subject.parts, domain=recorder.as_domain())
        show = lambda server: _show(server, subject, station.pair, samples, recorder, console)  # noqa: E731
        evaluation, extra["conversations"] = _serve(subject, parts, show)
    else:
        score = lambda server: server.evaluate(station.pair, subject.tasks, samples=samples)  # noqa: E731
        evaluation = _serve(subject, subject.parts, score)
    print_evaluation(console, station.label, options.split.value, evaluation)
    figures = {"domain_figures": dict(evaluation.domain_figures)}
    return {"pair": _names(station), **_where(subject), **evaluation.to_json(), **figures, **extra}


def _matrix(subject: Subject, options: Options, console: Console) -> dict[str, Any]:
    """Measures what is missing of the matrix and prints it; returns the object of `--json`."""
    assert subject.directory is not None
    samples = options.samples or subject.samples
    cells = matrix.Cells(subject.directory / "matrix", matrix.conditions(subject, samples))
    table, missing = matrix.plan(subject, cells)
    count = len(table.weights) * len(table.harnesses)
    console.print(f"{count} cells, {count - len(missing)} of them measured before")
    if missing:
        _break_seal(subject, "every pair of the matrix")
        table = _serve(
            subject,
            subject.parts,
            lambda server: matrix.measure(server, table, missing, subject, samples, cells, console.print),
        )
    matrix.print_matrix(console, table, options.split.value, samples)
    return {**_where(subject), "k": samples, "matrix": matrix.to_json(table)}


def _probe(settings: Mapping[str, Any], options: Options, argv: Sequence[str], console: Console) -> dict[str, Any]:
    """Probes the run's latest pair and prints the findings; returns the object of `--json`."""
    own = {"validation_tasks": options.num_tasks, "validation_samples": options.samples}
    given = {**settings, **{name: value for name, value in own.items() if value is not None}}
    subject = read_subject(given, options.split, None, argv, trains=True)
    progress = Progress()
    try:
        station, findings = probe_run(subject, progress)
    finally:
        progress.close()
    console.print(f"{station.label} (step {station.pair.step}):\n{findings.text()}", soft_wrap=True)
    return {"pair": _names(station), **_where(subject), "k": findings.before.k, "probe": findings.to_json()}


def _names(station: Station) -> dict[str, Any]:
    pair = station.pair
    return {"label": station.label, "step": pair.step, "weights": pair.weights, "harness": pair.harness_hash}


def _where(subject: Subject) -> dict[str, Any]:
    return {
        "domain": subject.parts.domain.name,
        "split": subject.split.value,
        "num_tasks": len(subject.tasks),
        "seed": subject.config.run.seed,
        "sandbox": subject.parts.backend.name.value,
    }


def _station(subject: Subject, options: Options) -> Station:
    """The pair to score; raises ConfigError when the run has no such pair, or keeps no checkpoint of it."""
    harness = subject.settings.get("harness")
    if subject.directory is None or options.step is None:
        return dataclasses.replace(subject.stations[0], label=harness or "h0")
    station = find_station(subject.stations, subject.directory, options.step)
    if not subject.kept(station.pair):
        kept = ", ".join(map(str, subject.kept_steps())) or "no step"
        raise ConfigError(
            f"--step={options.step}: the checkpoint of step {station.pair.step} was not kept; there are those of "
            f"{kept}, and the initial weights"
        )
    if harness is None:
        return station
    pair = Pair(station.pair.step, station.pair.weights, subject.parts.harness)
    return Station(f"{station.label} with {harness}", station.made, pair)


def _break_seal(subject: Subject, what: str) -> None:
    """Lets a run remember a look at its test set: the warning stands in the summary of its next job."""
    if subject.directory is not None and subject.split is Split.TEST:
        remember(subject.directory, [f"test was scored for {what} outside the run (evaluate --unseal)"])


def _serve(subject: Subject, parts: Parts, work: Callable[[PairServer], Awaitable[T]]) -> T:
    """Does `work` with a running engine."""

    async def served(server: PairServer) -> T:
        try:
            return await work(server)
        finally:
            await server.close()

    with pair_server(subject.config, parts, subject.directory or Path()) as server:
        return asyncio.run(served(server))


async def _show(
    server: PairServer, subject: Subject, pair: Pair, samples: int, recorder: CallRecorder, console: Console
) -> tuple[Evaluation, list[dict[str, Any]]]:
    """One episode after the other, each printed when it is done: the calls of one cannot be taken for another's."""
    codec = subject.parts.codec
    traces, conversations = [], []
    requests = evaluation_requests(subject.tasks, samples=samples, purpose=subject.split.value)
    for number, request in enumerate(requests, start=1):
        (trace,) = await server.rollout(pair, [request])
        title = f"episode {number} of {len(requests)} · task {request.task.id} · sample {request.sample}"
        print_episode(console, title, request.task, trace, recorder.calls, codec)
        traces.append(trace)
        conversations.append({**trace.to_public_json(codec), "calls": [call.to_json() for call in recorder.calls]})
    return server.evaluated(traces, subject.tasks, samples=samples), conversations


if __name__ == "__main__":
    use_all_cores()
    logging.basicConfig(level=logging.WARNING)
    sys.exit(main(sys.argv))
