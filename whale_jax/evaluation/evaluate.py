"""The evaluation of a pair on a set of tasks: mean@k with everything that explains it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from whale_jax.domains.task import Task
from whale_jax.evaluation.behaviour import Behaviour
from whale_jax.evaluation.mean_at_k import Estimate, mean_at_k, paired_difference
from whale_jax.rollout.ledger import Ledger
from whale_jax.rollout.runner import EpisodeRequest, RolloutRunner
from whale_jax.rollout.trace import Trace


@dataclass(frozen=True)
class Evaluation:
    """The result of one evaluation. Depends on the episodes alone, not on their order or speed.

    Attributes:
        k: samples asked for per task.
        rewards: task id → rewards of samples 0..k-1; None is missing data.
        ledger: the account of the episodes.
        behaviour: how the pair behaved.
        domain_figures: how it behaved in its domain's own terms (`Domain.behaviour`); empty when nobody measured it.
    """

    k: int
    rewards: Mapping[str, Sequence[int | None]]
    ledger: Ledger
    behaviour: Behaviour
    domain_figures: Mapping[str, float] = field(default_factory=dict)

    @property
    def estimate(self) -> Estimate:
        """mean@k with its interval."""
        return mean_at_k(self.rewards)

    @property
    def mean(self) -> float:
        """mean@k, in [0, 1]; NaN when nothing is scored."""
        return self.estimate.mean

    @property
    def ci95(self) -> tuple[float, float]:
        """95 % interval of the mean."""
        return self.estimate.ci95

    @property
    def tasks(self) -> int:
        """Tasks that the mean rests on."""
        return self.estimate.tasks

    def minus(self, before: Evaluation) -> Estimate:
        """The paired difference to an earlier evaluation on the same tasks."""
        return paired_difference(before.rewards, self.rewards)

    def summary(self) -> dict[str, Any]:
        """The figures that belong in a journal or a summary."""
        estimate = self.estimate.to_json()
        return {
            "mean_at_k": estimate["mean"],
            "k": self.k,
            "tasks": estimate["tasks"],
            "ci95": estimate["ci95"],
            "episodes": self.ledger.episodes,
            "unscored": self.ledger.unscored,
            "ends": self.ledger.ends,
            "sampled_tokens": self.ledger.sampled_tokens,
        }

    def to_json(self) -> dict[str, Any]:
        """JSON-able form of everything but `domain_figures`: the evidence that a journal rests on."""
        return {
            **self.summary(),
            "rewards": {task: list(samples) for task, samples in self.rewards.items()},
            "ledger": self.ledger.to_json(),
            "behaviour": self.behaviour.to_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], domain_figures: Mapping[str, float] | None = None) -> Evaluation:
        """The inverse of `to_json`, with the figures that were kept beside it."""
        ledger = {name: value for name, value in data["ledger"].items() if name != "reward_mean"}
        return cls(data["k"], data["rewards"], Ledger(**ledger), Behaviour(**data["behaviour"]), domain_figures or {})


def evaluation_requests(
    tasks: Sequence[Task], *, samples: int, purpose: str, cycle: int = 0, step: int = 0
) -> list[EpisodeRequest]:
    """`samples` episodes of each task. Cycle and step are part of the keys: leave them at 0 and every pair that is
    evaluated for the same purpose samples with the same keys, which makes differences between pairs less noisy."""
    return [EpisodeRequest(task, sample, purpose, cycle, step) for task in tasks for sample in range(samples)]


def evaluation_from_traces(
    traces: Sequence[Trace], *, k: int, domain_figures: Mapping[str, float] | None = None
) -> Evaluation:
    """The evaluation that some finished episodes make.

    Args:
        traces: the episodes, in any order.
        k: samples asked for per task.
        domain_figures: what the domain measured on them.

    Raises:
        ValueError: two traces of the same task and sample, or a sample outside 0..k-1.
    """
    rewards: dict[str, list[int | None]] = {}
    seen: set[tuple[str, int]] = set()
    for trace in sorted(traces, key=lambda trace: (trace.task_id, trace.sample)):
        if (trace.task_id, trace.sample) in seen or not 0 <= trace.sample < k:
            raise ValueError(f"task {trace.task_id}: sample {trace.sample} is there twice, or not one of {k} samples")
        seen.add((trace.task_id, trace.sample))
        rewards.setdefault(trace.task_id, [None] * k)[trace.sample] = trace.verdict.reward
    return Evaluation(k, rewards, Ledger.from_traces(traces), Behaviour.from_traces(traces), domain_figures or {})


async def evaluate(
    runner: RolloutRunner,
    harness: str,
    tasks: Sequence[Task],
    *,
    k: int,
    purpose: str,
    cycle: int = 0,
    step: int = 0,
    measure: Callable[[Sequence[Trace]], Mapping[str, float]] | None = None,
) -> Evaluation:
    """Runs `k` samples of each task under a harness and the runner's weights. Raises as `RolloutRunner.run` does.

    `measure` gives the domain's figures; none are taken without it.
    """
    requests = evaluation_requests(tasks, samples=k, purpose=purpose, cycle=cycle, step=step)
    traces = await runner.run_all(harness, requests)
    return evaluation_from_traces(traces, k=k, domain_figures=measure(traces) if measure else None)
