"""The host's side of one episode: what a harness asks for, done on an engine, with budgets, provenance and a trace.

Everything a harness can reach goes through `Episode`. It runs the requests of one episode strictly in the order in
which they arrive, so that a trace depends neither on load nor on how fast a tool answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from harness_search.contract import Budgets, CallRefused, EndReason, EnvResult, EpisodeEnded, ReplyData, ReplyRef
from whale_jax.domains.domain import DomainEnv, SampledText
from whale_jax.qwen3_5.chat import Piece, SpecialIds
from whale_jax.qwen3_5.config import ConfigError
from whale_jax.rollout.chat_log import ChatLog, sampled_answer, split_thinking
from whale_jax.rollout.tool_calls import parse
from whale_jax.rollout.trace import ChatTrace, Segment, Source
from whale_jax.serving.driver import Driver, Sampling, ServingError

MAX_CHATS = 64
_MAX_CHARS_PER_ID = 256  # no id stands for more; longer texts are refused before a tokenizer spends time on them
_CLOSE_TAG = "</think>"


class Codec(Protocol):
    """What an episode needs of `qwen3_5.chat.ChatCodec`."""

    @property
    def special(self) -> SpecialIds: ...
    @property
    def stop_ids(self) -> tuple[int, ...]: ...
    def encode_text(self, text: str, /) -> list[int]: ...
    def decode(self, ids: Sequence[int], /) -> str: ...
    def start(self, system: str | None, tools: Sequence[Mapping[str, Any]], thinking: bool, /) -> list[Piece]: ...
    def user(self, text: str, /) -> list[int]: ...
    def tool(self, text: str, /) -> list[int]: ...
    def close_turn(self, ids: Sequence[int], /) -> list[int]: ...
    def generation_prompt(self, thinking: bool, /) -> list[int]: ...


@dataclass(frozen=True)
class _Reply:
    """One answer given to the harness: a turn as far as it had come then."""

    chat: int
    turn: int
    segments: tuple[Segment, ...]


class Episode:
    """Implements `harness_search.contract.EpisodeHost` for one attempt at one episode.

    Budgets end the episode by `EpisodeEnded`; a request that makes no sense is refused by `CallRefused`, which the
    harness may handle. Room left in the window bounds a reply; what does not fit ends the episode as `token_budget`.
    Nothing is ever cut from the left.
    """

    def __init__(
        self,
        driver: Driver,
        codec: Codec,
        env: DomainEnv,
        *,
        budgets: Budgets,
        sampling: Sampling,
        thinking: bool,
        window: int,
        key: Callable[[int, int], tuple[int, int]],
    ) -> None:
        """Args:
        window: ids that one chat may hold, sampled ones included.
        key: (chat, turn) to the sampling key.
        """
        self._driver = driver
        self._codec = codec
        self._env = env
        self._budgets = budgets
        self._sampling = sampling
        self._thinking = thinking
        self._window = window
        self._key = key
        self._in_order = asyncio.Lock()
        self._chats: list[ChatLog] = []
        self._replies: list[_Reply] = []
        self._results: list[str] = []
        self._tokens = 0
        self._closed = False
        self.turns = 0
        self.tool_calls = 0

    # What the harness asks for.

    async def open_chat(self, system: str | None, tools: list[dict[str, Any]]) -> int:
        """Opens a conversation and writes its head."""
        async with self._in_order:
            self._check_open()
            if len(self._chats) >= MAX_CHATS:
                raise CallRefused(f"an episode may open {MAX_CHATS} chats")
            try:
                head = self._codec.start(system, tools, self._thinking)
            except ConfigError as error:
                raise CallRefused(
                    f"the chat template cannot write this system prompt and these tools: {error}"
                ) from error
            chat = ChatLog(self._driver.open(), tools)
            self._chats.append(chat)
            for piece in head:
                self._append(chat, piece.ids, Source(piece.source))
            return len(self._chats) - 1

    async def append(
        self, chat: int, kind: Literal["user", "tool", "reply"], content: str | int, handle: int | None
    ) -> None:
        """Adds one turn. A result passed on unedited is `tool`, a reply is `prompt`, any other text is `harness`.

        With a handle the text is the host's own record of that result, so no harness text can pass for a tool's.
        """
        async with self._in_order:
            log = self._chat(chat)
            if kind == "reply":
                reply = self._reply(content)
                ids = [token for segment in reply.segments for token in segment.ids]
                turn, source = [*self._codec.generation_prompt(self._thinking), *ids], Source.PROMPT
            else:
                text, source = (self._text(content), Source.HARNESS) if handle is None else self._result(handle)
                turn = self._codec.tool(text) if kind == "tool" else self._codec.user(text)
            self._append(log, self._codec.close_turn(log.last_ids(8)), Source.PROMPT)
            self._append(log, turn, source)

    async def reply(self, chat: int, max_tokens: int | None) -> ReplyData:
        """Samples the next assistant turn of a chat."""
        async with self._in_order:
            log = self._chat(chat)
            if self.turns >= self._budgets.turns:
                raise EpisodeEnded(EndReason.TURN_BUDGET, f"all {self._budgets.turns} turns are used")
            room = self._asked(max_tokens)
            self._append(log, self._codec.close_turn(log.last_ids(8)), Source.PROMPT)
            self._append(log, self._codec.generation_prompt(self._thinking), Source.PROMPT)
            return await self._sample(chat, log.turns, room)

    async def extend_reply(self, chat: int, text: str, max_tokens: int | None) -> ReplyData:
        """Writes harness text at the end of an unfinished assistant turn and samples on.

        The text is ordinary text, with one exception: `</think>`, while the turn's thinking is open, is the control
        token, so that a harness can end thinking. Nothing else is closed. The turn counts once, however often it is
        extended.
        """
        async with self._in_order:
            log = self._chat(chat)
            if not log.ends_in_turn:
                raise CallRefused("extend_reply needs a chat whose last turn is a reply")
            if log.last_finish == "stop":
                raise CallRefused("the reply ended by itself: there is no unfinished turn to write in")
            room = self._asked(max_tokens)
            turn = log.turns - 1
            self._append(log, self._inside_turn(self._text(text), log.trace().turn(turn)), Source.HARNESS, turn=turn)
            return await self._sample(chat, turn, room)

    async def env(self, name: str, args: list[Any], kwargs: dict[str, Any]) -> EnvResult:
        """Runs a domain primitive. A reply among the arguments becomes what the policy sampled after thinking."""
        async with self._in_order:
            self._check_open()
            if name not in self._env.names:
                raise CallRefused(f"env has no {name!r}; it has: {', '.join(sorted(self._env.names))}")
            if self.tool_calls >= self._budgets.tool_calls:
                raise EpisodeEnded(EndReason.TOOL_BUDGET, f"all {self._budgets.tool_calls} tool calls are used")
            self.tool_calls += 1
            values = [self._argument(value) for value in args]
            text = await self._env.call(name, values, {key: self._argument(value) for key, value in kwargs.items()})
            self._results.append(text)
            return {"handle": len(self._results) - 1, "text": text}

    async def count_tokens(self, text: str) -> int:
        """Ids that a text takes."""
        return len(self._codec.encode_text(self._text(text)))

    # What the runner asks for.

    def returned(self, reply: int | None) -> tuple[int, int] | None:
        """(chat, turn) of a returned reply id if it is the last reply of its chat, else None."""
        if reply is None or not 0 <= reply < len(self._replies):
            return None
        place = (self._replies[reply].chat, self._replies[reply].turn)
        later = any(other.chat == place[0] for other in self._replies[reply + 1 :])
        return None if later else place

    def answer_text(self, returned: tuple[int, int]) -> str | None:
        """Sampled text after the last end of thinking in a turn; None if thinking was never closed."""
        segments = self._chats[returned[0]].trace().turn(returned[1])
        ids = sampled_answer(segments, self._codec.special.think_close, self._codec.stop_ids, self._thinking)
        return None if ids is None else self._codec.decode(ids)

    def raw_text(self, returned: tuple[int, int]) -> str:
        """All sampled text of a turn, thinking included."""
        segments = self._chats[returned[0]].trace().turn(returned[1])
        sampled = [token for segment in segments if segment.source is Source.SAMPLED for token in segment.ids]
        return self._codec.decode([token for token in sampled if token not in self._codec.stop_ids])

    def exhausted(self, returned: tuple[int, int]) -> bool:
        """Whether a turn was cut where the token budget or the window ended, not where the harness asked."""
        log = self._chats[returned[0]]
        cut = any(segment.finish == "length" for segment in log.trace().turn(returned[1])[-1:])
        return cut and (self._tokens >= self._budgets.assistant_tokens or len(log) >= self._window)

    def chats(self) -> tuple[ChatTrace, ...]:
        """The conversations so far."""
        return tuple(log.trace() for log in self._chats)

    def close(self) -> None:
        """Frees the sessions and refuses whatever still arrives. Closing twice is harmless."""
        self._closed = True
        for log in self._chats:
            self._driver.close(log.session)

    # Inside.

    async def _sample(self, chat: int, turn: int, room: int) -> ReplyData:
        log = self._chats[chat]
        room = min(room, self._window - len(log))
        if room < 1:
            raise self._window_full(len(log))
        try:
            generation = await self._driver.generate(
                log.session, log.pending_ids(), max_tokens=room, sampling=self._sampling, key=self._key(chat, turn)
            )
        except ServingError as error:
            raise EpisodeEnded(EndReason.INFRASTRUCTURE, f"{type(error).__name__}: {error}") from error
        self._check_open()
        log.sampled(generation, turn)
        if turn == log.turns:
            log.turns += 1
            self.turns += 1
        self._tokens += len(generation.ids)
        self._replies.append(_Reply(chat, turn, log.trace().turn(turn)))
        return self._reply_data(len(self._replies) - 1, generation.finish)

    def _reply_data(self, reply: int, finish: Literal["stop", "length"]) -> ReplyData:
        segments = self._replies[reply].segments
        split = split_thinking(segments, self._codec.special.think_close, self._codec.stop_ids, self._thinking)
        text = self._codec.decode(split.text).lstrip("\n")
        calls = parse(text, self._chats[self._replies[reply].chat].tools)
        return {
            "id": reply,
            "text": text,
            "thinking": self._codec.decode(split.thinking).strip("\n"),
            "raw": self._codec.decode([token for segment in segments for token in segment.ids]),
            "tool_calls": [{"name": call.name, "arguments": call.arguments} for call in calls],
            "finish": finish,
            "remaining": {
                "tokens": self._budgets.assistant_tokens - self._tokens,
                "turns": self._budgets.turns - self.turns,
                "tool_calls": self._budgets.tool_calls - self.tool_calls,
            },
        }

    def _asked(self, max_tokens: int | None) -> int:
        """How many tokens a reply may have by the harness's wish and the budget."""
        if max_tokens is not None and (type(max_tokens) is not int or max_tokens < 1):
            raise CallRefused(f"max_tokens must be a positive integer or None, got {max_tokens!r}")
        left = self._budgets.assistant_tokens - self._tokens
        if left < 1:
            raise EpisodeEnded(
                EndReason.TOKEN_BUDGET, f"all {self._budgets.assistant_tokens} assistant tokens are used"
            )
        return left if max_tokens is None else min(left, max_tokens)

    def _append(self, log: ChatLog, ids: Sequence[int], source: Source, *, turn: int | None = None) -> None:
        if len(log) + len(ids) > self._window:
            raise self._window_full(len(log) + len(ids))
        log.append(ids, source, turn=turn)

    def _window_full(self, length: int) -> EpisodeEnded:
        return EpisodeEnded(
            EndReason.TOKEN_BUDGET, f"{length} ids leave no room to sample in a window of {self._window}"
        )

    def _inside_turn(self, text: str, turn: Sequence[Segment]) -> list[int]:
        """Harness text inside an assistant turn, as ids."""
        think_close = self._codec.special.think_close
        before, tag, after = text.partition(_CLOSE_TAG)
        if not tag or split_thinking(turn, think_close, (), self._thinking).closed:
            return self._codec.encode_text(text)
        return [*self._codec.encode_text(before), think_close, *self._codec.encode_text(after)]

    def _argument(self, value: Any) -> Any:
        if isinstance(value, ReplyRef):
            reply = self._reply(value.id)
            return SampledText(self.answer_text((reply.chat, reply.turn)) or "")
        return value

    def _chat(self, chat: int) -> ChatLog:
        self._check_open()
        if type(chat) is not int or not 0 <= chat < len(self._chats):
            raise CallRefused(f"there is no chat {chat!r}")
        return self._chats[chat]

    def _reply(self, reply: Any) -> _Reply:
        if type(reply) is not int or not 0 <= reply < len(self._replies):
            raise CallRefused(f"there is no reply {reply!r}")
        return self._replies[reply]

    def _result(self, handle: Any) -> tuple[str, Source]:
        if type(handle) is not int or not 0 <= handle < len(self._results):
            raise CallRefused(f"there is no env result {handle!r}")
        return self._results[handle], Source.TOOL

    def _text(self, content: Any) -> str:
        if not isinstance(content, str):
            raise CallRefused(f"the content of a turn is text, got {type(content).__name__}")
        if len(content) > _MAX_CHARS_PER_ID * self._window:
            raise CallRefused(f"{len(content)} characters cannot fit a window of {self._window} ids")
        return content

    def _check_open(self) -> None:
        if self._closed:
            raise EpisodeEnded(EndReason.INFRASTRUCTURE, "the episode is over")
