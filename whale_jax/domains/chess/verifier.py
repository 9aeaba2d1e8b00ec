"""The verdict of an episode: the whole stored line is 1, anything else 0 (PAPER section 5).

Where the protocols differ: a checkmate by another move than the stored one is right in the honest protocol (the puzzle
source's own rule: any move that mates wins) and wrong in the paper's. A slower mate, or any other good move, is wrong
in both (case E144). What is scored is what the policy sampled: moves that replies named, the last of them in the
returned reply itself.
"""

from __future__ import annotations

from whale_jax.domains.chess.game import Ending, Game
from whale_jax.domains.domain import VerifierProtocol
from whale_jax.domains.verdict import Verdict

NO_REPLY = "no reply to read"
OTHER_REPLY = "the puzzle was over before the returned reply"
UNFINISHED = "the line is not finished"


def judge(game: Game, answer_text: str | None, *, protocol: VerifierProtocol) -> Verdict:
    """Scores an episode by its game and the text of its returned reply. Asking again gives the same verdict.

    A returned reply that was not handed to `play` is played now: a harness need not play the last one itself.
    """
    if answer_text is None:
        return Verdict(0, None, NO_REPLY)
    if answer_text != game.last_text:
        if game.ending is not None:
            return Verdict(0, game.names(answer_text), OTHER_REPLY)
        game.play(answer_text)
    right = game.ending is Ending.SOLVED or (game.ending is Ending.OTHER_MATE and protocol == "honest")
    return Verdict(1 if right else 0, game.answer, reason(game))


def reason(game: Game) -> str:
    """One line: how the puzzle ended and at which of the solver's moves. It does not tell how long the line is."""
    if game.ending is None:
        return f"{UNFINISHED}, at move {game.found + 1}" + (f": {game.problem}" if game.problem else "")
    if game.ending is Ending.SOLVED:
        return str(game.ending)
    return f"{game.ending}, at move {game.found + 1}"
