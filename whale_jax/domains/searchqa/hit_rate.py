"""How often retrieval found what the answer needs: the behaviour metric of this domain (PAPER section 6).

An episode *hits* when an accepted answer stands, as whole words, in a tool response that the model read, edited by the
harness or not. Nothing else is searched: comparisons name their answers in the question. Tasks whose answers say
nothing by standing somewhere, such as yes and no, are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from harness_search.contract import EndReason
from whale_jax.domains.domain import TraceCodec
from whale_jax.domains.searchqa.verifier import normal_form
from whale_jax.domains.task import Task
from whale_jax.rollout.trace import ChatTrace, Source, Trace

_SAY_NOTHING = frozenset({"yes", "no", "true", "false", "none"})
_UNSPACED = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")  # scripts without spaces between words


FIGURES = {
    "searched": "episodes in which a tool was called",
    "hit": "episodes in which the model read a document that holds an accepted answer",
    "right_when_hit": "right answers among the scored ones of those",
    "right_when_missed": "right answers among the scored others",
}
"""All of them over the tasks whose answers can be looked for."""


@dataclass(frozen=True)
class HitRate:
    """Shares over the episodes that infrastructure did not break and whose answer can be looked for.

    Attributes:
        episodes: how many those are; shares of none are None.
        searched: share in which a tool was called.
        hit: share in which the model read a document that holds an accepted answer.
        right_when_hit: share of reward 1 among the scored ones of those.
        right_when_missed: share of reward 1 among the scored others.
    """

    episodes: int
    searched: float | None
    hit: float | None
    right_when_hit: float | None
    right_when_missed: float | None

    def to_json(self) -> dict[str, Any]:
        """JSON-able form."""
        return asdict(self)


def hit_rate(traces: Iterable[Trace], tasks: Mapping[str, Task], codec: TraceCodec) -> HitRate:
    """The retrieval behaviour in some episodes, in any order.

    Args:
        traces: finished episodes.
        tasks: the tasks by id.
        codec: the policy's chat codec.
    """
    hits: list[Trace] = []
    misses: list[Trace] = []
    for trace in traces:
        needles = _needles(tasks[trace.task_id].reference["answers"])
        if needles and trace.end is not EndReason.INFRASTRUCTURE:
            (hits if _holds(trace, needles, codec) else misses).append(trace)
    count = len(hits) + len(misses)
    return HitRate(
        episodes=count,
        searched=_ratio(sum(trace.tool_calls > 0 for trace in [*hits, *misses]), count),
        hit=_ratio(len(hits), count),
        right_when_hit=_right(hits),
        right_when_missed=_right(misses),
    )


def tool_texts(chat: ChatTrace, codec: TraceCodec) -> list[str]:
    """The tool responses that the model read in one conversation.

    Control ids mark them, which neither a harness nor a document can write; those that the policy samples do not count.
    """
    texts: list[str] = []
    inside: list[int] | None = None
    for segment in chat.segments:
        for token in segment.ids if segment.source is not Source.SAMPLED else ():
            if token == codec.special.tool_response_open:
                inside = []
            elif token == codec.special.tool_response_close and inside is not None:
                texts.append(codec.decode(inside))
                inside = None
            elif inside is not None:
                inside.append(token)
    return texts


def _needles(answers: Sequence[str]) -> list[str]:
    forms = {normal_form(answer) for answer in answers} - _SAY_NOTHING - {""}
    return [form if _UNSPACED.search(form) else f" {form} " for form in sorted(forms)]


def _holds(trace: Trace, needles: Sequence[str], codec: TraceCodec) -> bool:
    texts = [text.replace("\\n", " ") for chat in trace.chats for text in tool_texts(chat, codec)]  # it is JSON text
    return any(needle in f" {normal_form(text)} " for text in texts for needle in needles)


def _right(traces: Sequence[Trace]) -> float | None:
    scored = [trace for trace in traces if trace.verdict.scored]
    return _ratio(sum(trace.verdict.reward == 1 for trace in scored), len(scored))


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None
