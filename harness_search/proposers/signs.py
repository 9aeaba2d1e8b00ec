"""Failure signs: what a trace shows without knowing the right answer.

A trace is the public form of an episode: a mapping with

    end: str                   value of the EndReason
    answer: str | None         what the verifier read from the returned reply
    returned: [chat, turn] | None
    chats: [[segment, ...], ...]   one list per conversation, in order; a segment is a mapping with
        source: "prompt" | "tool" | "harness" | "sampled"
        text: str              decoded, control tokens visible
        turn: int              ordinal of the assistant turn in its chat; absent outside assistant turns
        finish: "stop" | "length"     sampled segments alone

No sign needs a reference, and none knows a domain: the markers below are the chat format's own.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

THINK_END = "</think>"
CALL_START, CALL_END = "<tool_call>", "</tool_call>"
THIN_RESULT_CHARS = 80
"""A tool result shorter than this, with no document in it, says next to nothing: nothing found, or an error."""
LONG_ANSWER_WORDS = 8
DOCUMENT_PATTERN = re.compile(r"\bDoc \d+ \(Title:")

Trace = Mapping[str, Any]
Segment = Mapping[str, Any]


class Sign(StrEnum):
    """What a failed trace can show. The first seven are end reasons."""

    TOKEN_BUDGET = "token_budget"
    TURN_BUDGET = "turn_budget"
    TOOL_BUDGET = "tool_budget"
    TIMEOUT = "timeout"
    FORMAT = "format"
    INVALID_RETURN = "invalid_return"
    HARNESS_ERROR = "harness_error"
    NO_ANSWER = "no_answer"
    """The returned reply holds no answer that the verifier could read."""
    LONG_ANSWER = "long_answer"
    """The answer has more than eight words: a sentence in place of an answer."""
    UNFINISHED_THINKING = "unfinished_thinking"
    """A sampled turn never closed its thinking."""
    CUT_REPLY = "cut_reply"
    """The last sampled reply was cut by a length limit."""
    NO_TOOL_CALL = "no_tool_call"
    """The episode has no tool result at all."""
    MALFORMED_CALL = "malformed_call"
    """A reply opens a tool call and does not close it."""
    UNRUN_CALL = "unrun_call"
    """The episode's last reply asks for a tool, and the harness stopped there."""
    SEVERAL_QUERIES = "several_queries"
    """A tool call holds a list of more than one item."""
    REPEATED_CALL = "repeated_call"
    """The same tool call twice in one episode."""
    SINGLE_CALL = "single_call"
    """Exactly one tool result before the answer."""
    SINGLE_DOCUMENT = "single_document"
    """No tool result holds more than one document."""
    THIN_RESULT = "thin_result"
    """A tool result with next to no text and no document in it."""
    UNUSED_RESULT = "unused_result"
    """There are tool results, and the answer occurs in none of them."""
    GROUNDED_WRONG = "grounded_wrong"
    """The answer occurs in a tool result and is wrong all the same."""


END_SIGNS = frozenset(
    {
        Sign.TOKEN_BUDGET,
        Sign.TURN_BUDGET,
        Sign.TOOL_BUDGET,
        Sign.TIMEOUT,
        Sign.FORMAT,
        Sign.INVALID_RETURN,
        Sign.HARNESS_ERROR,
    }
)


def signs(trace: Trace) -> frozenset[Sign]:
    """The signs that one failed trace shows. Linear in its text."""
    return frozenset(_end_signs(trace) | _reply_signs(trace) | _tool_signs(trace))


def shares(traces: Iterable[Trace]) -> dict[Sign, float]:
    """Share of the traces that show each sign; signs never shown are left out; no traces, no signs."""
    shown = [signs(trace) for trace in traces]
    counts = Counter(sign for one in shown for sign in one)
    return {sign: counts[sign] / len(shown) for sign in Sign if counts[sign]}


def _end_signs(trace: Trace) -> set[Sign]:
    return {sign for sign in END_SIGNS if sign == trace.get("end")}


def _reply_signs(trace: Trace) -> set[Sign]:
    found: set[Sign] = set()
    answer = trace.get("answer")
    if answer is None:
        found.add(Sign.NO_ANSWER)
    elif len(answer.split()) > LONG_ANSWER_WORDS:
        found.add(Sign.LONG_ANSWER)
    replies = _replies(trace)
    if any(THINK_END not in reply for reply in replies if _thinks(trace)):
        found.add(Sign.UNFINISHED_THINKING)
    sampled = _segments(trace, "sampled")
    if sampled and sampled[-1].get("finish") == "length":
        found.add(Sign.CUT_REPLY)
    if any(reply.rfind(CALL_START) > reply.rfind(CALL_END) for reply in replies):
        found.add(Sign.MALFORMED_CALL)
    if replies and CALL_END in replies[-1]:
        found.add(Sign.UNRUN_CALL)
    return found


def _tool_signs(trace: Trace) -> set[Sign]:
    found: set[Sign] = set()
    calls = [call for reply in _replies(trace) for call in _calls(reply)]
    if len(set(calls)) < len(calls):
        found.add(Sign.REPEATED_CALL)
    if any(_list_length(value) > 1 for call in calls for value in _values(call)):
        found.add(Sign.SEVERAL_QUERIES)
    results = _tool_results(trace)
    if not results:
        return found | {Sign.NO_TOOL_CALL}
    if len(results) == 1:
        found.add(Sign.SINGLE_CALL)
    if all(len(DOCUMENT_PATTERN.findall(result)) <= 1 for result in results):
        found.add(Sign.SINGLE_DOCUMENT)
    if any(len(one) < THIN_RESULT_CHARS and not DOCUMENT_PATTERN.search(one) for one in results):
        found.add(Sign.THIN_RESULT)
    answer = trace.get("answer")
    if answer:
        used = any(_folded(answer) in _folded(result) for result in results)
        found.add(Sign.GROUNDED_WRONG if used else Sign.UNUSED_RESULT)
    return found


def _segments(trace: Trace, source: str) -> list[Segment]:
    return [segment for chat in trace.get("chats", ()) for segment in chat if segment["source"] == source]


def _replies(trace: Trace) -> list[str]:
    """Text of each assistant turn, harness text inside it included, chats in order."""
    replies: list[str] = []
    for chat in trace.get("chats", ()):
        by_turn: dict[int, str] = {}
        for segment in chat:
            if segment.get("turn") is not None and segment["source"] in ("sampled", "harness"):
                by_turn[segment["turn"]] = by_turn.get(segment["turn"], "") + segment["text"]
        replies += [by_turn[turn] for turn in sorted(by_turn)]
    return replies


def _thinks(trace: Trace) -> bool:
    """Whether replies of this episode are expected to think: their prompts leave a thinking block open."""
    return any(segment["text"].rstrip().endswith("<think>") for segment in _segments(trace, "prompt"))


def _calls(reply: str) -> list[str]:
    """The complete tool calls of a reply, white space folded."""
    parts = reply.split(CALL_START)[1:]
    return [_folded(part.partition(CALL_END)[0]) for part in parts if CALL_END in part]


def _values(call: str) -> list[str]:
    """The parameter values of a call, as text."""
    parts = call.split("<parameter=")[1:]
    return [part.partition(">")[2].partition("</parameter>")[0] for part in parts]


def _list_length(text: str) -> int:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return 0
    return len(value) if isinstance(value, list) else 0


def _tool_results(trace: Trace) -> list[str]:
    """Text of each tool result; the harness may have edited it, so tool turns that it wrote itself count too."""
    texts = [segment["text"] for segment in _segments(trace, "tool")]
    for segment in _segments(trace, "harness"):
        if "<tool_response>" in segment["text"] and segment.get("turn") is None:
            texts.append(segment["text"])
    return [_result_text(text) for text in texts]


def _result_text(text: str) -> str:
    """What a result says, out of its turn markers and of a JSON object with a `result` field."""
    inner = text.partition("<tool_response>")[2] or text
    inner = inner.partition("</tool_response>")[0].strip()
    try:
        value = json.loads(inner)
    except (ValueError, RecursionError):
        return inner
    return str(value.get("result", inner)) if isinstance(value, dict) else inner


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())
