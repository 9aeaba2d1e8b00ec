"""The primitives of a chess episode: `observe()` and `play(reply, move=None)`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness_search.contract import CallRefused
from whale_jax.domains.chess.game import Game
from whale_jax.domains.chess.puzzle import Puzzle
from whale_jax.domains.chess.verifier import judge
from whale_jax.domains.domain import SampledText, VerifierProtocol
from whale_jax.domains.verdict import Verdict

MAX_MOVE_CHARS = 200


class PuzzleEnv:
    """Implements `JudgedEnv`.

    - `observe()`: the position, as text.
    - `play(reply, move=None)`: plays the one move that a reply names. `move` is what the harness read; another move
      than the reply's is not played. The reply itself is passed, never its text: so no move gets on the board that the
      policy did not sample.
    """

    names = frozenset({"observe", "play"})

    def __init__(self, puzzle: Puzzle) -> None:
        self._game = Game(puzzle)

    async def call(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """See `DomainEnv.call`."""
        if name == "observe":
            return self._observe(args, kwargs)
        if name == "play":
            return self._game.play(*_play_arguments(args, kwargs))
        raise CallRefused(f"env has no {name!r}; it has: observe, play")

    def verify(self, answer_text: str | None, *, protocol: VerifierProtocol) -> Verdict:
        """See `JudgedEnv.verify`."""
        return judge(self._game, answer_text, protocol=protocol)

    def _observe(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        if args or kwargs:
            raise CallRefused("observe() takes no arguments")
        return self._game.observe()


def _play_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[SampledText, str | None]:
    by_place: dict[str, Any] = dict(zip(("reply", "move"), args, strict=False))
    if len(args) > 2 or by_place.keys() & kwargs.keys() or not kwargs.keys() <= {"reply", "move"}:
        raise CallRefused("play takes (reply, move=None)")
    given = {**by_place, **kwargs}
    reply, move = given.get("reply"), given.get("move")
    if not isinstance(reply, SampledText):
        raise CallRefused("play takes a reply of this episode itself, not a text: a move counts if the model named it")
    if move is not None and not isinstance(move, str):
        raise CallRefused(f"play: move must be a text or None, got {type(move).__name__}")
    if move is not None and len(move) > MAX_MOVE_CHARS:
        raise CallRefused(f"play: move has {len(move)} characters, more than {MAX_MOVE_CHARS}")
    return reply, move
