"""A puzzle: a position, the stored line, and the checks that both must pass.

The layout is that of the Lichess puzzle database: `fen` is the position *before* the opponent's first move, and `moves`
alternates between the opponent (first) and the solver (last), in UCI (case E142).
"""

from __future__ import annotations

import re
from typing import NamedTuple

from whale_jax.domains.chess.library import chess
from whale_jax.domains.task import RowError

MAX_SOLVER_MOVES = 9
"""PAPER section 5: puzzles of 1 to 9 solver moves are kept."""

_FEN = re.compile(
    r"([1-8pnbrqkPNBRQK/]{15,71}) ([wb]) (-|(?=[KQkq])K?Q?k?q?) (-|[a-h][36]) ([0-9]{1,4}) ([0-9]{1,5})", re.ASCII
)
_MOVES = re.compile(r"[a-h][1-8][a-h][1-8][qrbn]?(?: [a-h][1-8][a-h][1-8][qrbn]?)*", re.ASCII)
_EMPTY_SQUARES = str.maketrans({str(count): "." * count for count in range(1, 9)})
_RANK_ENDS = "/" * 7


class Puzzle(NamedTuple):
    """A puzzle as stored. A tuple, because loaders make millions of them.

    Attributes:
        id: the source's id.
        fen: six fields, before the opponent's first move.
        moves: UCI, the opponent's first; an even number.
        rating: Glicko-2 rating of the puzzle; None if the source has none.
        themes: the source's tags.
    """

    id: str
    fen: str
    moves: tuple[str, ...]
    rating: int | None = None
    themes: tuple[str, ...] = ()

    @property
    def solver_moves(self) -> int:
        """How many moves the solver has to find."""
        return len(self.moves) // 2

    @property
    def placement(self) -> str:
        """Pieces and side to move of `fen`: its first two fields."""
        return " ".join(self.fen.split(" ", 2)[:2])


def check_form(fen: str, moves: str) -> tuple[str, ...]:
    """What can be said without playing: the six fields, the board's shape, the kings, the moves' spelling and number.

    Returns:
        The moves, one by one.

    Raises:
        RowError: with the first thing that is wrong (cases E137, E141, E142).
    """
    match = _FEN.fullmatch(fen)
    if not match:
        fields = len(fen.split())
        problem = "is malformed" if fields == 6 else f"must have six fields, got {fields}"
        raise RowError(f"FEN {problem}: {fen[:90]!r}")
    squares = match.group(1).translate(_EMPTY_SQUARES)
    if len(squares) != 71 or squares[8::9] != _RANK_ENDS:
        raise RowError(f"FEN must have 8 ranks of 8 squares: {match.group(1)!r}")
    if squares.count("K") != 1 or squares.count("k") != 1:
        raise RowError(f"FEN must have one king of each colour: {match.group(1)!r}")
    if not _MOVES.fullmatch(moves):
        raise RowError(f"moves must be UCI, separated by one space: {moves[:60]!r}" if moves else "there are no moves")
    line = tuple(moves.split(" "))
    if len(line) % 2:
        raise RowError(f"the number of moves must be even (the opponent moves first), got {len(line)}")
    return line


def check_rules(puzzle: Puzzle) -> chess.Board:
    """Plays the whole line; every position must be possible and every move legal.

    python-chess's `is_valid` is the measure of a possible position; it misses some impossible checks (case E139).

    Returns:
        The position that the solver sees first, after the opponent's first move.

    Raises:
        RowError: with the first thing that is wrong (cases E132, E137).
    """
    try:
        board = chess.Board(puzzle.fen)
    except ValueError as error:
        raise RowError(f"FEN: {error}") from error
    if not board.is_valid():
        raise RowError(f"impossible position ({board.status()}): {puzzle.fen!r}")
    start = None
    for number, uci in enumerate(puzzle.moves, start=1):
        move = chess.Move.from_uci(uci)
        if not board.is_legal(move):
            raise RowError(f"move {number} ({uci}) is illegal")
        board.push(move)
        start = start or board.copy(stack=1)
    if start is None:
        raise RowError("there are no moves")
    return start


def position_key(board: chess.Board) -> str:
    """Pieces and side to move: puzzles that share it are the same puzzle (PAPER section 5)."""
    return f"{board.board_fen()} {'w' if board.turn else 'b'}"


def position_in_words(board: chess.Board) -> str:
    """`White: Ke1 Qd4; Black: Kh8; White to move`: the same as `position_key`, and as different under case folding."""

    def pieces(color: chess.Color) -> str:
        kinds = reversed(chess.PIECE_TYPES)  # the king first, pawns last
        found = [(kind, square) for kind in kinds for square in board.pieces(kind, color)]
        return " ".join(f"{chess.piece_symbol(kind).upper()}{chess.square_name(square)}" for kind, square in found)

    return f"White: {pieces(chess.WHITE)}; Black: {pieces(chess.BLACK)}; {side(board)} to move"


def side(board: chess.Board) -> str:
    """The side to move, as a word."""
    return "White" if board.turn == chess.WHITE else "Black"
