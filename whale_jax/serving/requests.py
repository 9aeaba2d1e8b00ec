"""One call of `generate` on its way through a slot."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from whale_jax.serving.driver import Generation, Sampling, ServingError, Session
from whale_jax.serving.rows import RowState


class Chunk(NamedTuple):
    """Ids that enter a state together, in an extend step.

    Where `sampled`, they were sampled once and enter in decode steps as they did then; `following` are the ids that
    the steps must not sample anew, those after the first and the one after the last.
    """

    ids: list[int]
    sampled: bool = False
    following: tuple[int, ...] = ()


@dataclass(eq=False)
class Request:
    """A request on a session.

    Attributes:
      session: to be extended.
      extensions: new ids, cut at the points where they were added.
      max_tokens: bound on sampled ids.
      sampling: settings.
      key: of the sampled ids; each id folds in its absolute position.
      deliver: called once, on the engine's thread, with the outcome.
      cancelled: set by any thread; the request leaves its slot before the next step and nothing is delivered.
      work: chunks that its state has not seen yet. When there are none, ids are sampled.
      beginnings: of a first extension, the keys of its chunk boundaries that are not computed yet.
      keep: those of them whose states go into the prefix store.
      awaits: one of them that another request is computing; this one goes on when that is done.
      seniority: who came first keeps its pages when there are too few.
      paused: it has no pages for the time being; `parked` is its state then, if it had any.
      ids, logprobs, model_logprobs, versions: sampled so far.
    """

    session: Session
    extensions: Sequence[Sequence[int]]
    max_tokens: int
    sampling: Sampling
    key: tuple[int, int]
    deliver: Callable[[Generation | ServingError], None]
    cancelled: bool = False
    work: deque[Chunk] = field(default_factory=deque)
    beginnings: deque[bytes] = field(default_factory=deque)
    keep: set[bytes] = field(default_factory=set)
    awaits: bytes | None = None
    seniority: int = 0
    paused: bool = False
    parked: RowState | None = None
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    model_logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    @property
    def budget(self) -> int:
        return self.max_tokens - len(self.ids)

    def generation(self, *, stopped: bool) -> Generation:
        """What is delivered in the end."""
        return Generation(
            tuple(self.ids),
            tuple(self.logprobs),
            tuple(self.model_logprobs),
            "stop" if stopped else "length",
            self.versions[-1],
            tuple(self.versions),
        )

    def said(self, token_bytes: Sequence[bytes]) -> bool:
        """Whether one of its stop strings is in the sampled text and was not before the last id."""
        stops = [stop.encode() for stop in self.sampling.stop_strings]
        if not stops or len(self.ids) < self.sampling.min_tokens:
            return False
        text = b""
        for token in reversed(self.ids):  # from the end, as far as a string that the last id completes can reach
            text = token_bytes[token] + text
            if len(text) >= max(map(len, stops)) + len(token_bytes[self.ids[-1]]):
                break
        return any(stop in text for stop in stops)


def plan_work(session: Session, extensions: Sequence[Sequence[int]], chunk: int) -> list[Chunk]:
    """The chunks that bring a session's state to the end of new extensions.

    A state that is lost (`consumed` is 0 and there are `pieces`) comes first, piece by piece as it was. What the state
    has not seen, such as the id sampled last, belongs to the first extension.
    """
    work: list[Chunk] = []
    at = session.consumed
    if at == 0:
        for piece in session.pieces:
            ids = session.ids[at : at + abs(piece)]
            at += abs(piece)
            if piece > 0:
                work.append(Chunk(ids))
            else:
                work.append(Chunk(ids, True, (*ids[1:], session.ids[at])))
    first, *others = extensions
    for extension in ([*session.ids[at:], *first], *others):
        work.extend(Chunk(list(extension[start : start + chunk])) for start in range(0, len(extension), chunk))
    return work
