"""What a harness is, as types: the seam between the code under search and what hosts it (DESIGN section 3).

A harness is one Python file with `async def run(task, model, env)`. Everything here is decided without running a line
of it: `check_source` reads the syntax tree, and `read_info` takes the tools and prompts from the same tree.
"""

import ast
import json
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, NotRequired, Protocol, TypedDict

MAX_SOURCE_BYTES = 256 * 1024

ALLOWED_MODULES = frozenset(
    {
        *("__future__", "abc", "array", "ast", "asyncio", "base64", "bisect", "calendar", "cmath", "collections"),
        *("contextlib", "copy", "csv", "dataclasses", "datetime", "decimal", "difflib", "enum", "fractions"),
        *("functools", "graphlib", "hashlib", "heapq", "html", "itertools", "json", "keyword", "math", "numbers"),
        *("operator", "pprint", "random", "re", "reprlib", "shlex", "statistics", "string", "struct", "textwrap"),
        *("time", "token", "tokenize", "traceback", "types", "typing", "unicodedata", "warnings"),
    }
)
"""Top-level standard-library modules a harness may import; WORKSPACE.md lists the same ones."""

_PLAIN_FIELD = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_FANCY_FIELD = re.compile(r"\{[A-Za-z_][A-Za-z0-9_]*[.\[!:][^{}]*\}")


class EndReason(StrEnum):
    """How an episode ended. Closed: a new reason is a change of this contract."""

    ANSWERED = "answered"
    TOKEN_BUDGET = "token_budget"
    TURN_BUDGET = "turn_budget"
    TOOL_BUDGET = "tool_budget"
    TIMEOUT = "timeout"
    FORMAT = "format"
    INVALID_RETURN = "invalid_return"
    HARNESS_ERROR = "harness_error"
    INFRASTRUCTURE = "infrastructure"


@dataclass(frozen=True)
class Budgets:
    """What one episode may use. `wall_seconds` is enforced by the worker, the rest by the episode host."""

    assistant_tokens: int
    turns: int
    tool_calls: int
    wall_seconds: float


@dataclass(frozen=True)
class TaskView:
    """What a harness sees of a task: its id and inputs (JSON values), also as attributes. Never a reference."""

    id: str
    inputs: Mapping[str, Any]

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and name != "inputs" and name in self.inputs:
            return self.inputs[name]
        raise AttributeError(f"the task has no input {name!r}")


class EpisodeEnded(Exception):
    """Raised by an episode host when a budget or a rule ends the episode; the worker then kills the harness."""

    def __init__(self, reason: EndReason, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else str(reason))
        self.reason = reason
        self.detail = detail


class CallRefused(Exception):
    """Raised by an episode host for a call it does not accept; in the harness it is a `ValueError` it may handle."""


class HarnessError(Exception):
    """The harness file does not obey the contract; the message says how."""


class ToolCallData(TypedDict):
    name: str
    arguments: dict[str, Any]


class Remaining(TypedDict):
    tokens: int
    turns: int
    tool_calls: int


class ReplyData(TypedDict):
    """A sampled assistant turn as it crosses to the harness. `id` is unique within the episode."""

    id: int
    text: str
    """After the end of thinking."""
    thinking: str
    raw: str
    """The whole turn, control tokens visible."""
    tool_calls: list[ToolCallData]
    finish: Literal["stop", "length"]
    remaining: NotRequired[Remaining]


class EnvResult(TypedDict):
    handle: int
    text: str


@dataclass(frozen=True)
class ReplyRef:
    """A Reply that a harness passed to an environment primitive, as the episode host sees it."""

    id: int


class EpisodeHost(Protocol):
    """What the host offers one episode. Methods may raise EpisodeEnded or CallRefused; anything else is a host fault.

    Calls on different chats may overlap; calls on one chat never do, and appends arrive in the harness's order.
    """

    async def open_chat(self, system: str | None, tools: list[dict[str, Any]]) -> int:
        """Opens a conversation; returns its id."""
        ...

    async def append(
        self, chat: int, kind: Literal["user", "tool", "reply"], content: str | int, handle: int | None
    ) -> None:
        """Adds one turn. `content` is text, or for kind "reply" a reply id. `handle` names the environment result whose
        text `content` is, unedited; None means the harness wrote the text."""
        ...

    async def reply(self, chat: int, max_tokens: int | None) -> ReplyData: ...

    async def extend_reply(self, chat: int, text: str, max_tokens: int | None) -> ReplyData: ...

    async def env(self, name: str, args: list[Any], kwargs: dict[str, Any]) -> EnvResult:
        """Runs a domain primitive. A Reply given as an argument arrives as a `ReplyRef`, all else as JSON values."""
        ...

    async def count_tokens(self, text: str) -> int: ...


@dataclass(frozen=True)
class HarnessInfo:
    """What a harness file declares: its tool schemas and its prompts (`*_PROMPT` constant name to text)."""

    tools: tuple[dict[str, Any], ...]
    prompts: dict[str, str]


def placeholders(prompt: str) -> frozenset[str]:
    """The plain `{name}` placeholders of a prompt; doubled braces are literal, as in `str.format`."""
    return frozenset(_PLAIN_FIELD.findall(prompt.replace("{{", "").replace("}}", "")))


def check_source(source: str) -> list[str]:
    """Every way in which a harness file breaks the static contract, one line each; empty when it obeys."""
    tree, problem = _parse(source)
    if tree is None:
        return [problem]
    return _check_run(tree) + _check_imports(tree) + _check_constants(tree)


def read_info(source: str) -> HarnessInfo:
    """The declared tools and prompts of a harness file.

    Raises:
        HarnessError: the file does not obey the static contract; the message holds every problem.
    """
    problems = check_source(source)
    if problems:
        raise HarnessError("; ".join(problems))
    tree, _ = _parse(source)
    assert tree is not None
    constants = _constants(tree)
    tools = ast.literal_eval(constants["TOOLS"][0]) if "TOOLS" in constants else []
    prompts = {name: ast.literal_eval(nodes[0]) for name, nodes in constants.items() if name.endswith("_PROMPT")}
    return HarnessInfo(tuple(tools), prompts)


def _parse(source: str) -> tuple[ast.Module | None, str]:
    try:
        size = len(source.encode("utf-8"))
    except UnicodeEncodeError:
        return None, "the file holds a lone surrogate: it is not text"
    if "\0" in source:
        return None, "the file holds a NUL character: it is not text"
    if size > MAX_SOURCE_BYTES:
        return None, f"the file has {size} bytes, more than {MAX_SOURCE_BYTES}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a bad escape in a string is the author's affair, not an error here
            return ast.parse(source, "harness.py"), ""
    except SyntaxError as error:
        return None, f"line {error.lineno}: syntax error: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:  # NUL bytes, oversized literals, absurd nesting
        return None, f"cannot be parsed: {str(error) or type(error).__name__}"


def _check_run(tree: ast.Module) -> list[str]:
    wanted = "async def run(task, model, env)"
    found = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == "run"
    ]
    if len(found) != 1:
        return [f"the file must define `{wanted}` exactly once at top level; found {len(found)}"]
    node = found[0]
    if not isinstance(node, ast.AsyncFunctionDef):
        return [f"line {node.lineno}: `run` must be `{wanted}`"]
    a = node.args
    names = [arg.arg for arg in [*a.posonlyargs, *a.args]]
    if names != ["task", "model", "env"] or a.vararg or a.kwarg or a.kwonlyargs or a.defaults or node.decorator_list:
        return [f"line {node.lineno}: `run` must be exactly `{wanted}`, undecorated and without defaults"]
    return []


def _check_imports(tree: ast.Module) -> list[str]:
    problems = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            if node.level:
                problems.append(f"line {node.lineno}: a harness is one file; relative imports are not possible")
                continue
            modules = [node.module or ""]
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        else:
            continue
        problems += [
            f"line {node.lineno}: module {module!r} may not be imported (WORKSPACE.md lists those that may)"
            for module in modules
            if module.partition(".")[0] not in ALLOWED_MODULES
        ]
    return problems


def _constants(tree: ast.Module) -> dict[str, list[ast.expr]]:
    """Values assigned at top level to TOOLS and to `*_PROMPT` names, in order."""
    found: dict[str, list[ast.expr]] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            target, value = node.target, node.value
        else:
            continue
        if isinstance(target, ast.Name) and _is_declared(target.id):
            found.setdefault(target.id, []).append(value)
    return found


def _is_declared(name: str) -> bool:
    return name == "TOOLS" or name.endswith("_PROMPT")


def _check_constants(tree: ast.Module) -> list[str]:
    constants = _constants(tree)
    problems = []
    stores: dict[str, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load) and _is_declared(node.id):
            stores[node.id] = stores.get(node.id, 0) + 1
    for name, count in stores.items():
        if count != 1 or len(constants.get(name, [])) != 1:
            problems.append(f"{name} must be assigned exactly once, as a plain top-level constant")
    for name, values in constants.items():
        value = values[0]
        if name == "TOOLS":
            problems += _check_tools(value)
        elif not (isinstance(value, ast.Constant) and isinstance(value.value, str)):
            problems.append(f"line {value.lineno}: {name} must be one plain string literal")
        elif fancy := _FANCY_FIELD.search(value.value.replace("{{", "").replace("}}", "")):
            problems.append(
                f"line {value.lineno}: {name}: {fancy.group()!r} is not a plain placeholder; write {{name}}, "
                "or double the braces of literal text"
            )
    return problems


def _check_tools(node: ast.expr) -> list[str]:
    where = f"line {node.lineno}: TOOLS"
    try:
        tools = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return [f"{where} must be a literal list, without names, calls or comprehensions"]
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        return [f"{where} must be a list of JSON objects"]
    try:
        if json.loads(json.dumps(tools, allow_nan=False)) != tools:  # tuples and non-string keys do not survive
            return [f"{where} must hold JSON values only (no tuples, string keys)"]
    except (TypeError, ValueError, RecursionError) as error:
        return [f"{where} must hold JSON values only: {error}"]
    problems = []
    for index, tool in enumerate(tools):
        body = tool.get("function", tool)
        if not (isinstance(body, dict) and isinstance(body.get("name"), str) and body["name"]):
            problems.append(f"{where}[{index}] has no function name")
    return problems
