"""Chess puzzles: no tools; the model names moves, the environment answers with the stored line (PAPER section 5)."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from harness_search.contract import Budgets
from harness_search.proposers.edits import Edit
from whale_jax.domains.chess import behaviour
from whale_jax.domains.chess.catalogue import CATALOGUE
from whale_jax.domains.chess.demo import demo_tasks
from whale_jax.domains.chess.environment import PuzzleEnv
from whale_jax.domains.chess.tasks import NAME, parse_row, puzzle_of_task
from whale_jax.domains.domain import CountTokens, TraceCodec, VerifierProtocol
from whale_jax.domains.splits import Splits, data_hash, read_splits
from whale_jax.domains.task import BadRow, Split, Task, TaskFile, load_tasks
from whale_jax.domains.verdict import Verdict
from whale_jax.rollout.trace import Trace

DEMO_BUDGETS = Budgets(assistant_tokens=256, turns=8, tool_calls=12, wall_seconds=120.0)
"""Sized for the demo model; the paper's own are `PAPER_BUDGETS`."""
PAPER_BUDGETS = Budgets(assistant_tokens=8_129, turns=18, tool_calls=64, wall_seconds=600.0)
"""PAPER section 5: 8,129 assistant tokens, at most 18 turns. Calls and seconds are open there."""

SCRIPTED_REPLIES = (
    "It should be the rook.\n</think>\n\n<move>a1a8</move>",
    "I do not know.\n</think>\n\nI do not know.",
    "Two moves look good.\n</think>\n\n<move>a1a8</move> or <move>Kg2</move>",
    "It is the rook.\n</think>\n\n**1. Ra8#**",
    "The rook goes to the last rank.\n</think>\n\n<move>a1a8</move>",
)
SCRIPTED_RESULT = """Chess puzzle: find the best move for White.
Side to move: White
FEN: 7k/6pp/8/8/8/8/8/R5K1 w - - 1 2
Board:
8 . . . . . . . k
7 . . . . . . p p
6 . . . . . . . .
5 . . . . . . . .
4 . . . . . . . .
3 . . . . . . . .
2 . . . . . . . .
1 R . . . . . K .
  a b c d e f g h
Last opponent move: [g8h8] SAN=Kh8
Puzzle move: 1
Legal moves:
[a1a8] SAN=Ra8#
[g1f2] SAN=Kf2
[g1g2] SAN=Kg2"""
"""Laid out as a real one; three of its moves are enough for a script."""


def _source(file_name: str) -> str:
    return resources.files("whale_jax.domains.chess").joinpath(file_name).read_text(encoding="utf-8")


@dataclass(frozen=True)
class Chess:
    """Implements `Domain`. Make one with `load`."""

    splits: Splits
    budgets: Budgets
    data_hash: str
    bad_rows: Sequence[BadRow] = ()
    name: str = NAME
    tool_names: frozenset[str] = PuzzleEnv.names
    catalogue: Sequence[Edit] = field(default=CATALOGUE, repr=False)

    # The same for all; see `Domain`.
    h0 = _source("h0.py")
    strong = _source("strong.py")
    skill = _source("skill.md")
    scripted_replies = SCRIPTED_REPLIES
    scripted_result = SCRIPTED_RESULT
    figures = behaviour.FIGURES

    def tasks(self, split: Split) -> Sequence[Task]:
        """See `Domain.tasks`."""
        return self.splits[split]

    def env(self, task: Task) -> PuzzleEnv:
        """See `Domain.env`. It is a `JudgedEnv`: the verdict of an episode is its own."""
        return PuzzleEnv(puzzle_of_task(task))

    def verify(self, task: Task, answer_text: str | None, *, protocol: VerifierProtocol = "honest") -> Verdict:
        """The verdict on a reply that is the first and only one of its episode; for the rest ask the episode's env."""
        return self.env(task).verify(answer_text, protocol=protocol)

    def behaviour(self, tasks: Sequence[Task], traces: Sequence[Trace], codec: TraceCodec) -> Mapping[str, float]:
        """See `Domain.behaviour`. Figures by theme and rating are in `behaviour.behaviour` alone."""
        return behaviour.behaviour([trace.to_public_json(codec) for trace in traces], tasks).figures


def load(
    *,
    task_dir: str | Path | None = None,
    max_bad_rows: float = 0.0,
    allow_overlap: bool = False,
    count_tokens: CountTokens = len,
) -> Chess:
    """The chess domain.

    Args:
        task_dir: folder with weight.jsonl, harness.jsonl, validation.jsonl and test.jsonl (each also .zst, .gz or
            .parquet), as `prepare.prepare` writes it; None means the embedded demo.
        max_bad_rows: the share of a file's rows that may be unusable.
        allow_overlap: let D_weight and D_harness share tasks.
        count_tokens: not needed here.

    Raises:
        TaskError: a file cannot be used, or splits overlap.
    """
    del count_tokens
    if task_dir is None:
        return Chess(demo_tasks(), DEMO_BUDGETS, _demo_hash())

    def read(path: Path, split: Split) -> TaskFile:
        return load_tasks(path, domain=NAME, split=split, parse=parse_row, max_bad_rows=max_bad_rows)

    folder = read_splits(Path(task_dir), read, allow_overlap=allow_overlap)
    return Chess(folder.splits, PAPER_BUDGETS, data_hash(folder.splits), bad_rows=folder.bad_rows)


@functools.cache
def _demo_hash() -> str:
    return data_hash(demo_tasks())
