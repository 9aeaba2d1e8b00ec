"""Host side of one episode's protocol: checks the child's messages and turns them into calls on the episode host."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from harness_search.contract import CallRefused, EndReason, EnvResult, EpisodeEnded, EpisodeHost, ReplyData, ReplyRef
from harness_search.sandbox import wire
from harness_search.sandbox.guest.channel import MAX_CALLS_IN_FLIGHT
from harness_search.sandbox.limits import Limits
from harness_search.sandbox.wire import ProtocolBreach

_CANCEL_SECONDS = 5.0
_LAST_WORD_SECONDS = 2.0  # between an answer that nobody takes and the closing message, or the end of the pipe
_MAX_ERROR_CHARS = 8000


@dataclass(frozen=True)
class Closing:
    """How an episode closed. `end` None: `reply` is the id of the reply the harness returned."""

    end: EndReason | None
    reply: int | None = None
    error: str | None = None


class ChildSilent(Exception):
    """The child closed its pipe without a closing message."""


class ChildNotReady(Exception):
    """The child never came to run the harness."""


class Session:
    """One episode. `run` once; `close` always."""

    def __init__(self, pipe: wire.Pipe, host: EpisodeHost, limits: Limits) -> None:
        self._pipe = pipe
        self._host = host
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._closed: asyncio.Future[Closing] = self._loop.create_future()
        self._receiving: asyncio.Task[None] | None = None
        self._calls: set[int] = set()
        self._answering: set[asyncio.Task[None]] = set()
        self._chats: list[int | None] = []  # the host's chat ids by the child's numbers; None: the host refused to open
        self._busy: set[int] = set()
        self._replies: set[int] = set()
        self._last_reply: dict[int, int] = {}
        self._results: dict[int, str] = {}
        self._messages = 0
        self._bytes = 0
        self._host_busy = 0
        self._idle_since = 0.0
        self.harness_seconds = 0.0

    async def run(self, start: dict[str, Any], ready_seconds: float, wall_seconds: float) -> Closing:
        """Sends `start`, then serves the child until it closes, breaks a rule, or the time is up.

        Raises:
            ChildNotReady: the harness did not run.
            ChildSilent: no closing message will come; the child's exit status says why.
            Exception: whatever fault the host's own code raised.
        """
        try:
            async with asyncio.timeout(ready_seconds):
                await self._pipe.send(start)
                message, _ = await self._pipe.read()
        except (TimeoutError, OSError, EOFError, ProtocolBreach) as error:
            raise ChildNotReady(f"the episode's process did not get ready: {type(error).__name__}: {error}") from None
        if message != {"ready": True}:
            raise ChildNotReady(str(message.get("fault")))
        self._idle_since = self._loop.time()
        self._receiving = asyncio.create_task(self._receive())
        await asyncio.wait({self._closed}, timeout=wall_seconds)
        self._count_harness_time()
        if not self._closed.done():
            return Closing(EndReason.TIMEOUT, error=f"{wall_seconds} s of wall clock are over")
        return self._closed.result()

    async def close(self) -> None:
        """Cancels what is still in flight at the host, within bounds, and drops the pipe."""
        tasks = self._answering | ({self._receiving} if self._receiving else set())
        for task in tasks:
            task.cancel()
        try:
            if tasks:
                _, stuck = await asyncio.wait(tasks, timeout=_CANCEL_SECONDS)
                if stuck:
                    logging.getLogger(__name__).error("%d host calls ignore their cancellation", len(stuck))
        finally:
            self._pipe.close()
        if self._closed.done() and not self._closed.cancelled():
            self._closed.exception()  # marks it as seen; `run` may have been cancelled before it could

    async def _receive(self) -> None:
        try:
            while not self._closed.done():
                message, size = await self._pipe.read()
                self._bytes += size
                if "call" in message:
                    await self._take(message)
                else:
                    self._finish(self._closing(message))
        except (OSError, EOFError):
            self._fail(ChildSilent("it closed its pipe"))
        except ProtocolBreach as breach:
            self._finish(Closing(EndReason.HARNESS_ERROR, error=f"broke the worker protocol: {breach}"))
        except EpisodeEnded as ended:
            self._finish(Closing(ended.reason, error=ended.detail or None))
        except asyncio.CancelledError:
            raise
        except Exception as fault:  # a fault of the host: handed to whoever runs the episode
            self._fail(fault)

    def _closing(self, message: dict[str, Any]) -> Closing:
        match message:
            case {"failed": str(text)}:
                return Closing(EndReason.HARNESS_ERROR, error=text[:_MAX_ERROR_CHARS])
            case {"done": None}:
                what = str(message.get("returned", "nothing"))[:100]
                return Closing(EndReason.INVALID_RETURN, error=f"run returned {what}, not a Reply")
            case {"done": int(reply)} if reply in self._last_reply.values():
                return Closing(None, reply=reply)
            case {"done": int(reply)} if reply in self._replies:
                return Closing(EndReason.INVALID_RETURN, error="run returned a reply that is not the last of its chat")
            case {"done": _}:
                return Closing(EndReason.INVALID_RETURN, error="run returned a reply that is not of this episode")
        raise ProtocolBreach("an unknown message")

    async def _take(self, message: dict[str, Any]) -> None:
        number, operations, call = message.get("id"), message.get("ops"), message["call"]
        if not isinstance(number, int) or number in self._calls or not isinstance(operations, list):
            raise ProtocolBreach("a call without a fresh number")
        if len(self._calls) >= MAX_CALLS_IN_FLIGHT:
            raise ProtocolBreach(f"more than {MAX_CALLS_IN_FLIGHT} calls at once")
        self._messages += 1 + len(operations)
        if self._messages > self._limits.max_messages or self._bytes > self._limits.max_bytes:
            raise ProtocolBreach(f"a flood: {self._messages} messages, {self._bytes} bytes")
        self._host_begins()
        refused: str | None = None
        try:
            for operation in operations:
                try:
                    await self._operate(operation)
                except CallRefused as error:
                    refused = refused or str(error)
            action = self._action(call, refused)
        except BaseException:
            self._host_ends()
            raise
        self._calls.add(number)
        task = asyncio.create_task(self._answer(number, *action))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _operate(self, operation: Any) -> None:
        match operation:
            case ["open", int(number), None | str() as system, list(tools)] if number == len(self._chats):
                if not all(isinstance(tool, dict) for tool in tools):
                    raise ProtocolBreach("tools that are not objects")
                self._chats.append(None)
                self._chats[number] = await self._host.open_chat(system, tools)
            case ["append", int(number), "user" | "tool" as kind, str(text), None]:
                await self._host.append(self._chat(number), kind, text, None)
            case ["append", int(number), "user" | "tool" as kind, None, int(handle)] if handle in self._results:
                await self._host.append(self._chat(number), kind, self._results[handle], handle)
            case ["append", int(number), "reply", int(reply), None] if reply in self._replies:
                await self._host.append(self._chat(number), "reply", reply, None)
            case _:
                raise ProtocolBreach("an unknown chat operation, reply or result")

    def _chat(self, number: int) -> int:
        if not 0 <= number < len(self._chats):
            raise ProtocolBreach("an unknown chat")
        if number in self._busy:
            raise ProtocolBreach("a second call on a chat that is waiting for a reply")
        chat = self._chats[number]
        if chat is None:
            raise CallRefused("this chat could not be opened")
        return chat

    def _action(self, call: Any, refused: str | None) -> tuple[Callable[[], Awaitable[Any]], int | None]:
        """What answers `call` when it is started, and the chat it keeps busy."""
        chat: int | None = None
        try:
            match call:
                case ["reply", int(chat), limit] if _is_limit(limit):
                    answer = partial(self._reply, chat, partial(self._host.reply, self._chat(chat), limit))
                case ["extend_reply", int(chat), str(text), limit] if _is_limit(limit):
                    answer = partial(self._reply, chat, partial(self._host.extend_reply, self._chat(chat), text, limit))
                case ["env", str(name), list(args), dict(kwargs)] if name and not name.startswith("_"):
                    values = [self._argument(value) for value in args]
                    named = {key: self._argument(value) for key, value in kwargs.items()}
                    answer = partial(self._env, name, values, named)
                case ["count_tokens", str(text)]:
                    answer = partial(self._host.count_tokens, text)
                case _:
                    raise ProtocolBreach("an unknown call")
        except CallRefused as error:
            refused = refused or str(error)
        if refused is not None:
            return partial(_refuse, refused), None
        if chat is not None:
            self._busy.add(chat)
        return answer, chat

    async def _reply(self, chat: int, sample: Callable[[], Awaitable[ReplyData]]) -> ReplyData:
        data = await sample()
        self._replies.add(data["id"])
        self._last_reply[chat] = data["id"]
        return data

    async def _env(self, name: str, args: list[Any], kwargs: dict[str, Any]) -> EnvResult:
        result = await self._host.env(name, args, kwargs)
        self._results[result["handle"]] = result["text"]
        return result

    def _argument(self, value: Any) -> Any:
        match value:
            case {"$value": inner, **rest} if not rest:
                return inner
            case {"$reply": int(reply), **rest} if not rest and reply in self._replies:
                return ReplyRef(reply)
        raise ProtocolBreach("an argument that is neither a value nor a reply of this episode")

    async def _answer(self, number: int, action: Callable[[], Awaitable[Any]], chat: int | None) -> None:
        answer: dict[str, Any]
        try:
            answer = {"id": number, "ok": await action()}
        except CallRefused as error:
            answer = {"id": number, "refused": str(error)}
        except EpisodeEnded as ended:
            self._finish(Closing(ended.reason, error=ended.detail or None))
            return
        except asyncio.CancelledError:
            raise
        except Exception as fault:  # a fault of the host: handed to whoever runs the episode
            self._fail(fault)
            return
        finally:
            self._host_ends()
            if chat is not None:
                self._busy.discard(chat)
            self._calls.discard(number)
        try:
            await self._pipe.send(answer)
        except OSError:  # it takes no answers any more; what it said before may still be on its way
            await asyncio.wait({self._closed}, timeout=_LAST_WORD_SECONDS)
            self._fail(ChildSilent("it closed its pipe"))

    def _finish(self, closing: Closing) -> None:
        if not self._closed.done():
            self._closed.set_result(closing)

    def _fail(self, error: Exception) -> None:
        if not self._closed.done():
            self._closed.set_exception(error)

    def _host_begins(self) -> None:
        if self._host_busy == 0:
            self._count_harness_time()
        self._host_busy += 1

    def _host_ends(self) -> None:
        self._host_busy -= 1
        if self._host_busy == 0:
            self._idle_since = self._loop.time()

    def _count_harness_time(self) -> None:
        if self._host_busy == 0:
            self.harness_seconds += self._loop.time() - self._idle_since


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_limit(value: Any) -> bool:
    return value is None or (_is_int(value) and 0 < value < 1 << 31)


async def _refuse(message: str) -> NoReturn:
    raise CallRefused(message)
