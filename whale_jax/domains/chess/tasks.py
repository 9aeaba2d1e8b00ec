"""Puzzles as tasks, and the rows of task files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from whale_jax.domains.chess.puzzle import (
    MAX_SOLVER_MOVES,
    Puzzle,
    check_form,
    check_rules,
    position_in_words,
)
from whale_jax.domains.task import ParsedTask, RowError, Task

NAME = "chess"


def parse_row(row: Mapping[str, Any]) -> ParsedTask:
    """A row of a task file: `id`, `fen`, `moves` (a text or a list), and if known `rating` and `themes`.

    What the harness sees is the position alone: `position` in words and `placement`, the first field of its FEN. They
    are the content by which splits are kept apart: pieces and side to move.

    Raises:
        RowError: a field is missing or wrong, or the position or a move is not possible.
    """
    puzzle = puzzle_of_row(row)
    board = check_rules(puzzle)
    inputs = {"position": position_in_words(board), "placement": board.board_fen()}
    reference = {
        "fen": puzzle.fen,
        "moves": list(puzzle.moves),
        "rating": puzzle.rating,
        "themes": list(puzzle.themes),
    }
    return ParsedTask(inputs, reference, puzzle.id or None)


def puzzle_of_row(row: Mapping[str, Any]) -> Puzzle:
    """The puzzle of a row, checked for its form. Raises RowError."""
    fen, moves = row.get("fen"), row.get("moves")
    if not isinstance(fen, str) or not fen:
        raise RowError("`fen` must be a text that is not empty")
    if isinstance(moves, list) and all(isinstance(move, str) for move in moves):
        moves = " ".join(moves)
    if not isinstance(moves, str):
        raise RowError("`moves` must be a text or a list of texts")
    line = check_form(fen, moves)
    if len(line) > 2 * MAX_SOLVER_MOVES:
        raise RowError(f"a puzzle may have {MAX_SOLVER_MOVES} solver moves, got {len(line) // 2}")
    rating, themes = row.get("rating"), row.get("themes") or []
    if rating is not None and (not isinstance(rating, int) or isinstance(rating, bool)):
        raise RowError(f"`rating` must be a whole number or null, got {rating!r}")
    if isinstance(themes, str):
        themes = themes.split()
    if not isinstance(themes, list) or not all(isinstance(theme, str) for theme in themes):
        raise RowError("`themes` must be a text or a list of texts")
    row_id = row.get("id")
    return Puzzle("" if row_id is None else str(row_id), fen, line, rating, tuple(themes))


def puzzle_of_task(task: Task) -> Puzzle:
    """The puzzle behind a task."""
    stored = task.reference
    return Puzzle(task.id, stored["fen"], tuple(stored["moves"]), stored["rating"], tuple(stored["themes"]))
