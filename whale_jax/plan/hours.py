"""How long a run takes: bounds of its steps times a calibration factor, and what is assumed of its episodes.

Assumed, beside what `Assumptions` holds:

- Episodes start together and take the next free slot of their replica; tools, sandboxes and verifiers keep nobody
  waiting.
- A decode step takes as long with few episodes as with many (its shape is fixed), so a phase lasts until its longest
  chain of episodes is done.
- Beginnings that the samples of a group share are computed for each of them (the engine computes them once).
- Every micro-batch costs what a full one does, with one sequence to a row, and its share of the optimizer's update.
- A checkpoint is written beside the run; what waits for it is the copy to the hosts and its hashes.
- Candidates are written evenly over a proposer's session and evaluated as they come, on all replicas.
"""

import heapq
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from whale_jax.plan.calibration import Calibration
from whale_jax.plan.chips import Chip
from whale_jax.plan.counts import Counts, microbatches
from whale_jax.plan.fleet import EXTEND_ROWS, Fleet
from whale_jax.plan.live import Spread, live_lengths, mean_live_length
from whale_jax.plan.plan import Plan, PlanError
from whale_jax.plan.programs import Step


@dataclass(frozen=True)
class Assumptions:
    """What no program tells.

    Attributes:
        spread: of sampled tokens over `--assistant_tokens`, of other tokens over the rest of `--max_len`, and of the
            live lengths of slots over `--max_len`.
        episode_tokens: sampled in an episode on average; 0: as spread.
        context_tokens: of an episode that nobody samples (prompt, results of tools), on average; 0: as spread.
        accepted_share: of a step's episodes that are trained on.
        proposer_seconds: of a proposer's session, which writes all candidates of an iteration.
        extend_fill: share of an extend step's positions that hold a token.
        row_fill: share of a packed row that holds one.
        host_rate: bytes/s at which a host copies and hashes its part of a checkpoint.
        start_seconds: of a job until its first rollout: machine, load, compilation.
    """

    spread: Spread = Spread.LONG_TAIL
    episode_tokens: float = 0.0
    context_tokens: float = 0.0
    accepted_share: float = 0.5
    proposer_seconds: float = 0.0
    extend_fill: float = 0.5
    row_fill: float = 0.9
    host_rate: float = 1e9
    start_seconds: float = 900.0


@dataclass(frozen=True)
class Batch:
    """Episodes rolled out together.

    Attributes:
        seconds: until the last one is done.
        slot_share: of the slots' time, the part in which they hold an episode.
    """

    seconds: float
    slot_share: float


class Clock:
    """Seconds of everything that a run does on a fleet."""

    def __init__(
        self, fleet: Fleet, plans: Mapping[Step, Plan], chip: Chip, calibration: Calibration, assumed: Assumptions
    ) -> None:
        """Args:
        plans: of the fleet's steps.

        Raises:
            PlanError: a step has no bound, because its program does not fit.
        """
        missing = [step.value for step, plan in plans.items() if plan.step_seconds_bound is None]
        if missing:
            raise PlanError(f"no time is known for {', '.join(missing)}: the program does not fit")
        self.fleet, self._chip, self.assumed = fleet, chip, assumed
        self._step = {step: (plan.step_seconds_bound or 0) * calibration.factors[step] for step, plan in plans.items()}
        self._plans = plans

    def lengths(self, episodes: int) -> list[int]:
        """Sampled tokens of each, in an order that has nothing to do with them."""
        limit = self.fleet.config.rollout.assistant_tokens
        found = live_lengths(self.assumed.spread, max(1, episodes), limit)
        if self.assumed.episode_tokens:
            scale = self.assumed.episode_tokens * len(found) / sum(found)
            found = [max(1, min(limit, round(scale * length))) for length in found]
        random.Random(0).shuffle(found)
        return found

    @property
    def context(self) -> float:
        """Tokens of an episode that nobody samples, on average."""
        rollout = self.fleet.config.rollout
        rest = max(1, rollout.max_len - rollout.assistant_tokens)
        return self.assumed.context_tokens or mean_live_length(self.assumed.spread, 64, rest)

    def rollouts(self, episodes: int) -> Batch:
        """So many episodes, from the first to the last."""
        fleet = self.fleet
        lengths = self.lengths(-(-episodes // fleet.replicas))
        tokens = makespan(lengths, fleet.busy_slots)
        rows = min(EXTEND_ROWS, fleet.slots) * fleet.config.rollout.extend_chunk
        extends = math.ceil(len(lengths) * self.context / (rows * self.assumed.extend_fill))
        seconds = tokens * self._step[Step.DECODE] + extends * self._step[Step.EXTEND]
        return Batch(seconds, sum(lengths) / (tokens * fleet.slots))

    def training(self, episodes: int) -> float:
        """The optimizer steps of one training step."""
        fleet, assumed = self.fleet, self.assumed
        lengths = self.lengths(episodes)
        accepted = math.ceil(assumed.accepted_share * episodes)
        updates = math.ceil(accepted / fleet.config.training.minibatch)
        tokens = sum(lengths) / len(lengths) + self.context
        return updates * microbatches(fleet.config, fleet.rows, tokens, assumed.row_fill) * self._step[Step.TRAIN]

    def swap(self) -> float:
        """New weights on every replica: gathered in fp32, written once more."""
        weights = self._plans[Step.DECODE].bytes_per_chip["parameters"]
        gathered = 4 / self.fleet.entry_bytes * weights * (1 - 1 / self.fleet.chips)
        return gathered / self._chip.link_rate + 3 * weights / self._chip.hbm_rate

    def checkpoint(self) -> float:
        """What a training step waits for."""
        train = self._plans[Step.TRAIN].bytes_per_chip
        return (train["parameters"] + train["optimizer"]) * self.fleet.host_chips / self.assumed.host_rate

    def search(self, counts: Counts) -> tuple[float, float]:
        """Seconds of a search phase, and those of them in which nothing is evaluated."""
        one, session = self.rollouts(counts.arm_rollouts).seconds, self.assumed.proposer_seconds
        iteration = 0.0
        for candidate in range(counts.candidates):
            iteration = max(iteration, session * (candidate + 1) / max(1, counts.candidates)) + one
        waits = iteration - counts.candidates * one
        return one + counts.iterations * iteration, counts.iterations * waits


def makespan(lengths: Sequence[int], slots: int) -> int:
    """Decode steps until all are done, each taking the slot that is free first."""
    free = [0] * min(slots, len(lengths))
    for length in lengths:
        heapq.heappush(free, heapq.heappop(free) + length)
    return max(free)


@dataclass(frozen=True)
class Hours:
    """A run's time by what it is spent on, in hours.

    Attributes:
        proposer: that it writes.
        proposer_wait: that all chips wait for it.
        slot_share: of the slots' time in a training step's rollouts, the part in which they hold an episode.
    """

    by_stage: Mapping[str, float]
    proposer: float
    proposer_wait: float
    slot_share: float

    @property
    def total(self) -> float:
        return sum(self.by_stage.values())

    @property
    def proposer_share(self) -> float:
        """Of the run's time, the part in which all chips wait for a proposer."""
        return self.proposer_wait / self.total if self.total else 0.0


WEIGHT_STAGES = ("rollout", "train", "swap", "checkpoint")
SEARCH_STAGES = ("search", "evaluation after search")


def run_hours(clock: Clock, counts: Counts, checkpoints: int, starts: int = 1) -> Hours:
    """The whole run on one fleet.

    Args:
        checkpoints: commits of weight phases.
        starts: jobs that it takes.
    """
    step, evaluation = clock.rollouts(counts.step_rollouts), clock.rollouts(counts.evaluation_rollouts).seconds
    search, waits = clock.search(counts) if counts.searches else (0.0, 0.0)
    seconds = {
        "rollout": counts.steps * step.seconds,
        "train": counts.steps * clock.training(counts.step_rollouts),
        "swap": counts.steps * clock.swap(),
        "checkpoint": checkpoints * clock.checkpoint() if counts.steps else 0.0,
        "evaluation": (counts.evaluations - counts.searches) * evaluation
        + counts.tests * clock.rollouts(counts.test_rollouts).seconds,
        "search": counts.searches * search,
        "evaluation after search": counts.searches * evaluation,
        "start": starts * clock.assumed.start_seconds,
    }
    hours = {name: value / 3600 for name, value in seconds.items()}
    writes = counts.searches * counts.iterations * clock.assumed.proposer_seconds
    return Hours(hours, writes / 3600, counts.searches * waits / 3600, step.slot_share)


@dataclass(frozen=True)
class HandOver:
    """The same run with its search phases on one host (`--stop_after=weight_phase` on the pod).

    Attributes:
        pod_hours, host_hours: with the starts of their jobs.
        pod_chips, host_chips: of each.
    """

    pod_hours: float
    host_hours: float
    pod_chips: int
    host_chips: int

    @property
    def chip_hours(self) -> float:
        return self.pod_hours * self.pod_chips + self.host_hours * self.host_chips


def handed_over(pod: Hours, pod_clock: Clock, host_clock: Clock, counts: Counts) -> HandOver:
    """Weight phases and what is evaluated after them on the pod; searches and what is evaluated after them on a host.

    Every phase is a job of its own.
    """
    start = pod_clock.assumed.start_seconds / 3600
    search, _ = host_clock.search(counts)
    evaluation = host_clock.rollouts(counts.evaluation_rollouts).seconds
    host = counts.searches * ((search + evaluation) / 3600 + start)
    on_pod = sum(value for name, value in pod.by_stage.items() if name not in (*SEARCH_STAGES, "start"))
    return HandOver(on_pod + max(1, counts.cycles) * start, host, pod_clock.fleet.chips, host_clock.fleet.chips)
