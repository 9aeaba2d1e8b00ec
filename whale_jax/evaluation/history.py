"""The pairs that a run has been through, read from its directory. Nothing is written there."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from harness_search.records import Decision
from whale_jax.config import ConfigError
from whale_jax.journal import Journal
from whale_jax.pair import Pair
from whale_jax.rundir import Inputs, read_returned


class Made(StrEnum):
    """What made a pair."""

    INITIAL = "initial"
    STEP = "step"
    """A commit inside a weight phase."""
    WEIGHTS = "weights"
    """The end of a weight phase."""
    SEARCH = "search"
    """The end of a search phase: the accepted harness, which may be the incoming one."""


@dataclass(frozen=True)
class Station:
    """A pair of a run.

    Attributes:
        label: what the run calls it ("initial", "cycle 1, weights", …).
        made: what made it.
        pair: weights and harness.
    """

    label: str
    made: Made
    pair: Pair


def read_history(run_dir: Path, initial: Pair) -> list[Station]:
    """The run's pairs in order, from its journal; the first is the initial one.

    Raises:
        JournalError: the journal is damaged.
        ConfigError: an accepted harness is missing or not the one that was accepted.
    """
    stations = [Station("initial", Made.INITIAL, initial)]
    folder = run_dir / "journal"
    for entry in Journal(folder).entries if folder.is_dir() else ():
        last = stations[-1].pair
        match entry["kind"]:
            case "weight":
                ended = entry["decision"]["stop"]
                label = f"cycle {entry['cycle'] + 1}, {'weights' if ended else 'step ' + str(entry['step'])}"
                pair = Pair(entry["step"], entry["weights"], last.harness)
                stations.append(Station(label, Made.WEIGHTS if ended else Made.STEP, pair))
            case "search" if entry["decision"] != Decision.GO_ON:
                pair = Pair(last.step, last.weights, _accepted_harness(run_dir, entry))
                stations.append(Station(f"cycle {entry['cycle'] + 1}, search", Made.SEARCH, pair))
    return stations


def find_station(stations: Sequence[Station], run_dir: Path, step: str) -> Station:
    """The station that `--step` names: `initial`, `returned`, or a training step.

    Of several pairs with the weights of one step the latest is meant: after a search, the one with its harness.

    Raises:
        ConfigError: there is no such pair, or none was returned yet.
    """
    if step == "initial":
        return stations[0]
    if step == "returned":
        return _returned(stations, run_dir)
    found = [station for station in stations if str(station.pair.step) == step]
    if not found:
        steps = ", ".join(str(number) for number in sorted({station.pair.step for station in stations}))
        raise ConfigError(f"--step={step}: the run has committed the steps {steps}; returned and initial are names too")
    return found[-1]


def find_initial_harness(run_dir: Path, record: Mapping[str, Any], h0: str) -> str:
    """The source of the harness that the run started from, which its record knows by SHA-256 alone.

    Raises:
        ConfigError: it is neither the domain's h0, nor the file it was read from, nor in an archive of the run.
    """
    wanted, file = record["inputs"]["harness"], record["settings"].get("harness")
    for source in _sources(h0, file, run_dir):
        if hashlib.sha256(source).hexdigest() == wanted:
            return source.decode()
    raise ConfigError(
        f"{run_dir}: the run's initial harness (SHA-256 {wanted[:12]}) is neither the domain's h0 nor "
        f"{file or 'a file named by --harness'}, nor in an archive of the run; put it back at its place"
    )


def check_inputs(run_dir: Path, record: Mapping[str, Any], inputs: Inputs, *, other_data: bool) -> None:
    """Refuses a checkpoint, tokenizer, template or data that are not the run's.

    Args:
        other_data: the user named other tasks on purpose.

    Raises:
        ConfigError: every difference is named.
    """
    names = {"weights": "the checkpoint", "tokenizer": "the tokenizer", "template": "the chat template"}
    if not other_data:
        names["data"] = "the data"
    differing = [
        f"{what} changed (SHA-256 was {was[:12]}, is {getattr(inputs, name)[:12]})"
        for name, what in names.items()
        if (was := record["inputs"].get(name, getattr(inputs, name))) != getattr(inputs, name)
    ]
    if differing:
        raise ConfigError(f"--run_dir={run_dir}: {'; '.join(differing)} since the run began")


def _accepted_harness(run_dir: Path, entry: Mapping[str, Any]) -> str:
    candidate = run_dir / f"cycle_{entry['cycle']:03d}" / "search" / "candidates" / entry["incumbent"]
    try:
        verdict, source = (candidate / "verdict.json").read_bytes(), (candidate / "harness.py").read_bytes()
    except OSError as error:
        raise ConfigError(f"{error.filename}: cannot be read ({error.strerror}); restore it from a copy") from error
    changed = hashlib.sha256(verdict).hexdigest() != entry["incumbent_hash"]
    if changed or json.loads(verdict)["files"]["harness.py"] != hashlib.sha256(source).hexdigest():
        raise ConfigError(f"{candidate}: was changed after it was accepted (its hash differs); restore it from a copy")
    return source.decode()


def _sources(h0: str, file: str | None, run_dir: Path) -> Iterable[bytes]:
    yield h0.encode()
    if file is not None and Path(file).is_file():
        yield Path(file).read_bytes()
    for path in sorted(run_dir.glob("cycle_*/search/candidates/000/harness.py")):
        yield path.read_bytes()


def _returned(stations: Sequence[Station], run_dir: Path) -> Station:
    steps = ", ".join(sorted({str(station.pair.step) for station in stations}))
    step, harness = read_returned(run_dir, f"initial, or one of {steps}")
    for station in stations:
        if (station.pair.step, station.pair.harness_hash) == (step, harness):
            return station
    raise ConfigError(f"{run_dir}: summary.json names a pair that is not in the journal beside it; name a --step")
