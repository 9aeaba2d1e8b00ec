"""A hosted model's session as a tool loop over the workspace, in the API's own JSON, recorded event by event.

The loop knows no client library: a `Transport` sends a request and returns a reply. So the same code runs a session
live, goes on with one that was cut, and replays a recorded one (`transport=None`), to the same proposals and the same
account. A recorded tool answer is taken from the record; nothing is computed twice.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from harness_search.canonical import json_bytes
from harness_search.proposers.base import Proposal, ProposerBudgetSpent, ProposerUnreachable, SessionFailed
from harness_search.proposers.limits import Account
from harness_search.proposers.session_log import Event, SessionLog
from harness_search.proposers.toolbox import TOOLS, Toolbox, shorten

Content = Mapping[str, Any]
"""{"role": "user" | "model", "parts": [...]} of the Gemini API's REST form."""


class TransportError(Exception):
    """A request that brought no usable reply.

    Attributes:
        status: the HTTP status, None when there was none (no connection, a time-out, a reply that is no reply).
        retryable: whether the same request may do better later.
        retry_after: seconds that the server asked to wait; None when it did not say.
    """

    def __init__(
        self, text: str, *, status: int | None = None, retryable: bool = True, retry_after: float | None = None
    ) -> None:
        super().__init__(text)
        self.status, self.retryable, self.retry_after = status, retryable, retry_after


class Transport(Protocol):
    """Sends one request of a conversation."""

    async def generate(
        self, system: str, tools: Sequence[Mapping[str, Any]], contents: Sequence[Content], max_output_tokens: int
    ) -> dict[str, Any]:
        """The reply in the API's JSON form. Raises TransportError."""
        ...


@dataclass(frozen=True)
class Retries:
    """How a request that failed is repeated.

    Attributes:
        attempts: of one request, the first included.
        call_seconds: one attempt's bound, from connecting to the reply's last byte.
        first_delay, longest_delay: seconds; the delay doubles in between. A server's own wish is followed instead, up
            to `longest_delay`; one beyond it ends the attempts.
    """

    attempts: int = 6
    call_seconds: float = 600.0
    first_delay: float = 2.0
    longest_delay: float = 120.0

    def delay(self, attempt: int, wish: float | None) -> float | None:
        """Seconds to wait after attempt 1, 2, ...; None: give up."""
        if attempt >= self.attempts or (wish is not None and wish > self.longest_delay):
            return None
        backoff = min(self.longest_delay, self.first_delay * 2 ** (attempt - 1))
        return backoff if wish is None else max(0.0, wish)


class ToolLoop:
    """One session. `run` yields the proposals; `account` is right at any time."""

    def __init__(
        self,
        *,
        transport: Transport | None,
        toolbox: Toolbox | None,
        log: SessionLog,
        account: Account,
        start: Mapping[str, Any],
        retries: Retries,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`transport` and `toolbox` None: a replay, which ends where its record does.

        `start`: the session's first event. It holds `system`, `tools`, `opening`, and what else decides its course.
        """
        self.account = account
        self._transport, self._toolbox, self._log = transport, toolbox, log
        self._limits, self._retries = account.limits, retries
        self._sleep, self._clock = sleep, clock
        self._start = start
        self._contents: list[Content] = []
        self._unsent: list[Content] = []
        self._tool_calls = 0
        self._idle = 0
        self._ends_at = clock() + self._limits.seconds

    async def run(self, slots: int) -> AsyncGenerator[Proposal, None]:
        """Raises SessionFailed, ProposerBudgetSpent or ProposerUnreachable; what was yielded before stands."""
        start = self._log.begin(self._start, same=self._transport is not None)
        self._system, self._tools = start["system"], start["tools"]
        self.account.sent(_size(start["system"]) + _size(start["tools"]))
        self._say(start["opening"])
        written = 0
        while True:
            try:
                reply = await self._call()
                results = await self._use(reply)
            except (SessionFailed, ProposerBudgetSpent) as error:
                raise self._end(error) or error from None
            proposals = [Proposal(**{**one, "edits": tuple(one["edits"])}) for one in results["written"]]
            if self._toolbox is not None:
                self._toolbox.restore(proposals)
            written += len(proposals)
            done = results["finished"] or written == slots
            if done:
                self._end(None)
            for proposal in proposals:
                yield proposal
            if done:
                return

    def _end(self, error: SessionFailed | None) -> SessionFailed | None:
        """Records how the session ends, and returns the error that it ends with."""
        state = "completed" if error is None else "budget" if isinstance(error, ProposerBudgetSpent) else "failed"
        event = self._log.recorded("end")
        if event is None:
            event = self._log.append({"event": "end", "state": state, "error": None if error is None else str(error)})
        if event["state"] == "completed":
            return None
        return (ProposerBudgetSpent if event["state"] == "budget" else SessionFailed)(event["error"])

    def _recorded(self, kind: str) -> Event | None:
        if self._log.peek() == "end":
            raise SessionFailed("as recorded")  # a limit that the record alone knows of; `_end` has its words
        return self._log.recorded(kind)

    async def _call(self) -> Mapping[str, Any]:
        """The next reply, recorded or fresh."""
        while event := self._recorded("call"):
            for attempt in event["attempts"]:
                self._count_failure(attempt)
            if event["reply"] is not None:
                return self._take(event)
        if self._transport is None:
            raise self._no_more()
        attempts: list[dict[str, Any]] = []
        while True:
            try:
                room = self._room()
                reply = await self._attempt(self._transport, room)
                break
            except TransportError as error:
                attempts.append({"error": str(error), "status": error.status, "max_output_tokens": room})
                self._count_failure(attempts[-1])
                wait = self._retries.delay(len(attempts), error.retry_after) if error.retryable else None
                if wait is None or self._clock() + wait >= self._ends_at:
                    self._log.append(self._event(attempts, None, room))
                    raise self._give_up(error, len(attempts)) from None
                await self._sleep(wait)
            except SessionFailed:
                if attempts:
                    self._log.append(self._event(attempts, None, 0))
                raise
        return self._take(self._log.append(self._event(attempts, reply, room)))

    def _no_more(self) -> ProposerUnreachable:
        return ProposerUnreachable(f"{self._log.directory}: the recorded session ends here, and there is no model")

    def _room(self) -> int:
        if self._clock() >= self._ends_at:
            raise SessionFailed(f"the session's limit of {self._limits.seconds:g} s is reached")
        return self.account.reply_room()

    def _event(self, attempts: Sequence[Mapping[str, Any]], reply: Mapping[str, Any] | None, room: int) -> Event:
        request = {"new_contents": list(self._unsent), "max_output_tokens": room}
        return {"event": "call", "request": request, "attempts": attempts, "reply": reply}

    async def _attempt(self, transport: Transport, room: int) -> dict[str, Any]:
        seconds = min(self._retries.call_seconds, self._ends_at - self._clock())
        contents = [*self._contents, *self._unsent]
        try:
            async with asyncio.timeout(seconds):
                return await transport.generate(self._system, self._tools, contents, room)
        except TimeoutError:
            raise TransportError(f"no complete reply within {seconds:.0f} s") from None

    def _give_up(self, error: TransportError, attempts: int) -> Exception:
        refused = not error.retryable and error.status in (400, 413, 422) and self.account.replies > 0
        if refused:
            return SessionFailed(f"the model refused a request: {error}")
        times = f" after {attempts} attempts" if attempts > 1 else ""
        return ProposerUnreachable(f"the proposer's model cannot be reached{times}: {error}")

    def _count_failure(self, attempt: Mapping[str, Any]) -> None:
        self.account.failed_calls(1)
        if attempt["status"] is None:
            self.account.lost(attempt["max_output_tokens"])

    def _take(self, event: Event) -> Mapping[str, Any]:
        """Counts a reply, and moves what it answers into the conversation."""
        self.account.replied(event["reply"], _size(event["reply"]), event["request"]["max_output_tokens"])
        self._contents += self._unsent
        self._unsent = []
        return event["reply"]

    async def _use(self, reply: Mapping[str, Any]) -> Mapping[str, Any]:
        """Carries out what a reply asks for: {"written": proposals as JSON, "finished": bool}."""
        candidates = reply.get("candidates") or []
        if not candidates:
            blocked = (reply.get("promptFeedback") or {}).get("blockReason")
            if blocked:
                raise SessionFailed(f"the prompt was blocked: {blocked}")
        first = candidates[0] if candidates else {}
        parts = (first.get("content") or {}).get("parts") or []
        calls = [part["functionCall"] for part in parts if part.get("functionCall")]
        if parts:
            self._contents.append({"role": "model", "parts": parts})
        if calls and self._tool_calls >= self._limits.tool_calls:
            raise SessionFailed(f"the session's limit of {self._limits.tool_calls} tool calls is reached")
        if not calls:
            return self._idle_reply(str(first.get("finishReason") or "an empty reply"), bool(parts))
        self._idle = 0
        event = self._recorded("results") or self._log.append(await self._answer(calls))
        self._tool_calls += min(len(calls), self._limits.calls_per_reply)
        self._respond(calls, event["results"])
        return event

    async def _answer(self, calls: Sequence[Mapping[str, Any]]) -> Event:
        toolbox = self._toolbox
        if toolbox is None:
            raise self._no_more()
        before = len(toolbox.written)
        results: list[Mapping[str, Any]] = []
        limits = self._limits
        for number, call in enumerate(calls):
            if number >= limits.calls_per_reply:
                results.append({"error": f"not carried out: more than {limits.calls_per_reply} calls in one reply"})
            elif self._tool_calls + number >= limits.tool_calls:
                results.append({"error": f"not carried out: more than {limits.tool_calls} calls in one session"})
            elif self._clock() >= self._ends_at:
                results.append({"error": "not carried out: the session's time is over"})
            else:
                answer = await toolbox.call(call.get("name"), call.get("args"))
                results.append(shorten(answer, 2 * limits.result_chars))
        written = [asdict(proposal) for proposal in toolbox.written[before:]]
        return {"event": "results", "results": results, "written": written, "finished": toolbox.finished}

    def _respond(self, calls: Sequence[Mapping[str, Any]], results: Sequence[Mapping[str, Any]]) -> None:
        parts = []
        for call, result in zip(calls, results, strict=True):
            response: dict[str, Any] = {"name": call.get("name") or "unknown", "response": result}
            if call.get("id"):
                response["id"] = call["id"]
            parts.append({"functionResponse": response})
        self._add({"role": "user", "parts": parts})

    def _idle_reply(self, reason: str, spoke: bool) -> Mapping[str, Any]:
        self._idle += 1
        if self._idle >= self._limits.idle_replies:
            raise SessionFailed(f"{self._idle} replies in a row without a tool call, the last one: {reason}")
        match reason:
            case "MAX_TOKENS":
                text = "Your reply was cut at its limit before any tool call. Think less, and write less in one reply."
            case "MALFORMED_FUNCTION_CALL" | "UNEXPECTED_TOOL_CALL" | "MALFORMED_RESPONSE":
                text = "Your tool call could not be read. Make it again, with arguments as the tool declares them."
            case _ if spoke and reason == "STOP":
                text = "Only tool calls are read. Go on with one; call finish when you are done."
            case _:
                text = f"Your reply did not arrive ({reason}). Go on with a tool call."
        self._say(text)
        return {"written": [], "finished": False}

    def _say(self, text: str) -> None:
        self._add({"role": "user", "parts": [{"text": text}]})

    def _add(self, content: Content) -> None:
        self._unsent.append(content)
        self.account.sent(_size(content))


def _size(value: Any) -> int:
    return len(json_bytes(value))


def opening(iteration: int, slots: int) -> str:
    """The first user turn."""
    return (
        f"This is iteration {iteration} of the search. Fill {slots} slot{'s' if slots != 1 else ''}: one call of "
        "write_candidate each. Begin with budget.json, history.json and the candidates."
    )


def system_text(manual: str, skill: str) -> str:
    """The instructions: the manual, the domain's guide, and how the tools are used."""
    tools = "\n".join(f"- `{tool.name}`: {tool.description}" for tool in TOOLS)
    parts = [
        manual.strip(),
        "# The domain\n\n" + skill.strip() if skill.strip() else "",
        "# Your tools\n\nYou work by tool calls alone; paths are relative to the workspace. What you write outside of "
        f"tool calls is not read.\n\n{tools}",
    ]
    return "\n\n".join(part for part in parts if part)
