"""How a pair behaves, beside how often it is right: shares that explain a score (PAPER section 6)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from harness_search.contract import EndReason
from whale_jax.rollout.trace import Source, Trace


@dataclass(frozen=True)
class Behaviour:
    """Shares and means over the episodes that infrastructure did not break.

    Attributes:
        episodes: how many those are; with none, every share and mean is None.
        answered: share whose returned reply holds an answer in the required format.
        right_when_answered: share of reward 1 among those.
        ended_by_itself: share whose returned reply the policy ended itself.
        cut: share in which some reply was cut by a length limit.
        used_tools: share with at least one tool call.
        ends: end reason → share.
        turns: mean assistant turns.
        tool_calls: mean tool calls.
        sampled_tokens: mean sampled tokens.
    """

    episodes: int
    answered: float | None
    right_when_answered: float | None
    ended_by_itself: float | None
    cut: float | None
    used_tools: float | None
    ends: dict[str, float]
    turns: float | None
    tool_calls: float | None
    sampled_tokens: float | None

    @classmethod
    def from_traces(cls, traces: Iterable[Trace]) -> Behaviour:
        """The behaviour in some episodes, in any order."""
        traces = [trace for trace in traces if trace.end is not EndReason.INFRASTRUCTURE]
        count = len(traces)
        ends = Counter(trace.end for trace in traces)
        answered = [trace for trace in traces if trace.verdict.answer is not None]
        scored = [trace for trace in answered if trace.verdict.reward is not None]
        return cls(
            episodes=count,
            answered=_ratio(len(answered), count),
            right_when_answered=_ratio(sum(trace.verdict.reward == 1 for trace in scored), len(scored)),
            ended_by_itself=_ratio(sum(trace.ended_by_itself for trace in traces), count),
            cut=_ratio(sum(_has_cut_reply(trace) for trace in traces), count),
            used_tools=_ratio(sum(trace.tool_calls > 0 for trace in traces), count),
            ends={reason.value: ends[reason] / count for reason in EndReason if ends[reason]},
            turns=_ratio(sum(trace.turns for trace in traces), count),
            tool_calls=_ratio(sum(trace.tool_calls for trace in traces), count),
            sampled_tokens=_ratio(sum(trace.sampled_tokens for trace in traces), count),
        )

    def to_json(self) -> dict[str, Any]:
        """JSON-able form."""
        return asdict(self)


def _ratio(part: float, whole: int) -> float | None:
    return part / whole if whole else None


def _has_cut_reply(trace: Trace) -> bool:
    return any(segment.finish == "length" for segment in trace.segments if segment.source is Source.SAMPLED)
