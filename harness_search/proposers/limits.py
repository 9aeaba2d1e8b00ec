"""What a hosted proposer may use, what it costs, and the account of one session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness_search.proposers.base import ProposerBudgetSpent, ProposerUsage, SessionFailed

SMALLEST_REPLY = 256
"""Output tokens below which a request is not worth sending."""


@dataclass(frozen=True)
class Prices:
    """Dollars per million tokens. `cached_input` None: cached tokens cost as much as others."""

    input: float
    output: float
    cached_input: float | None = None

    def dollars(self, input_tokens: int, output_tokens: int, cached_tokens: int = 0) -> float:
        cached_price = self.input if self.cached_input is None else self.cached_input
        fresh = input_tokens - cached_tokens
        return (fresh * self.input + cached_tokens * cached_price + output_tokens * self.output) / 1e6


@dataclass(frozen=True)
class SessionLimits:
    """Bounds of one session, and of the whole search; None: none.

    Attributes:
        model_calls: requests that get a reply.
        tool_calls: in one session, over all replies.
        calls_per_reply: tool calls of one reply that are carried out; the others are answered with an error.
        reply_tokens: output tokens of one reply, thinking included.
        tokens: input and output tokens of one session.
        seconds: wall time of one session.
        dollars: cost of one session.
        search_tokens, search_dollars: the same over all sessions of a search.
        result_chars: characters of one tool answer.
        idle_replies: replies without a tool call, in a row, that end a session.
    """

    model_calls: int = 100
    tool_calls: int = 500
    calls_per_reply: int = 16
    reply_tokens: int = 65_536
    tokens: int | None = 10_000_000
    seconds: float = 3600.0
    dollars: float | None = None
    search_tokens: int | None = None
    search_dollars: float | None = None
    result_chars: int = 16_000
    idle_replies: int = 3


@dataclass
class Account:
    """What a session has used, and what a next request could use at most.

    A token is at least one byte of a request, so bytes bound what is not reported yet. What a lost reply may have used
    is reserved: it counts against the limits, never in the usage.
    """

    limits: SessionLimits
    prices: Prices | None
    before: Mapping[str, Any]
    calls: int = 0
    replies: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    calls_without_usage: int = 0
    reserved_tokens: int = 0
    reserved_dollars: float = 0.0
    _context_tokens: int = 0
    _unreported_bytes: int = field(default=0)

    def __post_init__(self) -> None:
        limits = self.limits
        if self.prices is None and (limits.dollars is not None or limits.search_dollars is not None):
            raise ValueError("a limit in dollars needs the model's prices")

    @property
    def usage(self) -> ProposerUsage:
        dollars = None
        if self.prices is not None:
            dollars = self.prices.dollars(self.input_tokens, self.output_tokens, self.cached_tokens)
        return ProposerUsage(
            self.calls, self.input_tokens, self.output_tokens, dollars, self.cached_tokens, self.calls_without_usage
        )

    def sent(self, size: int) -> None:
        """`size` bytes were added to the conversation."""
        self._unreported_bytes += size

    def reply_room(self) -> int:
        """Output tokens that the next reply may have, at most `reply_tokens`.

        Raises:
            ProposerBudgetSpent, SessionFailed: a limit leaves no room for a reply.
        """
        if self.replies >= self.limits.model_calls:
            raise SessionFailed(f"the session's limit of {self.limits.model_calls} model calls is reached")
        limits, room = self.limits, self.limits.reply_tokens
        context = self._context_tokens + self._unreported_bytes
        used = self.input_tokens + self.output_tokens + self.reserved_tokens
        spent = self._before("input_tokens") + self._before("output_tokens")
        for limit, past, whose in ((limits.search_tokens, spent, "search"), (limits.tokens, 0, "session")):
            if limit is not None:
                room = self._fits(room, limit - past - used - context, whose, f"{limit} tokens")
        if self.prices is not None:
            cost = (self.usage.dollars or 0.0) + self.reserved_dollars + self.prices.dollars(context, 0)
            paid = self._before("dollars")
            for limit, past, whose in ((limits.search_dollars, paid, "search"), (limits.dollars, 0.0, "session")):
                if limit is not None and self.prices.output > 0:
                    left = int((limit - past - cost) * 1e6 / self.prices.output)
                    room = self._fits(room, left, whose, f"{limit} dollars")
        return room

    def lost(self, room: int) -> None:
        """A request that may have been answered brought nothing: its largest cost is reserved."""
        context = self._context_tokens + self._unreported_bytes
        self.reserved_tokens += context + room
        if self.prices is not None:
            self.reserved_dollars += self.prices.dollars(context, room)

    def failed_calls(self, count: int) -> None:
        """`count` requests got no usable reply."""
        self.calls += count
        self.calls_without_usage += count

    def replied(self, reply: Mapping[str, Any], size: int, room: int) -> None:
        """A reply of `size` bytes came; adds what it reports."""
        self.calls += 1
        self.replies += 1
        counts = reported_usage(reply)
        if counts is None:
            self.calls_without_usage += 1
            self.lost(room)
            self._unreported_bytes += size
            return
        prompt, output, cached = counts
        self.input_tokens += prompt
        self.output_tokens += output
        self.cached_tokens += cached
        self._context_tokens, self._unreported_bytes = prompt + output, 0

    def _before(self, name: str) -> Any:
        return self.before.get(name) or 0

    @staticmethod
    def _fits(room: int, left: int, whose: str, limit: str) -> int:
        if left < SMALLEST_REPLY:
            kind = ProposerBudgetSpent if whose == "search" else SessionFailed
            raise kind(f"the {whose}'s limit of {limit} leaves no room for another reply")
        return min(room, left)


def reported_usage(reply: Mapping[str, Any]) -> tuple[int, int, int] | None:
    """Input, output (thinking included) and cached tokens that a reply reports; None when it reports none."""
    data = reply.get("usageMetadata")
    if not isinstance(data, Mapping):
        return None
    names = (
        *("promptTokenCount", "toolUsePromptTokenCount", "candidatesTokenCount", "thoughtsTokenCount"),
        "cachedContentTokenCount",
    )
    counts = [data.get(name) for name in names]
    if all(count is None for count in counts) or any(count is not None and count < 0 for count in counts):
        return None
    prompt, tools, answer, thoughts, cached = (count or 0 for count in counts)
    return prompt + tools, answer + thoughts, cached
