"""When a phase ends (PAPER section 2). Pure objects: signals in, a decision out; no clock, no validation data."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Protocol

from whale_jax.settings import ScheduleSettings


@dataclasses.dataclass(frozen=True)
class Decision:
    """Whether the phase goes on.

    Attributes:
      stop: the phase ends here.
      reason: why, for the journal and the reader.
      signals: the figures that the rule looked at.
    """

    stop: bool
    reason: str
    signals: dict[str, float | int]


@dataclasses.dataclass(frozen=True)
class WeightSignals:
    """What a weight phase shows after a step.

    Attributes:
      rewards: mean verifier reward of each step of this phase, in order.
      steps_before: training steps of earlier phases.
    """

    rewards: Sequence[float]
    steps_before: int


@dataclasses.dataclass(frozen=True)
class SearchSignals:
    """What a search phase shows after an iteration.

    Attributes:
      best_scores: best score in the archive after iterations 0 (the incoming harness), 1, 2, …
      iterations_before: iterations of earlier phases.
    """

    best_scores: Sequence[float]
    iterations_before: int


class Schedule(Protocol):
    """A rule for both phases of every cycle."""

    @property
    def has_weight_phase(self) -> bool:
        """Whether cycles have a weight phase."""
        ...

    @property
    def has_search_phase(self) -> bool:
        """Whether cycles have a search phase."""
        ...

    @property
    def probes(self) -> bool:
        """Whether a probe before each phase says which kind it is, in place of weights first and search after it."""
        ...

    @property
    def total_steps(self) -> int:
        """The weight budget in steps; the run ends when it is used."""
        ...

    def after_step(self, signals: WeightSignals) -> Decision:
        """Whether the weight phase ends after its latest step."""
        ...

    def after_iteration(self, signals: SearchSignals) -> Decision:
        """Whether the search phase ends after its latest iteration (0 included)."""
        ...

    def guess(self) -> tuple[int, int]:
        """Cycles, and iterations per search phase, to expect: for the time left that is shown, and nothing else."""
        ...


def steps_of(epochs: float, num_tasks: int, prompts_per_step: int) -> int:
    """Training steps of so many epochs, rounded to the nearest (0.2 epoch of 18,946 tasks at 256 per step is 15)."""
    return max(1, math.floor(epochs * num_tasks / prompts_per_step + 0.5))


BUDGET_USED = "weight budget used"
"""The reason of a weight phase that the budget, not its rule, cut short."""


def _budget_decision(signals: WeightSignals, total_steps: int) -> Decision | None:
    if signals.steps_before + len(signals.rewards) >= total_steps:
        return Decision(True, BUDGET_USED, {"steps": len(signals.rewards)})
    return None


@dataclasses.dataclass(frozen=True)
class Fixed:
    """E epochs, then I iterations, until the weight budget is used (PAPER section 2; Algorithm 1)."""

    total_steps: int
    phase_steps: int
    phase_iterations: int
    has_weight_phase: bool = True
    has_search_phase: bool = True
    probes: bool = False

    def after_step(self, signals: WeightSignals) -> Decision:
        if len(signals.rewards) >= self.phase_steps:
            return Decision(True, "phase length reached", {"steps": len(signals.rewards)})
        return _budget_decision(signals, self.total_steps) or Decision(False, "", {"steps": len(signals.rewards)})

    def after_iteration(self, signals: SearchSignals) -> Decision:
        iteration = len(signals.best_scores) - 1
        stop = iteration >= self.phase_iterations
        return Decision(stop, "phase length reached" if stop else "", {"iteration": iteration})

    def guess(self) -> tuple[int, int]:
        return max(1, math.ceil(self.total_steps / max(1, self.phase_steps))), self.phase_iterations


@dataclasses.dataclass(frozen=True)
class Adaptive:
    """Patience on training signals alone (PAPER section 2; Algorithm 2).

    Weight phase: the mean reward of the last `window` steps of the phase is the signal; the phase ends when it has more
    than `burn_in` steps and its best signal (strictly greater) is `patience` or more steps old. Search phase: the
    archive's best score, rounded to 4 decimals, is the signal; the phase ends when it has at least `min_iterations`
    iterations and its best is `patience_iterations` or more iterations old, or at `max_iterations`.
    """

    total_steps: int
    window: int
    burn_in: int
    patience: int
    min_iterations: int
    patience_iterations: int
    max_iterations: int
    has_weight_phase: bool = True
    has_search_phase: bool = True
    probes: bool = False

    def after_step(self, signals: WeightSignals) -> Decision:
        best, best_step, smoothed = -math.inf, 0, 0.0
        for step in range(1, len(signals.rewards) + 1):
            recent = signals.rewards[max(0, step - self.window) : step]
            smoothed = sum(recent) / len(recent)
            if smoothed > best:
                best, best_step = smoothed, step
        steps = len(signals.rewards)
        figures = {"steps": steps, "smoothed": smoothed, "best": best, "since_best": steps - best_step}
        if steps > self.burn_in and steps - best_step >= self.patience:
            return Decision(True, "no better smoothed reward within patience", figures)
        return _budget_decision(signals, self.total_steps) or Decision(False, "", figures)

    def after_iteration(self, signals: SearchSignals) -> Decision:
        best, best_iteration = -math.inf, 0
        for iteration, score in enumerate(signals.best_scores):
            if round(score, 4) > best:
                best, best_iteration = round(score, 4), iteration
        iteration = len(signals.best_scores) - 1
        figures = {"iteration": iteration, "best": best, "since_best": iteration - best_iteration}
        if iteration >= self.max_iterations:
            return Decision(True, "iteration cap reached", figures)
        if iteration >= self.min_iterations and iteration - best_iteration >= self.patience_iterations:
            return Decision(True, "no better archive score within patience", figures)
        return Decision(False, "", figures)

    def guess(self) -> tuple[int, int]:
        # The paper's phases lasted a little longer than the shortest possible: 0.24 to 0.29 epoch at a patience of 0.2
        # epoch, and a median of 7 iterations at a minimum of 6.
        cycles = math.ceil(self.total_steps / (1.3 * self.burn_in + 1))
        return cycles, min(self.min_iterations + 1, self.max_iterations)


def make_schedule(settings: ScheduleSettings, *, num_tasks: int, prompts_per_step: int) -> Schedule:
    """The rule that the settings name, for a D_weight of `num_tasks` tasks.

    `count_incoming_as_iteration` takes the evaluation of the incoming harness for iteration 1, so a phase proposes once
    less.
    """
    total_steps = steps_of(settings.weight_budget_epochs, num_tasks, prompts_per_step)
    less = 1 if settings.count_incoming_as_iteration else 0
    match settings.schedule:
        case "fixed" | "probe":
            phase_steps = steps_of(settings.weight_phase_epochs, num_tasks, prompts_per_step)
            probes = settings.schedule == "probe"
            return Fixed(total_steps, phase_steps, settings.search_phase_iterations - less, probes=probes)
        case "adaptive":
            patience = steps_of(settings.patience_epochs, num_tasks, prompts_per_step)
            return Adaptive(
                total_steps=total_steps,
                window=patience,
                burn_in=patience,
                patience=patience,
                min_iterations=settings.min_iterations - less,
                patience_iterations=settings.patience_iterations,
                max_iterations=settings.max_iterations - less,
            )
        case "stagewise":
            return Fixed(total_steps, total_steps, settings.search_budget_iterations - less)
        case "weight_only":
            return Fixed(total_steps, total_steps, 0, has_search_phase=False)
        case "harness_only":
            return Fixed(0, 0, settings.search_budget_iterations - less, has_weight_phase=False)
