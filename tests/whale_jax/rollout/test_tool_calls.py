"""Properties of the tool-call parser. The rows of CASES section a are in tests/cases/test_tool_calls.py."""

import builtins
import json
import re
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whale_jax.rollout import tool_calls
from whale_jax.rollout.tool_calls import ToolCall, parse, render

FRAGMENTS = [
    "<tool_call>", "</tool_call>", "<function=search>", "<function=f", "</function>", "</function1>", "<parameter=q>",
    "<parameter=list>", "<parameter=", "</parameter>", "</parameter", "\n", "\r\n", " ", "[", "]", "{", "}", '"', "\\",
    "1", "null", "<", ">", "text", "é上", "\ud800", "\x00", "1e999", "</think>", "__import__('os')", "9" * 5000,
]  # fmt: skip
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.sampled_from(FRAGMENTS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
VALUES: dict[str, st.SearchStrategy] = {
    "integer": st.integers(-(2**70), 2**70) | st.sampled_from([10**4000, -(10**4000)]),
    "number": st.floats(allow_nan=False, allow_infinity=False) | st.integers(-99, 99),
    "boolean": st.booleans(),
    "array": st.lists(JSON_VALUES, max_size=4),
    "object": st.dictionaries(st.text(), JSON_VALUES, max_size=4),
    "null": st.none(),
}
KEYS = ["a", "b", "query_list", "ключ", "x-y.z"]
TEXTS = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=8), max_size=8).map("".join)
# What ends a value, on a line that begins with it or after a closing tag; `{keys}` are the tool's parameters.
ENDS = (
    r"</parameter[^<>\n]{{0,32}}>?\s*(<parameter=|</function|</tool_call>)"
    r"|\n<parameter=\s*({keys})\s*>|\n</(function|tool_call)>\s*</?tool_call>|\n<tool_call>\s*<function="
)


@st.composite
def declared(draw: st.DrawFn) -> tuple[Any, Any]:
    """A parameter's schema and a value that it allows: every kind, declared in every way that is understood."""
    kind = draw(st.sampled_from([*VALUES, "string", "anything"]))
    if kind == "string":
        value = draw(TEXTS)
        forms = [{"type": "string"}, {"type": ["string", "null"]}, {"enum": [value]}, {"const": value}]
        return draw(st.sampled_from([*forms, {"anyOf": [{"type": "integer"}, {"type": "string"}]}])), value
    if kind == "anything":  # nothing declared: structures and texts
        structure = VALUES["array"] | VALUES["object"]
        value = draw(structure | TEXTS.filter(lambda text: not text.strip().startswith(("[", "{"))))
        return draw(st.sampled_from([{}, True, None, {"description": "free"}])), value
    value = draw(VALUES[kind])
    others = [{"type": "null"}] if kind != "null" else [{"type": "object"}]
    forms = [{"type": kind}, {"type": [kind, "null"]}, {"allOf": [{"oneOf": [{"type": kind}, *others]}]}]
    return draw(st.sampled_from([*forms, {"const": value}, {"enum": [value]}])), value


@st.composite
def tool_and_calls(draw: st.DrawFn) -> tuple[list[Any], list[ToolCall]]:
    parameters = {key: draw(declared()) for key in draw(st.lists(st.sampled_from(KEYS), unique=True))}
    ends = re.compile(ENDS.format(keys="|".join(map(re.escape, parameters)) or "(?!)"))
    arguments = {
        key: value
        for key, (_, value) in parameters.items()
        if not isinstance(value, str) or not ends.search(f"\n{value}\n")
    }
    kept = draw(st.lists(st.sampled_from(sorted(arguments)), unique=True)) if arguments else []
    function = {"name": "f", "parameters": {"properties": {key: schema for key, (schema, _) in parameters.items()}}}
    calls = [ToolCall("f", {key: arguments[key] for key in keys}) for keys in (kept, list(arguments))]
    return [draw(st.sampled_from([function, {"type": "function", "function": function}]))], calls


@given(TEXTS | st.text(), st.lists(JSON_VALUES, max_size=3) | st.just([{"name": "search", "parameters": {}}]))
@settings(max_examples=100, deadline=None)
def test_never_raises_and_gives_json(text: str, tools: list[Any]) -> None:
    for call in parse(text, tools):
        assert json.loads(json.dumps(call.arguments, allow_nan=False)) == call.arguments


ODD_SCHEMAS = JSON_VALUES | st.fixed_dictionaries(
    {}, optional=dict.fromkeys(["type", "anyOf", "allOf", "enum", "const", "items"], JSON_VALUES)
)


@given(ODD_SCHEMAS, TEXTS)
@settings(max_examples=60, deadline=None)
def test_no_schema_makes_it_raise(schema: Any, value: str) -> None:
    properties = {"q": schema, "list": {"type": "array", "items": schema}, "both": {"anyOf": [schema]}}
    tools = [{"name": "search", "parameters": {"properties": properties}}]
    body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key in properties)
    for call in parse(f"<function=search>\n{body}</function>", tools):
        assert json.loads(json.dumps(call.arguments, allow_nan=False)) == call.arguments


def test_a_schema_nested_without_end_gives_bounded_lists() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(5_000):
        schema = {"type": "array", "items": schema}
    tools = [{"name": "f", "parameters": {"properties": {"q": schema}}}]
    (call,) = parse("<function=f><parameter=q>\nx\n</parameter></function>", tools)
    depth, value = 0, call.arguments["q"]
    while isinstance(value, list):
        (value,) = value
        depth += 1
    assert (depth, value) == (32, "x")


@given(tool_and_calls(), st.text("ab <>\n", max_size=5))
@settings(max_examples=150, deadline=None)
def test_parse_inverts_render(case: tuple[list[Any], list[ToolCall]], between: str) -> None:
    tools, calls = case
    found = parse(between.join(render(call) for call in calls), tools)
    assert found == calls
    for one, two in zip(found, calls, strict=True):
        assert json.dumps(one.arguments) == json.dumps(two.arguments)  # 1, 1.0 and True are equal in Python


def test_render_refuses_what_is_no_json() -> None:
    for value in (float("nan"), [float("inf")], 10**5000):
        with pytest.raises(ValueError, match=r"JSON|limit"):
            render(ToolCall("f", {"a": value}))


@pytest.mark.parametrize("kind", ["string", "integer", "number", "boolean", "array", "object", "null"])
def test_never_evaluates(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python is no notation for values: an expression stays text, and nothing is run to find out."""
    tools = [{"name": "f", "parameters": {"properties": {"q": {"type": kind}}}}]

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("evaluated")

    sources = ["__import__('os').getpid()", "1 + 1", "(1, 2)", "['a']", "{'a': 1}", "None", "0x10", "1_000", "{1}"]
    texts = [render(ToolCall("f", {"q": source})) for source in sources]
    with monkeypatch.context() as patch:
        for name in ("eval", "exec", "compile", "__import__"):
            patch.setattr(builtins, name, refuse)
        values = [parse(text, tools)[0].arguments["q"] for text in texts]
    wrapped = [value[0] if isinstance(value, list) else value for value in values]
    assert wrapped == sources


HOSTILE = [
    "<tool_call>", "<function=search>", "<parameter=q>\n", "</parameter x", "</parameter>\n ", "\n<parameter=z>\n",
    "<tool_call>\n<function=search>\n<parameter=q>\nx", "[", "<function=search><parameter=q></parameter>", " ", "\n",
    "\n</function> ", "\n</tool_call>\n", "\n<tool_call> ", "<tool_call>" + " " * 63, "<function=" + "x" * 300, "9",
    "</parameter" + " " * 32, '{"a":', "\\",
]  # fmt: skip
OPENED = "<tool_call>\n<function=search>\n<parameter=q>\n"


@pytest.mark.parametrize("piece", HOSTILE)
def test_work_is_linear_in_the_text(piece: str) -> None:
    """Counts executed lines instead of time: ten times the text, at most about ten times the work."""

    def executed(text: str) -> int:
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

    assert executed(OPENED + piece * 1000) <= 11 * executed(OPENED + piece * 100) + 100


@pytest.mark.parametrize("piece", HOSTILE)
def test_no_pattern_backtracks_over_the_text(piece: str) -> None:
    """What line counts do not show: a pattern that is not linear would not come back from a text of this size."""
    text = OPENED + piece * (400_000 // len(piece))
    parse(text, [{"name": "search", "parameters": {"properties": {"q": {"type": ["array", "integer", "number"]}}}}])
    parse(text + "\n</parameter>\n</function>\n</tool_call>", [{"name": "search"}])
