"""What a run spent, per phase and in total.

Rollouts, sampled tokens and the proposer's usage are the journal's: exact, whatever happened to the jobs. Times,
computed tokens, FLOPs and idle time are measured, one line of kind `account` in metrics.jsonl for every journal entry,
which names it; so the jobs of a resumed run add up. `notes` says what the records do not hold.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a report reads accounts without JAX
    from whale_jax.hosts.hosts import MeanBusy
    from whale_jax.qwen3_5.config import Qwen35Config
    from whale_jax.report.busy import BusyClock

KIND = "account"
"""Kind of the lines in metrics.jsonl."""


def flops(config: Qwen35Config, *, computed: int, sampled: int, trained: int) -> float:
    """FLOPs with weight matrices: 2 per weight and token forward, 4 backward.

    Counted: the matrices of the layers for every token that an engine computed, the output head for every token that it
    sampled, and both, forward and backward, for every position trained on. Not counted: attention and the delta rule,
    which have no weights, elementwise work, padding, and what a backward pass computes anew. The model's parts are
    those of `plan.model_cost`.

    Args:
        computed: tokens that went through the layers in engines; a common beginning that was kept is no computation.
        sampled: tokens that were sampled.
        trained: positions of packed rows in use, over all updates.
    """
    from whale_jax.plan.model_cost import head_weights, layer_weights

    layers, head = layer_weights(config), head_weights(config)
    return 2.0 * (computed * layers + sampled * head) + 6.0 * trained * (layers + head)


class Meter:
    """Measures a job from one journal entry to the next."""

    def __init__(
        self,
        config: Qwen35Config,
        stats: Callable[[], Mapping[str, int]],
        clock: BusyClock | MeanBusy,
        job_seconds: float,
    ) -> None:
        """Args:
        stats: the driver's counters.
        clock: of its engines and of training.
        job_seconds: what the job has taken so far: reading, compiling.
        """
        self._config = config
        self.stats = stats
        self._clock = clock
        self._start_seconds = job_seconds
        self._trained = 0
        self._mark = self._now()

    def trained(self, positions: int) -> None:
        """Adds positions of packed rows that an update went over."""
        self._trained += positions

    @property
    def since_lap(self) -> float:
        """Seconds since the last lap."""
        return time.monotonic() - self._mark[0]

    def lap(self) -> dict[str, float | int]:
        """What was spent since the last lap; the first one holds the job's start beside it."""
        before, self._mark = self._mark, self._now()
        seconds, busy, computed, sampled = (after - was for after, was in zip(self._mark, before, strict=True))
        trained, self._trained = self._trained, 0
        start, self._start_seconds = self._start_seconds, 0.0
        return {
            "seconds": seconds,
            "busy_seconds": min(busy, seconds),
            "computed_tokens": int(computed),
            "trained_tokens": trained,
            "flops": flops(self._config, computed=int(computed), sampled=int(sampled), trained=trained),
            "start_seconds": start,
        }

    def _now(self) -> tuple[float, float, int, int]:
        stats = self.stats()
        return time.monotonic(), self._clock.seconds, stats["computed_tokens"], stats["sampled_tokens"]


@dataclass
class Spent:
    """An account.

    Attributes:
        rollouts: episodes, those without a reward included.
        sampled_tokens: ids sampled in them.
        computed_tokens: ids that engines computed, prompts included; at least one measured commit, else None.
        trained_tokens, flops, seconds, idle_seconds: as `flops` and `BusyClock` say; None as above. Idle is the time in
            which neither an engine nor a training step ran.
        other_seconds: in which there were neither episodes (of training, search or evaluation) nor a training step:
            compiling, packing, swapping weights, saving, and waiting for a proposer with nothing to evaluate meanwhile.
        proposer: the proposer's usage by kind; None where a session could not say.
        commits: journal entries.
        measured: those of them whose account was written.
    """

    rollouts: int = 0
    sampled_tokens: int = 0
    computed_tokens: int | None = None
    trained_tokens: int | None = None
    flops: float | None = None
    seconds: float | None = None
    idle_seconds: float | None = None
    other_seconds: float | None = None
    proposer: dict[str, float | None] = field(default_factory=dict)
    commits: int = 0
    measured: int = 0

    @property
    def proposer_tokens(self) -> float | None:
        """Input and output tokens together; None where a session could not say."""
        used = [self.proposer.get(name, 0) for name in ("input_tokens", "output_tokens")]
        return None if None in used else sum(value for value in used if value is not None)

    def add(
        self, rollouts: int, sampled: int, usage: Mapping[str, float | None], line: Mapping[str, Any] | None
    ) -> None:
        """Adds one journal entry, and its line of the metrics if there is one."""
        self.commits += 1
        self.rollouts += rollouts
        self.sampled_tokens += sampled
        for name, used in usage.items():
            before = self.proposer.get(name, 0)
            self.proposer[name] = None if used is None or before is None else before + used
        if line is not None:
            self.measured += 1
            self.computed_tokens = (self.computed_tokens or 0) + line["computed_tokens"]
            self.trained_tokens = (self.trained_tokens or 0) + line["trained_tokens"]
            self.flops = (self.flops or 0.0) + line["flops"]
            self.seconds = (self.seconds or 0.0) + line["seconds"]
            self.idle_seconds = (self.idle_seconds or 0.0) + line["seconds"] - line["busy_seconds"]
            self.other_seconds = self._with_other(line)

    def _with_other(self, line: Mapping[str, Any]) -> float | None:
        """None once a line of an earlier version, which tells no stages, is among them."""
        before = 0.0 if self.measured == 1 else self.other_seconds
        if before is None or "rollout_seconds" not in line:
            return None
        return before + max(0.0, line["seconds"] - line["rollout_seconds"] - line["train_seconds"])


@dataclass(frozen=True)
class Account:
    """A run's account: `phases` by name, in order; `total` of all, evaluations included; `start_seconds` are those in
    which `jobs` read and compiled, and belong to no phase."""

    phases: Mapping[str, Spent]
    total: Spent
    jobs: int
    start_seconds: float
    notes: Sequence[str]

    def other_share(self, seconds_after: float = 0.0) -> float | None:
        """Share of the wall time that is neither episodes nor training steps, the start of the jobs (reading,
        compiling) among it; None where nothing was measured.

        Args:
            seconds_after: since the last commit: the export, and what else ends a run.
        """
        if self.total.seconds is None or self.total.other_seconds is None:
            return None
        around = self.start_seconds + seconds_after
        wall = self.total.seconds + around
        return (self.total.other_seconds + around) / wall if wall else None

    def to_json(self) -> dict[str, Any]:
        """JSON-able form."""
        return {
            "phases": [{"phase": name, **asdict(spent)} for name, spent in self.phases.items()],
            "total": asdict(self.total),
            "jobs": self.jobs,
            "start_seconds": round(self.start_seconds, 1),
            "notes": list(self.notes),
        }


def account(entries: Sequence[Mapping[str, Any]], metrics: Path) -> Account:
    """The account of a run so far.

    Args:
        entries: the journal's.
        metrics: metrics.jsonl, which may be missing.
    """
    lines = _lines(metrics)
    phases: dict[str, Spent] = {}
    total = Spent()
    for entry in entries:
        name, rollouts, sampled = _read(entry)
        for spent in (phases.setdefault(name, Spent()), total):
            spent.add(rollouts, sampled, entry.get("usage", {}), lines.get(entry["entry"]))
    starts = [line["start_seconds"] for line in lines.values() if line["start_seconds"] > 0]
    return Account(phases, total, len(starts), sum(starts), list(_notes(total, len(starts))))


def _read(entry: Mapping[str, Any]) -> tuple[str, int, int]:
    """Phase, rollouts and sampled tokens of a journal entry."""
    if entry["kind"] == "evaluation":
        return f"evaluation, {entry['split']}", entry["episodes"], entry["sampled_tokens"]
    if entry["kind"] in ("search", "probe"):
        return f"cycle {entry['cycle'] + 1}, {entry['kind']}", entry["rollouts"], entry["sampled_tokens"]
    sampled = sum(step["sampled_tokens"] for step in entry["steps"])
    return f"cycle {entry['cycle'] + 1}, weights", entry["rollouts"], sampled


def _lines(metrics: Path) -> dict[int, dict[str, Any]]:
    """The account's lines by journal entry; of two about one entry the later. What is no line of it is left out."""
    found: dict[int, dict[str, Any]] = {}
    for text in metrics.read_text(encoding="utf-8", errors="replace").splitlines() if metrics.is_file() else ():
        try:
            line = json.loads(text)
        except ValueError:  # a damaged line: what it held is missing, and the notes say that something is
            continue
        if isinstance(line, dict) and line.get("kind") == KIND:
            found[line["entry"]] = line
    return found


def _notes(total: Spent, jobs: int) -> Iterable[str]:
    missing = total.commits - total.measured
    if missing:
        yield (
            f"{missing} of {total.commits} commits have no measurements (a job ended before it wrote them, or was of "
            "an earlier version): times, computed and trained tokens, FLOPs and idle time do not cover them"
        )
    if jobs > 1:
        yield (
            f"{jobs} jobs: what one of them did after its last commit was done again by the next and is counted once"
        )
