"""What the paper reports of Math beside accuracy: replies at the token limit, and replies with an answer to read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from harness_search.contract import EndReason
from whale_jax.rollout.trace import Source, Trace

FIGURES = {
    "token_limit": "episodes that came to the end of their tokens",
    "boxed": "episodes whose returned reply holds a box that could be read",
    "right_when_boxed": "right answers among those that were read and scored",
    "ran_code": "episodes with at least one call of the interpreter",
}


@dataclass(frozen=True)
class MathBehaviour:
    """Shares over the episodes that infrastructure did not break (PAPER section 6).

    Attributes:
        episodes: how many those are; with none, every share is None.
        token_limit: share that came to the end of its tokens: by the budget or the window, or with a last reply that
            was cut.
        boxed: share whose returned reply holds a box that could be read.
        right_when_boxed: share of reward 1 among those that were scored.
        ran_code: share with at least one call of the interpreter.
    """

    episodes: int
    token_limit: float | None
    boxed: float | None
    right_when_boxed: float | None
    ran_code: float | None

    @classmethod
    def from_traces(cls, traces: Iterable[Trace]) -> MathBehaviour:
        """The behaviour in some episodes, in any order."""
        traces = [trace for trace in traces if trace.end is not EndReason.INFRASTRUCTURE]
        boxed = [trace for trace in traces if trace.verdict.answer is not None]
        scored = [trace for trace in boxed if trace.verdict.reward is not None]
        return cls(
            episodes=len(traces),
            token_limit=_share(sum(map(_at_the_limit, traces)), len(traces)),
            boxed=_share(len(boxed), len(traces)),
            right_when_boxed=_share(sum(trace.verdict.reward == 1 for trace in scored), len(scored)),
            ran_code=_share(sum(trace.tool_calls > 0 for trace in traces), len(traces)),
        )

    def to_json(self) -> dict[str, float | int | None]:
        """JSON-able form."""
        return asdict(self)


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _at_the_limit(trace: Trace) -> bool:
    if trace.end is EndReason.TOKEN_BUDGET:
        return True
    sampled = [segment for segment in trace.segments if segment.source is Source.SAMPLED]
    return bool(sampled) and sampled[-1].finish == "length"
