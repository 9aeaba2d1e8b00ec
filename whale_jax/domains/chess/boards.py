"""Boards as SVG, for reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from whale_jax.domains.chess.behaviour import PublicTrace, replies_of
from whale_jax.domains.chess.game import Game
from whale_jax.domains.chess.library import chess
from whale_jax.domains.chess.moves import read
from whale_jax.domains.chess.puzzle import Puzzle, side

SIZE = 240
"""Width and height of a board in pixels."""
RIGHT_COLOUR, WRONG_COLOUR = "#2a6f97", "#c1121f"


@dataclass(frozen=True)
class Frame:
    """One board of a report.

    Attributes:
        caption: what has just happened, in plain text: escape it like any other text.
        svg: an `<svg>` element.
    """

    caption: str
    svg: str


def line_frames(puzzle: Puzzle, *, size: int = SIZE) -> list[Frame]:
    """The position before the solver, and the position after each move of the stored line."""
    return episode_frames(puzzle, puzzle.moves[1::2], size=size)


def episode_frames(puzzle: Puzzle, played: Sequence[str], *, size: int = SIZE) -> list[Frame]:
    """What an episode looked like: the first position, then each of the solver's moves and the opponent's answer.

    Args:
        played: the solver's moves as spelled. The first that cannot be played, or is not the stored one, ends the
            frames: an illegal move as a caption, another move as a red arrow.
        size: pixels.
    """
    board = chess.Board(puzzle.fen)
    solver = not board.turn
    first = board.parse_uci(puzzle.moves[0])
    caption = f"{side(board)} played {board.san(first)}"
    board.push(first)
    frames = [Frame(f"{caption}; {side(board)} to move", _svg(board, solver, first, None, size))]
    for number, spelling in enumerate(played):
        reading = read(board, spelling)
        if reading.move is None:
            frames.append(Frame(f"not played: {reading.problem}", _svg(board, solver, None, None, size)))
            return frames
        right = 2 * number + 1 < len(puzzle.moves) and reading.move.uci() == puzzle.moves[2 * number + 1]
        frames.append(_pushed(board, reading.move, solver, RIGHT_COLOUR if right else WRONG_COLOUR, size))
        if not right:
            return frames
        if 2 * number + 2 < len(puzzle.moves):
            answer = board.parse_uci(puzzle.moves[2 * number + 2])
            frames.append(_pushed(board, answer, solver, None, size))
    return frames


def trace_frames(puzzle: Puzzle, trace: PublicTrace, *, size: int = SIZE) -> list[Frame]:
    """The boards of a public trace, as if each of its replies had been handed to `play`: for readers, no score."""
    return episode_frames(puzzle, trace_moves(puzzle, trace), size=size)


def trace_moves(puzzle: Puzzle, trace: PublicTrace) -> list[str]:
    """The moves of a public trace that `trace_frames` plays, as spelled: episodes with the same ones look the same."""
    game = Game(puzzle)
    played: list[str] = []
    for reply in replies_of(trace):
        if game.ending is None and reply.visible is not None:
            game.play(reply.visible)
            if game.problem is None and game.answer is not None:
                played.append(game.answer)
    return played


def _pushed(board: chess.Board, move: chess.Move, solver: chess.Color, colour: str | None, size: int) -> Frame:
    caption = f"{side(board)}: {board.san(move)}"
    board.push(move)
    return Frame(caption, _svg(board, solver, move, colour, size))


def _svg(board: chess.Board, solver: chess.Color, last: chess.Move | None, colour: str | None, size: int) -> str:
    """The board from the solver's side; `colour` draws the last move as an arrow."""
    arrows = [chess.svg.Arrow(last.from_square, last.to_square, color=colour)] if last and colour else []
    check = board.king(board.turn) if board.is_check() else None
    return chess.svg.board(board, orientation=solver, lastmove=last, check=check, arrows=arrows, size=size)
