"""The account of a set of episodes: how they ended, what they earned, what they cost in tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from harness_search.contract import EndReason
from whale_jax.rollout.trace import Source, Trace


@dataclass(frozen=True)
class Ledger:
    """Counts over episodes. Holds no time and no rate, so it may go into a journal.

    Attributes:
        episodes: all of them.
        rewarded: episodes with reward 1.
        ended_by_itself: rewarded episodes whose returned reply the policy ended itself: what the honest rule accepts.
        unscored: episodes without a reward: missing data.
        ends: end reason → count, for reasons that occurred, in the order of `EndReason`.
        turns: assistant turns.
        tool_calls: env calls.
        sampled_tokens: ids sampled by the policy.
        prompt_tokens: ids read and not sampled in place.
        tool_tokens: the part of `prompt_tokens` that came from tools unedited.
    """

    episodes: int
    rewarded: int
    ended_by_itself: int
    unscored: int
    ends: dict[str, int]
    turns: int
    tool_calls: int
    sampled_tokens: int
    prompt_tokens: int
    tool_tokens: int

    @classmethod
    def from_traces(cls, traces: Iterable[Trace]) -> Ledger:
        """The account of some episodes, in any order."""
        traces = list(traces)
        rewarded = [trace for trace in traces if trace.verdict.reward == 1]
        ends = Counter(trace.end for trace in traces)
        return cls(
            episodes=len(traces),
            rewarded=len(rewarded),
            ended_by_itself=sum(trace.ended_by_itself for trace in rewarded),
            unscored=sum(trace.verdict.reward is None for trace in traces),
            ends={reason.value: ends[reason] for reason in EndReason if ends[reason]},
            turns=sum(trace.turns for trace in traces),
            tool_calls=sum(trace.tool_calls for trace in traces),
            sampled_tokens=sum(trace.sampled_tokens for trace in traces),
            prompt_tokens=sum(trace.prompt_tokens for trace in traces),
            tool_tokens=sum(
                len(segment.ids) for trace in traces for segment in trace.segments if segment.source is Source.TOOL
            ),
        )

    @property
    def scored(self) -> int:
        """Episodes with a reward."""
        return self.episodes - self.unscored

    @property
    def reward_mean(self) -> float:
        """Mean reward of the scored episodes.

        Raises:
            ValueError: no episode is scored, so there is no mean (0 would be a result).
        """
        if not self.scored:
            raise ValueError(f"none of {self.episodes} episodes is scored: there is no mean reward")
        return self.rewarded / self.scored

    def to_json(self) -> dict[str, Any]:
        """JSON-able form, the mean included (None when nothing is scored)."""
        return {**asdict(self), "reward_mean": self.reward_mean if self.scored else None}
