"""From the Lichess puzzle database to the four task files of a run (PAPER section 5).

Which puzzles are taken, and for which split, follows from a seeded hash of the position: the file's order matters only
in that a position is taken once. Splits are filled in the order test, validation, harness, weight, so that a larger
D_weight leaves the others as they are.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from whale_jax.domains.chess.lichess import PUBLIC_FILE, read_puzzles
from whale_jax.domains.chess.puzzle import MAX_SOLVER_MOVES, Puzzle, check_rules, position_key
from whale_jax.domains.chess.tasks import NAME
from whale_jax.domains.manifest import (
    SHOWN_BAD_ROWS,
    Manifest,
    bad_row_notes,
    require_new_folder,
    source_file,
    write_split,
)
from whale_jax.domains.task import BadRow, RowError, Split, TaskError

PUBLIC_FILES = (PUBLIC_FILE,)
PAPER_SIZES: Mapping[Split, int] = {Split.TEST: 256, Split.VALIDATION: 256, Split.HARNESS: 256, Split.WEIGHT: 16_384}
"""PAPER section 5; it has no validation split of its own."""
FILL_ORDER = (Split.TEST, Split.VALIDATION, Split.HARNESS, Split.WEIGHT)
MIN_RESERVE = 64


@dataclass
class _Account:
    """What was seen of the source: its rows, the bad ones with the first few as examples, and reason → sound rows that
    were not taken because of it. It does not grow with the file."""

    rows: int = 0
    bad_rows: int = 0
    examples: list[BadRow] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)

    def bad(self, row: BadRow) -> None:
        self.bad_rows += 1
        if len(self.examples) < SHOWN_BAD_ROWS:
            self.examples.append(row)


def prepare(
    source: Path, out: Path, *, seed: int, sizes: Mapping[Split, int] = PAPER_SIZES, max_bad_rows: float = 0.01
) -> Manifest:
    """Writes weight.jsonl, harness.jsonl, validation.jsonl, test.jsonl and the manifest.

    Every row of the source is checked for its form; of the rows that the hash picks (and a reserve of a twentieth, at
    least 64) every position and move is checked, and a row that fails makes room for the next. The same source and seed
    give the same files.

    Args:
        source: the database, .csv or .csv.zst, or the folder with it.
        out: a folder that does not exist yet, or is empty.
        seed: of the hash.
        sizes: tasks per split.
        max_bad_rows: the share of bad rows above which nothing is written.

    Raises:
        TaskError: the source cannot be used or holds too few puzzles, or `out` holds something already.
    """
    require_new_folder(out)
    source = _find(source)
    account = _Account()
    needed = sum(sizes.values())
    candidates = _first_by_hash(source, account, seed=seed, count=needed + max(MIN_RESERVE, needed // 20))
    taken = list(_sound(candidates, source, account, count=needed))
    if account.bad_rows > max_bad_rows * account.rows:
        raise TaskError(
            f"{source}: {account.bad_rows} of {account.rows} rows are bad, more than the share {max_bad_rows:g} that "
            f"is allowed: {'; '.join(map(str, account.examples[:5]))}"
        )
    if len(taken) < needed:
        raise TaskError(f"{source}: {needed} puzzles are needed and {len(taken)} can be used; ask for smaller splits")
    out.mkdir(parents=True, exist_ok=True)
    rest = iter(taken)
    rows = {split: [to_row(next(rest)) for _ in range(sizes[split])] for split in FILL_ORDER}
    manifest = Manifest(
        domain=NAME,
        seed=seed,
        sources=(
            source_file(
                source.parent,
                source.name,
                origin=PUBLIC_FILE.origin,
                licence=PUBLIC_FILE.licence,
                rows=account.rows,
                bad_rows=account.bad_rows,
            ),
        ),
        outputs=tuple(write_split(out, split, rows[split]) for split in Split),
        counts={f"left out: {reason}": count for reason, count in sorted(account.left_out.items())},
        notes=(
            f"Positions and moves were checked with the package chess {metadata.version('chess')}.",
            *bad_row_notes(source.name, account.examples),
        ),
    )
    manifest.write(out)  # last: a folder without it is not finished
    return manifest


def _find(source: Path) -> Path:
    """The database itself, or the one in the folder `source`."""
    packed = source / PUBLIC_FILE.path
    places = (packed, packed.with_suffix("")) if source.is_dir() else (source,)
    for path in places:
        if path.is_file():
            return path
    raise TaskError(f"{' and '.join(map(str, places))}: there is no such file; what is needed:\n  {PUBLIC_FILE}")


def _first_by_hash(source: Path, account: _Account, *, seed: int, count: int) -> list[tuple[int, Puzzle]]:
    """The `count` puzzles with the smallest hashes, in their order, each with its line. Memory: those alone.

    Rows with the same pieces and side to move share their hash; the first one is kept.
    """
    kept: dict[int, tuple[int, Puzzle]] = {}
    heap: list[int] = []  # negated hashes: the largest kept one is on top
    salt = f"chess/{seed}".encode()
    left_out = account.left_out
    for line, row in read_puzzles(source):
        account.rows += 1
        if isinstance(row, BadRow):
            account.bad(row)
            continue
        if row.solver_moves > MAX_SOLVER_MOVES:
            left_out[f"more than {MAX_SOLVER_MOVES} solver moves"] += 1
            continue
        key = int.from_bytes(hashlib.blake2b(row.placement.encode(), digest_size=8, key=salt).digest(), "big")
        if len(heap) == count and key > -heap[0]:
            continue
        if key in kept:
            left_out["same position as an earlier row"] += 1
            continue
        kept[key] = (line, row)
        if len(heap) < count:
            heapq.heappush(heap, -key)
        else:
            del kept[-heapq.heappushpop(heap, -key)]
    return [kept[key] for key in sorted(kept)]


def _sound(candidates: list[tuple[int, Puzzle]], source: Path, account: _Account, *, count: int) -> Iterator[Puzzle]:
    """The first `count` candidates that stand the rules, no two with the same position before the solver. The reserve
    behind them is checked as well: the account tells of every bad row among the candidates."""
    seen: set[str] = set()
    ids: set[str] = set()
    for line, puzzle in candidates:
        try:
            position = position_key(check_rules(puzzle))
        except RowError as error:
            account.bad(BadRow(str(source), line, str(error)))
            continue
        if position in seen or puzzle.id in ids:
            reason = "same position as an earlier row" if position in seen else "same id as an earlier row"
            account.left_out[reason] += 1
            continue
        seen.add(position)
        ids.add(puzzle.id)
        if len(seen) <= count:
            yield puzzle


def to_row(puzzle: Puzzle) -> dict[str, Any]:
    """A row of a task file; `domain.parse_row` reads it."""
    return {
        "id": puzzle.id,
        "fen": puzzle.fen,
        "moves": " ".join(puzzle.moves),
        "rating": puzzle.rating,
        "themes": list(puzzle.themes),
    }
