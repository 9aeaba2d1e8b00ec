"""The record of one episode: which token ids were in each chat, and who wrote them.

Ids are the only thing stored. Loss masks, texts and counts are derived from them, so they cannot disagree with what the
engine computed. Nothing here depends on time, load or host except `Effort`, which is kept out of equality and of JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, Protocol

from harness_search.contract import EndReason
from whale_jax.domains.verdict import Verdict

Finish = Literal["stop", "length"]


class Source(StrEnum):
    """Who wrote a segment. Loss falls on `SAMPLED` alone."""

    PROMPT = "prompt"
    """The chat format's own ids (heads, generation prompts, missing turn ends); replies put in from another chat."""
    TOOL = "tool"
    """A result of an env call, passed on unedited."""
    HARNESS = "harness"
    """Whatever else the harness wrote."""
    SAMPLED = "sampled"
    """What the policy sampled, the end-of-turn id included when it was sampled."""


class TextDecoder(Protocol):
    """The part of the chat codec that a public trace needs."""

    def decode(self, ids: Any, /) -> str: ...


@dataclass(frozen=True)
class Segment:
    """A run of ids with one source.

    Attributes:
        ids: token ids, at least one.
        source: who wrote them.
        turn: the ordinal of the assistant turn in its chat that the ids belong to; None outside assistant turns.
            `SAMPLED` segments always have one; text written inside a turn by `extend_reply` is `HARNESS` with a turn.
        logprobs: natural log-probabilities under the sampling distribution (temperature, top-k and top-p applied), one
            per id; empty unless sampled.
        weight_version: version of the weights that sampled the ids; None unless sampled.
        finish: why sampling ended here; None unless sampled.
    """

    ids: tuple[int, ...]
    source: Source
    turn: int | None = None
    logprobs: tuple[float, ...] = ()
    weight_version: int | None = None
    finish: Finish | None = None

    def __post_init__(self) -> None:
        sampled = self.source is Source.SAMPLED
        if not self.ids:
            raise ValueError("a segment holds at least one id")
        if len(self.logprobs) != (len(self.ids) if sampled else 0):
            raise ValueError(f"{self.source} segment of {len(self.ids)} ids has {len(self.logprobs)} log-probabilities")
        if sampled != (self.finish is not None) or sampled != (self.weight_version is not None):
            raise ValueError(f"finish and weight version belong to sampled segments, and only there: {self.source}")
        if sampled and self.turn is None:
            raise ValueError("a sampled segment belongs to an assistant turn")

    def to_json(self) -> dict[str, Any]:
        """JSON-able form; fields that the source leaves empty are left out."""
        out: dict[str, Any] = {"source": self.source.value, "ids": list(self.ids)}
        if self.turn is not None:
            out["turn"] = self.turn
        if self.source is Source.SAMPLED:
            out |= {"logprobs": list(self.logprobs), "weight_version": self.weight_version, "finish": self.finish}
        return out

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Segment:
        """The inverse of `to_json`."""
        return cls(
            ids=tuple(data["ids"]),
            source=Source(data["source"]),
            turn=data.get("turn"),
            logprobs=tuple(data.get("logprobs", ())),
            weight_version=data.get("weight_version"),
            finish=data.get("finish"),
        )


@dataclass(frozen=True)
class ChatTrace:
    """One conversation, in order: exactly the ids that the engine consumed and sampled."""

    segments: tuple[Segment, ...]

    @property
    def ids(self) -> tuple[int, ...]:
        """All ids, concatenated; length T."""
        return tuple(token for segment in self.segments for token in segment.ids)

    @property
    def loss_mask(self) -> tuple[bool, ...]:
        """Length T: True where the id itself was sampled (before any shift to next-token targets)."""
        return tuple(segment.source is Source.SAMPLED for segment in self.segments for _ in segment.ids)

    @property
    def logprobs(self) -> tuple[float, ...]:
        """Length T: the sampler's log-probability of each sampled id, 0.0 elsewhere."""
        return tuple(value for segment in self.segments for value in (segment.logprobs or (0.0,) * len(segment.ids)))

    @property
    def turns(self) -> int:
        """Assistant turns sampled in this chat."""
        return 1 + max((segment.turn for segment in self.segments if segment.turn is not None), default=-1)

    def turn(self, turn: int) -> tuple[Segment, ...]:
        """The segments of one assistant turn: sampled ones, and harness text written inside it."""
        return tuple(segment for segment in self.segments if segment.turn == turn)


@dataclass(frozen=True)
class Effort:
    """What an episode took. Depends on load and machine, so it is never compared, hashed or stored with the trace."""

    attempts: int = 1
    seconds: float = 0.0
    harness_seconds: float = 0.0
    """In which the host had nothing to do for the episode: harness, its process and the protocol."""


def harness_overhead(efforts: Iterable[Effort]) -> dict[str, float]:
    """What harnesses cost: `harness_ms_per_episode`, and `harness_share` of the time that episodes took."""
    efforts = list(efforts)
    harness, whole = sum(one.harness_seconds for one in efforts), sum(one.seconds for one in efforts)
    return {
        "harness_ms_per_episode": 1000 * harness / len(efforts) if efforts else 0.0,
        "harness_share": harness / whole if whole else 0.0,
    }


@dataclass(frozen=True)
class Trace:
    """One finished episode.

    Attributes:
        task_id: the task's id.
        sample: ordinal of the sample within its group.
        chats: the conversations in the order they were opened (chats that never got a reply included, then empty).
        end: why the episode ended. `answered`: a reply was returned, it closed its thinking, and it was not cut by a
            budget. A reply cut by the token budget or by the window ends as `token_budget` even when it is returned.
        verdict: reward 0, 1, or None (unscored: missing data, never a 0).
        returned: (chat, turn) of the returned reply; None when no valid reply was returned.
        error: what went wrong, for readers and proposers; None when nothing did.
        turns: replies sampled over all chats. A reply and its extensions are one turn.
        tool_calls: env calls made.
        effort: see `Effort`.
    """

    task_id: str
    sample: int
    chats: tuple[ChatTrace, ...]
    end: EndReason
    verdict: Verdict
    returned: tuple[int, int] | None
    error: str | None = None
    turns: int = 0
    tool_calls: int = 0
    effort: Effort = field(default=Effort(), compare=False)

    @property
    def segments(self) -> Iterator[Segment]:
        """Every segment of every chat."""
        return (segment for chat in self.chats for segment in chat.segments)

    @property
    def sampled_tokens(self) -> int:
        """Ids sampled by the policy in this episode."""
        return sum(len(segment.ids) for segment in self.segments if segment.source is Source.SAMPLED)

    @property
    def prompt_tokens(self) -> int:
        """Ids that the policy read but did not sample in place."""
        return sum(len(segment.ids) for segment in self.segments if segment.source is not Source.SAMPLED)

    @property
    def weight_versions(self) -> frozenset[int]:
        """Versions of the weights that sampled anything here."""
        return frozenset(segment.weight_version for segment in self.segments if segment.weight_version is not None)

    @property
    def returned_finish(self) -> Finish | None:
        """Why the last sampling of the returned reply ended; None without a returned reply."""
        if self.returned is None:
            return None
        chat, turn = self.returned
        sampled = [segment for segment in self.chats[chat].turn(turn) if segment.source is Source.SAMPLED]
        return sampled[-1].finish

    @property
    def ended_by_itself(self) -> bool:
        """Whether a reply was returned whose end the policy sampled: half of the honest acceptance rule."""
        return self.returned_finish == "stop"

    def to_json(self) -> dict[str, Any]:
        """Complete JSON-able form, the same for the same episode on any driver, load or host."""
        return {
            "task_id": self.task_id,
            "sample": self.sample,
            "end": self.end.value,
            "verdict": _verdict_to_json(self.verdict),
            "returned": list(self.returned) if self.returned is not None else None,
            "error": self.error,
            "turns": self.turns,
            "tool_calls": self.tool_calls,
            "chats": [[segment.to_json() for segment in chat.segments] for chat in self.chats],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Trace:
        """The inverse of `to_json` (`effort` starts empty)."""
        returned = data["returned"]
        return cls(
            task_id=data["task_id"],
            sample=data["sample"],
            chats=tuple(ChatTrace(tuple(Segment.from_json(item) for item in chat)) for chat in data["chats"]),
            end=EndReason(data["end"]),
            verdict=Verdict(**data["verdict"]),
            returned=(returned[0], returned[1]) if returned is not None else None,
            error=data["error"],
            turns=data["turns"],
            tool_calls=data["tool_calls"],
        )

    def to_public_json(self, decoder: TextDecoder) -> dict[str, Any]:
        """What archives keep and proposers read: texts with their sources, no ids, and no reference answer."""
        chats = []
        for chat in self.chats:
            segments = []
            for segment in chat.segments:
                item: dict[str, Any] = {"source": segment.source.value, "text": decoder.decode(segment.ids)}
                if segment.turn is not None:
                    item["turn"] = segment.turn
                if segment.finish is not None:
                    item |= {"tokens": len(segment.ids), "finish": segment.finish}
                segments.append(item)
            chats.append(segments)
        return {
            "task_id": self.task_id,
            "sample": self.sample,
            "end": self.end.value,
            "reward": self.verdict.reward,
            "answer": self.verdict.answer,
            "reason": self.verdict.reason,
            "returned": list(self.returned) if self.returned is not None else None,
            "error": self.error,
            "turns": self.turns,
            "tool_calls": self.tool_calls,
            "sampled_tokens": self.sampled_tokens,
            "chats": chats,
        }


def _verdict_to_json(verdict: Verdict) -> dict[str, Any]:
    return {"reward": verdict.reward, "answer": verdict.answer, "reason": verdict.reason}
