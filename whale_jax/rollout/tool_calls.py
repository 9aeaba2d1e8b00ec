"""The host's default parser for Qwen3.5's tool calls.

    <tool_call>
    <function=NAME>
    <parameter=KEY>
    VALUE
    </parameter>
    </function>
    </tool_call>

The format looks like XML and is not: values are raw text, nothing is escaped, and sampled text breaks it in many ways.
The rules, each for a fault seen in practice:

- A call begins where `<function=NAME>` follows `<tool_call>`, or stands bare when NAME is one of the given tools. Prose
  that merely mentions the tags is prose.
- A value loses exactly one line end (LF or CRLF) on each side and nothing else.
- A closing tag, near misses such as `</parameter1>` included, closes only if structure follows it: another parameter,
  the end of the function or call, or the end of the text. A missing closing tag is supplied where a line begins with a
  parameter that the tool declares, or with the end of the call.
- A value with no end at all (a reply cut short) is left out; its call and the complete parameters are kept.
- A parameter given twice: the last one wins.
- Values follow the declared JSON type. One that does not fit stays the raw string, so a call is never lost. Text for an
  array that is not a list becomes a list of one. Without a declared type, lists and objects become structures and all
  else stays text; a type is also declared by `enum` or `const`, and inside `anyOf`, `oneOf` and `allOf`. `null` is None
  only where null is declared and string is not. An integer may be written `3.0`, not `1_000`. JSON alone is understood,
  nested at most 32 deep.
- Text after a call is not the parser's business: it returns the calls, and a harness that runs one goes on from there.

Parsing never raises and takes time linear in the text.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_MAX_DEPTH = 32
_MAX_DIGITS = 4300  # Python converts no longer integer from text
_NAME = r"[^<>\n]{1,256}"
_OPENING = re.compile(rf"(<tool_call>\s{{0,64}})?<function=({_NAME})>")
# What can come next in the body of a function.
_STRUCTURE = re.compile(
    rf"<parameter=(?P<key>{_NAME})>|(?P<end></function[^<>\n]{{0,32}}>?|</tool_call>)|<tool_call>|<function={_NAME}>"
)
# Where a value may end: a closing tag, or a line that begins with other structure.
_VALUE_END = re.compile(
    r"(?P<closer></parameter[^<>\n]{0,32}>?)"
    rf"|(?<=\n)(?:<parameter=(?P<sibling>{_NAME})>|(?P<outer></function>|</tool_call>|<tool_call>))"
)
_SPACE = re.compile(r"\s*")
_INTEGER = re.compile(rf"([+-]?[0-9]{{1,{_MAX_DIGITS}}})(?:\.0{{1,400}})?")
_NUMBER = re.compile(rf"[+-]?[0-9]{{1,{_MAX_DIGITS}}}(?:\.[0-9]{{1,400}})?(?:[eE][+-]?[0-9]{{1,4}})?")


@dataclass(frozen=True)
class ToolCall:
    """One call as the model meant it; arguments are JSON values."""

    name: str
    arguments: dict[str, Any]


def parse(text: str, tools: Sequence[Any] = ()) -> list[ToolCall]:
    """Finds the tool calls in a reply's text after thinking.

    Args:
        text: sampled text, control tokens visible.
        tools: the JSON schemas shown to the model, `{"type": "function", "function": {…}}` or the bare inner object.
            They come from a harness, so malformed ones are ignored.

    Returns:
        The calls in order. A call to an unknown tool is returned when it was properly opened with `<tool_call>`.
    """
    schemas = _parameter_schemas(tools)
    calls: list[ToolCall] = []
    position = 0
    while opening := _OPENING.search(text, position):
        name = opening.group(2).strip()
        position = opening.end()
        if opening.group(1) is None and name not in schemas:
            continue
        arguments, position = _arguments(text, position, schemas.get(name))
        calls.append(ToolCall(name, arguments))
    return calls


def render(call: ToolCall) -> str:
    """Writes a call in the format above; `parse` gives it back when its arguments obey the tool's schema.

    String values are written as they are, all others as JSON in which no `<` is left. What the format cannot tell apart
    does not survive: a string that itself holds the structure that ends a value, a key with `<`, `>`, a line end or
    white space around it, and a value that is no string where a string is allowed or nothing is declared.

    Raises:
        ValueError: an argument is no JSON value (a number that is not finite, or of more than 4,300 digits).
    """
    lines = [f"<tool_call>\n<function={call.name}>\n"]
    for key, value in call.arguments.items():
        shown = value if isinstance(value, str) else _json_without_tags(value)
        lines.append(f"<parameter={key}>\n{shown}\n</parameter>\n")
    lines.append("</function>\n</tool_call>")
    return "".join(lines)


def _json_without_tags(value: Any) -> str:
    """JSON that holds no tag, since `<` is found in its strings alone and can be escaped there."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")


def _arguments(text: str, position: int, schema: Mapping[str, Any] | None) -> tuple[dict[str, Any], int]:
    """Reads one function body; returns its arguments and where the text goes on."""
    arguments: dict[str, Any] = {}
    while found := _STRUCTURE.search(text, position):
        if found.group("end"):
            return arguments, found.end()
        if not found.group("key"):  # another call begins: this one lacks its end
            return arguments, found.start()
        key = found.group("key").strip()
        value, position = _value(text, found.end(), schema)
        if value is not None:
            arguments[key] = _coerce(value, (schema or {}).get(key))
    return arguments, len(text)


def _value(text: str, start: int, schema: Mapping[str, Any] | None) -> tuple[str | None, int]:
    """The raw value that begins at `start` (None when it has no end) and where the text goes on after it."""
    for end in _VALUE_END.finditer(text, start):
        if _closes(text, end, schema):
            after = end.end() if end.group("closer") else end.start()
            return _without_line_ends(text[start : end.start()]), after
    return None, len(text)


def _closes(text: str, end: re.Match[str], schema: Mapping[str, Any] | None) -> bool:
    """Whether what looks like the end of a value has structure behind it."""
    if end.group("sibling"):
        return schema is None or end.group("sibling").strip() in schema
    after = _skip_space(text, end.end())
    if end.group("closer"):
        return after == len(text) or text.startswith(("<parameter=", "</function", "</tool_call>"), after)
    if end.group("outer") == "<tool_call>":
        return text.startswith("<function=", after)
    return after == len(text) or text.startswith(("</tool_call>", "<tool_call>"), after)


def _skip_space(text: str, position: int) -> int:
    space = _SPACE.match(text, position)
    return space.end() if space else position


def _without_line_ends(value: str) -> str:
    """Removes one line end on each side; CRLF counts as one where the value begins with it."""
    if value.startswith("\r\n"):
        return value[2:].removesuffix("\n").removesuffix("\r")
    return value.removeprefix("\n").removesuffix("\n")


def _parameter_schemas(tools: Sequence[Any]) -> dict[str, Mapping[str, Any]]:
    """Tool name → its properties."""
    schemas: dict[str, Mapping[str, Any]] = {}
    for tool in tools:
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            continue
        parameters = function.get("parameters")
        properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
        schemas[function["name"]] = properties if isinstance(properties, Mapping) else {}
    return schemas


def _coerce(raw: str, schema: Any, depth: int = _MAX_DEPTH) -> Any:
    """The value by its declared types, or the raw text where none fits; at most `depth` lists are put around it."""
    types = _types(schema)
    if "string" in types:
        return raw
    text = raw.strip()
    if "null" in types and text == "null":
        return None
    if "boolean" in types and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if "integer" in types and (integer := _INTEGER.fullmatch(text)):
        return int(integer.group(1))
    if "number" in types and _NUMBER.fullmatch(text):
        number = float(text)
        if math.isfinite(number):
            return int(text) if text.lstrip("+-").isdigit() else number
    structured = not types or bool(types & {"array", "object"})
    if structured and text.startswith(("[", "{")):
        value = _load_json(text)
        if isinstance(value, list) and (not types or "array" in types):
            return value
        if isinstance(value, dict) and (not types or "object" in types):
            return value
    elif "array" in types and text and depth:
        return [_coerce(raw, schema.get("items"), depth - 1)]
    return raw


def _types(schema: Any, depth: int = 4) -> set[str]:
    """Declared JSON types, those of `depth` levels of alternatives included; empty when nothing is declared."""
    if not isinstance(schema, Mapping):
        return set()
    declared = schema.get("type")
    types = {kind for kind in (declared if isinstance(declared, list) else [declared]) if isinstance(kind, str)}
    if declared is None:
        values = schema["enum"] if isinstance(schema.get("enum"), list) else []
        types |= {_type_of(value) for value in [*values, *([schema["const"]] if "const" in schema else [])]}
    if depth:
        alternatives = [schema[key] for key in ("anyOf", "oneOf", "allOf") if isinstance(schema.get(key), list)]
        types |= {kind for group in alternatives for item in group for kind in _types(item, depth - 1)}
    return types


def _type_of(value: Any) -> str:
    """The JSON type of a JSON value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    kinds: dict[type, str] = {float: "number", str: "string", list: "array"}
    return kinds.get(type(value), "object")


def _load_json(text: str) -> Any:
    """The JSON value; None when it is not JSON, holds a number that is not finite, or nests too deep."""
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError):
        return None
    return value if _depth_within(value, _MAX_DEPTH) else None


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is too large")
    return number


def _depth_within(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        level = [
            item
            for parent in level
            if isinstance(parent, (list, dict))
            for item in (parent.values() if isinstance(parent, dict) else parent)
        ]
        if not level:
            return True
    return False
