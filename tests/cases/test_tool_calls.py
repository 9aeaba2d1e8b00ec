"""CASES section a: tool calls in Qwen3.5's format. Every row is here, its id the test's id."""

import json

import pytest

from whale_jax.rollout.tool_calls import ToolCall, parse, render

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "search",
            "parameters": {
                "type": "object",
                "properties": {
                    "query": {"type": "string"},
                    "query_list": {"type": "array", "items": {"type": "string"}},
                    "topk": {"type": "integer"},
                    "options": {"type": "object"},
                    "note": {"type": "string"},
                    "maybe": {"type": ["integer", "null"]},
                    "free": {},
                },
            },
        },
    },
    {"name": "run_code", "parameters": {"properties": {"code": {"type": "string"}}}},
]


def call(*parameters: str, name: str = "search") -> str:
    return f"<tool_call>\n<function={name}>\n" + "\n".join(parameters) + "\n</function>\n</tool_call>"


def parameter(key: str, value: str) -> str:
    return f"<parameter={key}>\n{value}\n</parameter>"


DEEP = "[" * 20_000

CASES = {
    "A001": (
        call("<parameter=code>\n    x = 1\n    print(x)\n\n</parameter>", name="run_code"),
        [("run_code", {"code": "    x = 1\n    print(x)\n"})],
    ),
    "A002-at-end": (
        call(parameter("topk", "1"))
        + f"\n<tool_call>\n<function=search>\n{parameter('query', 'Bergama')}\n<parameter=trunc",
        [("search", {"topk": 1}), ("search", {"query": "Bergama"})],
    ),
    "A002-in-the-middle": (
        call(parameter("query", "Bergama"), "<parameter=trunc", parameter("topk", "2")) + call(parameter("topk", "1")),
        [("search", {"query": "Bergama", "topk": 2}), ("search", {"topk": 1})],
    ),
    "A002-value-cut": (
        f"<tool_call>\n<function=search>\n{parameter('topk', '3')}\n<parameter=query>\nBerg",
        [("search", {"topk": 3})],
    ),
    "A004": (
        call(parameter("code", 's = "</parameter>"\nprint(s)'), name="run_code"),
        [("run_code", {"code": 's = "</parameter>"\nprint(s)'})],
    ),
    "A004-function": (
        call(parameter("code", 's = """\n</function>\n"""\nprint(s)'), name="run_code"),
        [("run_code", {"code": 's = """\n</function>\n"""\nprint(s)'})],
    ),
    "A006": (
        call(parameter("query", "pwd && ls -la < a > b &amp;")),
        [("search", {"query": "pwd && ls -la < a > b &amp;"})],
    ),
    "A007-registered": (
        "text\n\n<function=search>\n<parameter=topk>\n3\n</parameter>\n</function>\n</tool_call>",
        [("search", {"topk": 3})],
    ),
    "A007-unregistered": ("text\n\n<function=other>\n<parameter=topk>\n3\n</parameter>\n</function>\n</tool_call>", []),
    "A009": ("The tag <tool_call> starts a call. Done.", []),
    "A009-both": ("Write <tool_call>, then <function=NAME>, then the rest.", []),
    "A012-slash": (call("<parameter=query>\n上海\n</parameter/>"), [("search", {"query": "上海"})]),
    "A012-digit": (call("<parameter=query>\n上海\n</parameter1>"), [("search", {"query": "上海"})]),
    "A012-open": (call("<parameter=query>\n上海\n</parameter"), [("search", {"query": "上海"})]),
    "A012-open-at-end": (
        "<tool_call><function=search><parameter=query>上海</parameter",
        [("search", {"query": "上海"})],
    ),
    "A012-function": (
        "<tool_call>\n<function=search>\n<parameter=query>\n上海\n</parameter_function>\n</tool_call>",
        [("search", {"query": "上海"})],
    ),
    "A014": (call(parameter("query_list", '["a", true, null]')), [("search", {"query_list": ["a", True, None]})]),
    "A016-integer": (call(parameter("topk", "2026-01-15")), [("search", {"topk": "2026-01-15"})]),
    "A016-object": (call(parameter("options", "{bad")), [("search", {"options": "{bad"})]),
    "A017-list": (call(parameter("free", "[1, 2]")), [("search", {"free": [1, 2]})]),
    "A017-scalar": (call(parameter("free", "123")), [("search", {"free": "123"})]),
    "A021": (call(parameter("note", "null")), [("search", {"note": "null"})]),
    "A021-declared": (call(parameter("maybe", "null")), [("search", {"maybe": None})]),
    "A022": (
        call("<parameter=topk>\n3\n<parameter=note>\nhi\n</parameter>"),
        [("search", {"topk": 3, "note": "hi"})],
    ),
    "A022-last": (call("<parameter=topk>\n3"), [("search", {"topk": 3})]),
    "A024": (
        call(parameter("code", "print(1)"), name="run_code").replace("\n", "\r\n"),
        [("run_code", {"code": "print(1)"})],
    ),
    "A026-float": (call(parameter("topk", "3.0")), [("search", {"topk": 3})]),
    "A026-underscore": (call(parameter("topk", "1_000")), [("search", {"topk": "1_000"})]),
    "A026-fraction": (call(parameter("topk", "3.5")), [("search", {"topk": "3.5"})]),
    "A027": (call(parameter("topk", "3"), parameter("topk", "5")), [("search", {"topk": 5})]),
    "A029": (call(parameter("query_list", "Henri Coudreau")), [("search", {"query_list": ["Henri Coudreau"]})]),
    "A031": (call(parameter("query_list", DEEP)), [("search", {"query_list": DEEP})]),
    "A031-closed": (
        call(parameter("query_list", "[" * 40 + "]" * 40)),
        [("search", {"query_list": "[" * 40 + "]" * 40})],
    ),
    "A032": (call(parameter("topk", "3")) + "\n<answer>S</answer>", [("search", {"topk": 3})]),
    "several": (
        "I look twice.\n" + call(parameter("query", "a")) + "\n" + call(parameter("query", "b")),
        [("search", {"query": "a"}), ("search", {"query": "b"})],
    ),
    "call-without-end-before-another": (
        "<tool_call>\n<function=search>\n<parameter=query>\na\n" + call(parameter("query", "b")),
        [("search", {"query": "a"}), ("search", {"query": "b"})],
    ),
    "unknown-tool-properly-opened": (call(parameter("x", "1"), name="other"), [("other", {"x": "1"})]),
    "no-parameters": (call(), [("search", {})]),
    "not-finite": (call(parameter("query_list", "[1e999, NaN]")), [("search", {"query_list": "[1e999, NaN]"})]),
}


@pytest.mark.parametrize(("text", "expected"), CASES.values(), ids=CASES)
def test_parse(text: str, expected: list[tuple[str, dict]]) -> None:
    found = [(item.name, item.arguments) for item in parse(text, TOOLS)]
    assert found == expected
    assert [[type(value) for value in item[1].values()] for item in found] == [
        [type(value) for value in item[1].values()] for item in expected
    ]


def test_A001_round_trip_is_the_identity() -> None:
    calls = [
        ToolCall("run_code", {"code": "\n\n    x = 1\n\tprint('</parameter>')\n\n"}),
        ToolCall("search", {"query": "", "query_list": ["a\nb", '"q"'], "topk": -3, "options": {"a": [None, 1.5]}}),
    ]
    assert parse("\n".join(render(item) for item in calls), TOOLS) == calls


def test_A019_arguments_are_a_mapping_and_render_accepts_an_empty_one() -> None:
    """A reply's arguments are decoded once, by the parser; no history is ever rendered from JSON strings."""
    assert isinstance(parse(call(parameter("topk", "3")), TOOLS)[0].arguments, dict)
    assert parse(render(ToolCall("search", {})), TOOLS) == [ToolCall("search", {})]


def test_A031_what_is_parsed_can_be_sent_on() -> None:
    nested = "[" * 32 + "]" * 32
    (found,) = parse(call(parameter("query_list", nested)), TOOLS)
    assert json.loads(json.dumps(found.arguments)) == {"query_list": json.loads(nested)}


@pytest.mark.parametrize(
    "tools", [(), [None, 3, {}, {"name": 3}, {"function": []}], [{"name": "search", "parameters": []}]]
)
def test_malformed_schemas_are_ignored(tools: list) -> None:
    assert parse(call(parameter("topk", "3")), tools) == [ToolCall("search", {"topk": "3"})]
