"""What a harness holds in its hands: the model, its chats and replies, and the environment."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from harness_search.contract import Budgets, Remaining, ReplyData
from harness_search.sandbox.guest.channel import Channel


class Result(str):
    """Text of an environment call. Passed on as it is, it counts as tool output; any edit of it is a plain `str`."""

    __slots__ = ("_handle",)
    _handle: int

    @property
    def text(self) -> str:
        return str(self)


@dataclass(frozen=True)
class ToolCall:
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Left:
    """What the episode may still use."""

    tokens: int
    turns: int
    tool_calls: int


@dataclass(frozen=True)
class Reply:
    """One sampled assistant turn."""

    text: str
    thinking: str
    raw: str
    tool_calls: list[ToolCall]
    finish: str
    remaining: Left | None
    _id: int = field(repr=False)

    @classmethod
    def from_data(cls, data: ReplyData) -> "Reply":
        left: Remaining | None = data.get("remaining")
        return cls(
            text=data["text"],
            thinking=data["thinking"],
            raw=data["raw"],
            tool_calls=[ToolCall(call["name"], call["arguments"]) for call in data["tool_calls"]],
            finish=data["finish"],
            remaining=None if left is None else Left(left["tokens"], left["turns"], left["tool_calls"]),
            _id=data["id"],
        )


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{what} must be text, got {type(value).__name__}")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"{what} holds a lone surrogate at position {error.start}: it is not text") from None
    return str(value)


def _max_tokens(value: Any) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
        return value
    raise ValueError(f"max_tokens must be a positive integer or None, got {value!r}")


class Chat:
    """A conversation that can only grow. `model.chat` makes one."""

    def __init__(self, channel: Channel, number: int) -> None:
        self._channel = channel
        self._number = number
        self._busy = False

    def user(self, text: str) -> None:
        """Adds a user turn."""
        self._append("user", text)

    def tool(self, text: str) -> None:
        """Adds a tool result. The result of an `env` call, passed on unedited, keeps its provenance."""
        self._append("tool", text)

    def add(self, reply: Reply) -> None:
        """Adds an assistant turn sampled in any chat of this episode; its tokens count as prompt here."""
        self._check_idle()
        if not isinstance(reply, Reply):
            raise TypeError(f"chat.add takes a Reply, got {type(reply).__name__}")
        self._channel.queue("append", self._number, "reply", reply._id, None)

    async def reply(self, max_tokens: int | None = None) -> Reply:
        """Samples an assistant turn."""
        return await self._sample("reply", _max_tokens(max_tokens))

    async def extend_reply(self, text: str, max_tokens: int | None = None) -> Reply:
        """Writes `text` inside the unfinished last assistant turn and samples on."""
        return await self._sample("extend_reply", _text(text, "extend_reply text"), _max_tokens(max_tokens))

    def _append(self, kind: str, value: Any) -> None:
        self._check_idle()
        if isinstance(value, Result):
            self._channel.queue("append", self._number, kind, None, value._handle)
        else:
            self._channel.queue("append", self._number, kind, _text(value, f"chat.{kind}"), None)

    def _check_idle(self) -> None:
        if self._busy:
            raise RuntimeError("this chat is waiting for a reply; await it first, or use another chat")

    async def _sample(self, call: str, *args: Any) -> Reply:
        self._check_idle()
        self._busy = True
        try:
            return Reply.from_data(await self._channel.call(call, self._number, *args))
        finally:
            self._busy = False


class Model:
    """The policy under the host's sampling settings. `budgets` holds what the whole episode may use."""

    def __init__(self, channel: Channel, budgets: Budgets) -> None:
        self._channel = channel
        self._chats = 0
        self.budgets = budgets

    def chat(self, system: str | None = None, tools: list[dict[str, Any]] | None = None) -> Chat:
        """Opens a conversation, with an optional system prompt and the tool schemas the model is shown."""
        try:
            shown = json.loads(json.dumps(tools or [], allow_nan=False))
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"tools must be JSON values: {error}") from None
        if not isinstance(shown, list) or not all(isinstance(tool, dict) for tool in shown):
            raise ValueError("tools must be a list of JSON objects")
        self._channel.queue("open", self._chats, None if system is None else _text(system, "system"), shown)
        self._chats += 1
        return Chat(self._channel, self._chats - 1)

    async def count_tokens(self, text: str) -> int:
        return await self._channel.call("count_tokens", _text(text, "count_tokens text"))


class Env:
    """The domain's primitives, as methods: `await env.search([...], topk=3)`."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Result]]:
        if name.startswith("_"):
            raise AttributeError(f"env has no {name!r}")

        async def primitive(*args: Any, **kwargs: Any) -> Result:
            sent = {key: _argument(value) for key, value in kwargs.items()}
            answer = await self._channel.call("env", name, [_argument(value) for value in args], sent)
            result = Result(answer["text"])
            result._handle = answer["handle"]
            return result

        return primitive


def _argument(value: Any) -> Any:
    """A Reply crosses as a reference, everything else as JSON."""
    return {"$reply": value._id} if isinstance(value, Reply) else {"$value": value}
