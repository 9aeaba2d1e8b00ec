"""Rejection-sampling fine-tuning: which trajectories are trained on, and on which of their tokens (PAPER section 3).

Every accepted trajectory is kept: no cap per prompt, no removal of duplicates, no replay across steps. Loss falls on
sampled ids alone.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from whale_jax.rollout.trace import ChatTrace, Trace


class AcceptRule(StrEnum):
    """Which scored episodes enter the training set."""

    HONEST = "honest"
    """Reward 1, and the policy sampled the end of the returned reply: one cut by a budget is never taught."""
    PAPER = "paper"
    """Reward above 0.5, however the reply ended."""

    def accepts(self, trace: Trace) -> bool:
        """Whether an episode is trained on. An unscored one never is: its reward is missing, not 0."""
        reward = trace.verdict.reward
        if reward is None:
            return False
        if self is AcceptRule.PAPER:
            return reward > 0.5
        return reward == 1 and trace.ended_by_itself


def accept(traces: Iterable[Trace], rule: AcceptRule) -> list[Trace]:
    """The accepted traces, in the order given."""
    return [trace for trace in traces if rule.accepts(trace)]


@dataclass(frozen=True, eq=False)
class TrainSequence:
    """One chat as the trainer sees it: exactly the ids the engine consumed and sampled.

    Attributes:
        ids: int32 [T], T >= 2.
        target_mask: bool [T], True where `ids[i]` itself was sampled and so is a target; never at 0.
        logprobs: fp32 [T], the sampler's log-probability where sampled (NaN if unknown); meaningless elsewhere.
        name: says in messages where the sequence comes from.
    """

    ids: np.ndarray
    target_mask: np.ndarray
    logprobs: np.ndarray
    name: str = "sequence"

    def __post_init__(self) -> None:
        shapes = {self.ids.shape, self.target_mask.shape, self.logprobs.shape}
        if len(shapes) != 1 or self.ids.ndim != 1 or len(self.ids) < 2:
            raise ValueError(
                f"{self.name}: ids, mask and log-probabilities must be [T] with T >= 2, got {sorted(shapes)}"
            )
        if self.target_mask[0]:
            raise ValueError(f"{self.name}: its first id is marked as sampled, but nothing precedes it")

    @property
    def targets(self) -> int:
        """Number of tokens that carry loss."""
        return int(self.target_mask.sum())


def sequences(trace: Trace) -> list[TrainSequence]:
    """The chats of a trace that hold sampled ids, one sequence each, in the order they were opened.

    A reply put into another chat is prompt there by its source, so it is trained on once, where it was sampled.
    """
    return [
        _sequence(chat, f"task {trace.task_id} sample {trace.sample} chat {ordinal}")
        for ordinal, chat in enumerate(trace.chats)
        if any(chat.loss_mask)
    ]


def _sequence(chat: ChatTrace, name: str) -> TrainSequence:
    return TrainSequence(
        ids=np.asarray(chat.ids, np.int32),
        target_mask=np.asarray(chat.loss_mask, bool),
        logprobs=np.asarray(chat.logprobs, np.float32),
        name=name,
    )
