"""Chess boards beside the trajectories of a run on chess puzzles, drawn by the domain.

Boards repeat (every candidate begins with the same positions), so a page holds each one once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from whale_jax.domains.domain import Domain
from whale_jax.domains.registry import load_domain
from whale_jax.domains.task import Split, TaskError
from whale_jax.report.packing import pack

CHUNK = 48
"""Boards that are unpacked together: neighbours share most of their text."""


class BoardStore:
    """The boards of a page: each distinct one once, in the order of their first use."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}

    def place(self, svg: str) -> int:
        """Which of the boards this one is."""
        return self._places.setdefault(svg, len(self._places))

    def __len__(self) -> int:
        return len(self._places)

    def packed(self) -> list[str]:
        """Base64 of gzip of a JSON list of `CHUNK` SVG texts each."""
        boards = list(self._places)
        return [pack(boards[start : start + CHUNK]) for start in range(0, len(boards), CHUNK)]


class ChessBoards:
    """Public trace → frames of the page."""

    def __init__(self, domain: Domain, store: BoardStore) -> None:
        from whale_jax.domains.chess import boards, tasks  # only with the extra, which `chess_boards` has looked for

        self._frames = boards.episode_frames
        self._moves = boards.trace_moves
        self._puzzles = {task.id: tasks.puzzle_of_task(task) for task in domain.tasks(Split.HARNESS)}
        self._store = store
        self._known: dict[tuple[str, tuple[str, ...]], list[dict[str, Any]]] = {}

    def __call__(self, trace: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Frames of an episode, as `whale_jax.domains.chess.boards` replays it; none for a task that is not there."""
        puzzle = self._puzzles.get(trace["task_id"])
        if puzzle is None:
            return []
        played = tuple(self._moves(puzzle, trace))
        key = (puzzle.id, played)
        if key not in self._known:
            frames = self._frames(puzzle, played)
            self._known[key] = [{"caption": one.caption, "board": self._store.place(one.svg)} for one in frames]
        return self._known[key]


def chess_boards(record: Mapping[str, Any], store: BoardStore) -> tuple[ChessBoards | None, str | None]:
    """Boards for the run with this config.json, or why there are none where there should be."""
    settings = record["settings"]
    if settings.get("domain") != "chess":
        return None, None
    try:
        domain = load_domain(
            "chess",
            task_dir=settings.get("task_dir"),
            max_bad_rows=settings.get("max_bad_rows", 0.0),
            allow_overlap=settings.get("allow_overlap", False),
        )
    except (TaskError, ImportError) as error:
        return None, f"no chess boards: {error}"
    if domain.data_hash != record["inputs"].get("data"):
        return None, f"no chess boards: the puzzles in {settings.get('task_dir') or 'the demo'} are no longer the run's"
    return ChessBoards(domain, store), None
