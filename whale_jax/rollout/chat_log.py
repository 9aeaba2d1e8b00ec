"""One conversation as it grows: an append-only list of ids with their sources, in step with an engine session."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from whale_jax.rollout.trace import ChatTrace, Segment, Source
from whale_jax.serving.driver import Generation, Session


@dataclass(frozen=True)
class TurnText:
    """An assistant turn, split at its last end of thinking.

    Attributes:
        thinking: ids up to the last end of thinking, which is not included.
        text: ids after it, the turn's end left out; empty while thinking is open.
        closed: whether thinking has ended (always, when the chat does not think).
    """

    thinking: tuple[int, ...]
    text: tuple[int, ...]
    closed: bool


class ChatLog:
    """The ids of one chat. What is appended waits until a reply is asked for, then goes to the engine in one piece.

    Attributes:
        session: the driver's session; its ids always equal those of `trace()`.
        tools: the schemas shown in this chat.
        turns: assistant turns sampled.
    """

    def __init__(self, session: Session, tools: Sequence[object] = ()) -> None:
        self.session = session
        self.tools = tools
        self.turns = 0
        self._consumed: list[Segment] = []
        self._pending: list[Segment] = []
        self._length = 0

    def __len__(self) -> int:
        """Ids so far, those that the engine has not seen yet included."""
        return self._length

    def append(self, ids: Sequence[int], source: Source, *, turn: int | None = None) -> None:
        """Adds ids that are not sampled; empty ones are ignored."""
        if ids:
            self._pending.append(Segment(tuple(ids), source, turn))
            self._length += len(ids)

    def pending_ids(self) -> list[int]:
        """What the engine has to be given before it samples."""
        return [token for segment in self._pending for token in segment.ids]

    def sampled(self, generation: Generation, turn: int) -> None:
        """Records that the engine took the pending ids and sampled on."""
        self._consumed += self._pending
        self._pending = []
        if generation.ids:
            self._consumed.append(
                Segment(
                    generation.ids,
                    Source.SAMPLED,
                    turn,
                    generation.logprobs,
                    generation.weight_version,
                    generation.finish,
                )
            )
            self._length += len(generation.ids)

    def last_ids(self, count: int) -> list[int]:
        """The last `count` ids (fewer if there are fewer), pending ones included."""
        tail: list[int] = []
        for segment in reversed([*self._consumed, *self._pending]):
            tail = [*segment.ids, *tail]
            if len(tail) >= count:
                break
        return tail[-count:]

    @property
    def ends_in_turn(self) -> bool:
        """Whether the last ids are an assistant turn's, so that it may be extended."""
        return not self._pending and bool(self._consumed) and self._consumed[-1].turn is not None

    @property
    def last_finish(self) -> str | None:
        """Why the last sampling ended, if nothing followed it."""
        return self._consumed[-1].finish if self.ends_in_turn else None

    def trace(self) -> ChatTrace:
        """What the engine consumed and sampled; ids appended since are not part of it."""
        return ChatTrace(tuple(self._consumed))


def split_thinking(segments: Sequence[Segment], think_close: int, stop_ids: Sequence[int], thinking: bool) -> TurnText:
    """Splits the ids of one turn at its last `think_close` id, whoever wrote it. Ids decide, not strings."""
    ids = [token for segment in segments for token in segment.ids]
    while ids and ids[-1] in stop_ids:
        ids.pop()
    if think_close in ids:
        at = len(ids) - 1 - ids[::-1].index(think_close)
        return TurnText(tuple(ids[:at]), tuple(ids[at + 1 :]), True)
    return TurnText(tuple(ids), (), False) if thinking else TurnText((), tuple(ids), True)


def sampled_answer(
    segments: Sequence[Segment], think_close: int, stop_ids: Sequence[int], thinking: bool
) -> tuple[int, ...] | None:
    """The ids of one turn that may be verified: after its last end of thinking, and sampled by the policy.

    None while thinking is open. Text that a harness wrote inside the turn is left out, so it can never be scored.
    """
    if not split_thinking(segments, think_close, stop_ids, thinking).closed:
        return None
    answer: list[int] = []
    for segment in segments:
        for token in segment.ids:
            if token == think_close:
                answer = []
            elif segment.source is Source.SAMPLED:
                answer.append(token)
    while answer and answer[-1] in stop_ids:
        answer.pop()
    return tuple(answer)
