"""Properties of the tool-call parser. The rows of CASES section a are in tests/cases/test_tool_calls.py."""

import json
import string
import sys
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from whale_jax.rollout import tool_calls
from whale_jax.rollout.tool_calls import ToolCall, parse, render

FRAGMENTS = [
    "<tool_call>", "</tool_call>", "<function=search>", "<function=f", "</function>", "</function1>", "<parameter=q>",
    "<parameter=list>", "<parameter=", "</parameter>", "</parameter", "\n", "\r\n", " ", "[", "]", "{", "}", '"', "\\",
    "1", "null", "<", ">", "text", "é上", "\ud800", "\x00", "1e999", "</think>",
]  # fmt: skip
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
VALUES: dict[str, st.SearchStrategy] = {
    "string": st.text(string.printable.replace("\r", "") + "é上<>&", max_size=30),
    "integer": st.integers(-(2**70), 2**70),
    "number": st.floats(allow_nan=False, allow_infinity=False) | st.integers(-99, 99),
    "boolean": st.booleans(),
    "array": st.lists(JSON_VALUES, max_size=4),
    "object": st.dictionaries(st.text(), JSON_VALUES, max_size=4),
}
TOOLS = [{"name": "f", "parameters": {"properties": {kind: {"type": kind} for kind in VALUES}}}]


@given(st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=5), max_size=40).map("".join))
@settings(max_examples=100, deadline=None)
def test_never_raises_and_gives_json(text: str) -> None:
    tools = [{"name": "search", "parameters": {"properties": {"q": {"type": "string"}, "list": {"type": "array"}}}}]
    for call in parse(text, tools):
        assert json.loads(json.dumps(call.arguments, allow_nan=False)) == call.arguments


def no_structure(value: Any) -> bool:
    return not isinstance(value, str) or not any(tag in value for tag in ("</", "<parameter", "<tool", "<function"))


@given(st.lists(st.fixed_dictionaries({}, optional=VALUES), min_size=1, max_size=3), st.text("ab \n", max_size=5))
@settings(max_examples=40, deadline=None)
def test_parse_inverts_render(arguments: list[dict[str, Any]], between: str) -> None:
    calls = [ToolCall("f", values) for values in arguments if all(map(no_structure, values.values()))]
    assert parse(between.join(render(call) for call in calls), TOOLS) == calls


def test_work_is_linear_in_the_text(monkeypatch) -> None:
    """Counts executed lines instead of time: ten times the text, at most about ten times the work."""
    hostile = [
        "<tool_call>", "<function=search>", "<parameter=q>\n", "</parameter x", "</parameter>\n ", "\n<parameter=z>\n",
        "<tool_call>\n<function=search>\n<parameter=q>\nx", "[", "<function=search><parameter=q></parameter>",
    ]  # fmt: skip

    def lines(text: str) -> int:
        count = 0

        def trace(frame, event, argument):
            nonlocal count
            count += 1
            return trace if frame.f_code.co_filename == tool_calls.__file__ else None

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            parse(text, [{"name": "search"}])
        finally:
            sys.settrace(before)
        return count

    for piece in hostile:
        prefix = "<tool_call>\n<function=search>\n<parameter=q>\n"
        assert lines(prefix + piece * 1000) <= 11 * lines(prefix + piece * 100) + 100, piece
