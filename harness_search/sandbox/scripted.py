"""An episode host without a model: replies come from a list. For tests and for the scripted episode of validation."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

from harness_search.contract import Budgets, CallRefused, EndReason, EnvResult, EpisodeEnded, ReplyData, ToolCallData

DEFAULT_BUDGETS = Budgets(assistant_tokens=8192, turns=16, tool_calls=16, wall_seconds=20.0)

Env = Callable[[str, list[Any], dict[str, Any]], str]
ParseCalls = Callable[[str], list[ToolCallData]]


def no_env(name: str, args: list[Any], kwargs: dict[str, Any]) -> str:
    """The environment of a domain without primitives."""
    raise CallRefused(f"env has no {name!r}")


class ScriptedHost:
    """Implements `EpisodeHost`. The k-th reply sampled in the episode is `replies[k]`, the last one repeated for ever.

    `env(name, args, kwargs)` answers every environment call. A token is a whitespace-separated word. `log` keeps every
    call in order, for assertions: ("open", chat, system, tools), ("append", chat, kind, content, handle),
    ("reply", chat), ("extend", chat, text), ("env", name, args, kwargs).
    """

    def __init__(
        self,
        replies: Sequence[str],
        env: Env = no_env,
        *,
        budgets: Budgets = DEFAULT_BUDGETS,
        parse_calls: ParseCalls = lambda text: [],
    ) -> None:
        if not replies:
            raise ValueError("a scripted host needs at least one reply")
        self._replies = list(replies)
        self._env = env
        self._budgets = budgets
        self._parse_calls = parse_calls
        self._raw: list[str] = []
        self._results = 0
        self._open: dict[int, int | None] = {}
        self._tokens = 0
        self._turns = 0
        self.log: list[tuple[Any, ...]] = []

    async def open_chat(self, system: str | None, tools: list[dict[str, Any]]) -> int:
        chat = len(self._open)
        self._open[chat] = None
        self.log.append(("open", chat, system, tools))
        return chat

    async def append(
        self, chat: int, kind: Literal["user", "tool", "reply"], content: str | int, handle: int | None
    ) -> None:
        self._open[chat] = None
        self.log.append(("append", chat, kind, content, handle))

    async def reply(self, chat: int, max_tokens: int | None) -> ReplyData:
        self.log.append(("reply", chat))
        return self._sample(chat, "", max_tokens)

    async def extend_reply(self, chat: int, text: str, max_tokens: int | None) -> ReplyData:
        last = self._open[chat]
        if last is None:
            raise CallRefused("extend_reply needs a chat whose last turn is a reply")
        self.log.append(("extend", chat, text))
        return self._sample(chat, self._raw[last] + text, max_tokens)

    async def env(self, name: str, args: list[Any], kwargs: dict[str, Any]) -> EnvResult:
        self.log.append(("env", name, args, kwargs))
        if self._results >= self._budgets.tool_calls:
            raise EpisodeEnded(EndReason.TOOL_BUDGET)
        text = self._env(name, args, kwargs)
        self._results += 1
        return {"handle": self._results - 1, "text": text}

    async def count_tokens(self, text: str) -> int:
        return len(text.split())

    def _sample(self, chat: int, before: str, max_tokens: int | None) -> ReplyData:
        if self._turns >= self._budgets.turns:
            raise EpisodeEnded(EndReason.TURN_BUDGET)
        left = self._budgets.assistant_tokens - self._tokens
        if left <= 0:
            raise EpisodeEnded(EndReason.TOKEN_BUDGET)
        words = self._replies[min(self._turns, len(self._replies) - 1)].split(" ")
        room = left if max_tokens is None else min(left, max_tokens)
        cut = len(words) > room
        raw = before + " ".join(words[:room])
        self._tokens += min(len(words), room)
        self._turns += 1
        self._raw.append(raw)
        self._open[chat] = len(self._raw) - 1
        thinking, closed, text = raw.rpartition("</think>")
        return {
            "id": len(self._raw) - 1,
            "text": text if closed or "<think>" not in raw else "",
            "thinking": (thinking if closed else raw if "<think>" in raw else "").replace("<think>", "", 1).strip("\n"),
            "raw": raw,
            "tool_calls": self._parse_calls(text),
            "finish": "length" if cut else "stop",
            "remaining": {
                "tokens": self._budgets.assistant_tokens - self._tokens,
                "turns": self._budgets.turns - self._turns,
                "tool_calls": self._budgets.tool_calls - self._results,
            },
        }
