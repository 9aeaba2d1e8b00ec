"""One puzzle being played: the solver's moves come from replies, the opponent's from the stored line."""

from __future__ import annotations

from enum import StrEnum

from whale_jax.domains.chess import moves
from whale_jax.domains.chess.library import chess
from whale_jax.domains.chess.observation import observation
from whale_jax.domains.chess.puzzle import Puzzle

MAX_UNREADABLE = MAX_ILLEGAL = 10
"""Replies without a readable move, and illegal moves, after which a puzzle is over whatever the harness wants (PAPER
section 5: at most 10 retries of each kind; case E146). A harness may give up earlier."""

NO_MOVE, ILLEGAL, OVER = "No move read: ", "Illegal move: ", "Puzzle over: "
"""How the results of `play` begin. Any other result is the next position."""


class Ending(StrEnum):
    """How a puzzle ended. The texts are what a trace's reader sees; they tell nothing of the stored line."""

    SOLVED = "the line is played"
    OTHER_MATE = "checkmate by another move than the stored one"
    WRONG_MOVE = "wrong move"
    UNREADABLE = "too many replies without one readable move"
    ILLEGAL = "too many illegal moves"


_SAID = {
    Ending.SOLVED: "the line is played.",
    Ending.OTHER_MATE: "checkmate.",
    Ending.WRONG_MOVE: "that is not the move.",
    Ending.UNREADABLE: "too many replies without one readable move.",
    Ending.ILLEGAL: "too many illegal moves.",
}


class Game:
    """The state of one episode.

    Attributes:
        ending: how the puzzle ended; None while it goes on.
        found: solver moves of the stored line that were played.
        answer: the move that the last reply named, in UCI or, if illegal, as written; None when it did not name one.
        problem: why the last reply was not played; None when it was.
        last_text: the last reply that was looked at.
    """

    def __init__(self, puzzle: Puzzle) -> None:
        """The opponent makes its first move. `puzzle` has passed `check_rules`."""
        self._line = puzzle.moves
        self._board = chess.Board(puzzle.fen)
        self._board.push_uci(puzzle.moves[0])
        self._unreadable = 0
        self._illegal = 0
        self.ending: Ending | None = None
        self.found = 0
        self.answer: str | None = None
        self.problem: str | None = None
        self.last_text: str | None = None

    def observe(self) -> str:
        """The position, or that the puzzle is over."""
        return observation(self._board, self.found + 1) if self.ending is None else OVER + _SAID[self.ending]

    def names(self, text: str) -> str | None:
        """The one move that a text names here, in UCI or, if illegal, as written; None if it is not exactly one."""
        found = moves.named(self._board, text)
        return found[0].name if len(found) == 1 and found[0].kind is moves.Kind.MOVE else None

    def play(self, text: str, move: str | None = None) -> str:
        """Plays the one move that a reply names, and the opponent's answer.

        Args:
            text: the reply, after thinking.
            move: what the harness read; it must mean the move that the reply names.

        Returns:
            The next position, or a text that begins with `NO_MOVE`, `ILLEGAL` or `OVER`.
        """
        if self.ending is not None:
            return self.observe()
        self.last_text, self.answer, self.problem = text, None, None
        found = moves.named(self._board, text)
        if problem := self._not_one_move(found, move):
            return self._refused(NO_MOVE + problem)
        (reading,) = found
        self.answer = reading.name
        if reading.move is None:
            return self._refused(f"{ILLEGAL}{reading.problem}.")
        return self._made(reading.move)

    def _not_one_move(self, found: list[moves.Reading], move: str | None) -> str | None:
        if not found:
            return "write one move, as <move>e2e4</move>."
        if len(found) > 1:
            return f"several moves are named: {moves.listed(found)}."
        if found[0].kind is not moves.Kind.MOVE:
            return f"{found[0].problem}."
        if move is not None and moves.read(self._board, move).name != found[0].name:
            return f"the reply names {moves.quoted(found[0].name)}, not {moves.quoted(move)}."
        return None

    def _refused(self, message: str) -> str:
        self.problem = message
        if message.startswith(NO_MOVE):
            self._unreadable += 1
            if self._unreadable > MAX_UNREADABLE:
                self.ending = Ending.UNREADABLE
        else:
            self._illegal += 1
            if self._illegal > MAX_ILLEGAL:
                self.ending = Ending.ILLEGAL
        return message if self.ending is None else self.observe()

    def _made(self, move: chess.Move) -> str:
        right = move.uci() == self._line[2 * self.found + 1]
        self._board.push(move)
        if right:
            self.found += 1
            if 2 * self.found == len(self._line):
                self.ending = Ending.SOLVED
            else:
                self._board.push_uci(self._line[2 * self.found])
        elif self._board.is_checkmate():
            self.ending = Ending.OTHER_MATE
        else:
            self.ending = Ending.WRONG_MOVE
        return self.observe()
