"""What a model is shown of a position (PAPER section 5): labelled lines, moves as `[e2e4] SAN=e4`, sorted by UCI.

SAN marks checks with + and mates with #; nothing else is said about any move.
"""

from __future__ import annotations

from whale_jax.domains.chess.library import chess
from whale_jax.domains.chess.puzzle import side


def observation(board: chess.Board, number: int) -> str:
    """The text for the position `board`, in which the solver makes its move `number` (from 1). The last move on the
    board's stack is the opponent's; without one the line says `none`."""
    lines = [
        f"Chess puzzle: find the best move for {side(board)}.",
        f"Side to move: {side(board)}",
        f"FEN: {board.fen()}",
        "Board:",
        *ascii_board(board),
        f"Last opponent move: {_last_move(board)}",
        f"Puzzle move: {number}",
        "Legal moves:",
        *legal_moves(board),
    ]
    return "\n".join(lines)


def ascii_board(board: chess.Board) -> list[str]:
    """Eight ranks from 8 to 1 with their numbers, and a last line with the files. White's pieces are capitals."""
    ranks = str(board).splitlines()
    return [*(f"{8 - row} {rank}" for row, rank in enumerate(ranks)), "  a b c d e f g h"]


def legal_moves(board: chess.Board) -> list[str]:
    """`[e2e4] SAN=e4` for each legal move."""
    return [f"[{uci}] SAN={san}" for uci, san in sorted((move.uci(), board.san(move)) for move in board.legal_moves)]


def _last_move(board: chess.Board) -> str:
    if not board.move_stack:
        return "none"
    before = board.copy(stack=1)
    move = before.pop()
    return f"[{move.uci()}] SAN={before.san(move)}"
