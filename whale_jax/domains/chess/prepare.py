"""From the Lichess puzzle database to the four task files of a run (PAPER section 5).

Which puzzles are taken, and for which split, follows from a seeded hash of the position: the file's order matters only
in that a position is taken once. Splits are filled in the order test, validation, harness, weight, so that a larger
D_weight leaves the others as they are.
"""

from __future__ import annotations

import hashlib
import heapq
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from whale_jax.domains.chess.lichess import LICENCE, ORIGIN, WHERE, read_puzzles
from whale_jax.domains.chess.puzzle import MAX_SOLVER_MOVES, Puzzle, check_rules, position_key
from whale_jax.domains.task import BadRow, RowError, Split, TaskError

PAPER_SIZES: Mapping[Split, int] = {Split.TEST: 256, Split.VALIDATION: 256, Split.HARNESS: 256, Split.WEIGHT: 16_384}
"""PAPER section 5; it has no validation split of its own."""
FILL_ORDER = (Split.TEST, Split.VALIDATION, Split.HARNESS, Split.WEIGHT)
RECORD = "prepared.json"
MIN_RESERVE = 64
SHOWN_BAD_ROWS = 20


@dataclass
class Prepared:
    """What was made of what: the content of prepared.json.

    Attributes:
        source: name, size in bytes and SHA-256 of the file read.
        rows: data rows in it; `bad_rows` of them could not be used, the first few are named in `examples`.
        left_out: reason → rows that are sound and were not taken because of it.
        files: file name → rows and SHA-256.
    """

    seed: int
    source: dict[str, Any]
    domain: str = "chess"
    licence: str = LICENCE
    origin: str = ORIGIN
    rows: int = 0
    bad_rows: int = 0
    examples: list[str] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=lambda: {"chess": metadata.version("chess")})

    def bad(self, row: BadRow) -> None:
        """Counts a bad row."""
        self.bad_rows += 1
        if len(self.examples) < SHOWN_BAD_ROWS:
            self.examples.append(str(row))


def prepare(
    source: Path,
    out: Path,
    *,
    seed: int = 42,
    sizes: Mapping[Split, int] = PAPER_SIZES,
    max_bad_rows: float = 0.01,
) -> Prepared:
    """Writes weight.jsonl, harness.jsonl, validation.jsonl, test.jsonl and prepared.json.

    Every row of the source is checked for its form; of the rows that the hash picks (and a reserve of a twentieth, at
    least 64) every position and move is checked, and a row that fails makes room for the next. The same source and seed
    give the same files.

    Args:
        source: the database, .csv or .csv.zst.
        out: a folder that does not exist yet, or is empty.
        seed: of the hash.
        sizes: tasks per split.
        max_bad_rows: the share of bad rows above which nothing is written.

    Raises:
        TaskError: the source cannot be used or holds too few puzzles, or `out` holds something already.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise TaskError(f"{out}: must be a new or an empty folder, so that no earlier data is mixed in")
    if not source.is_file():
        raise TaskError(f"{source}: there is no such file. {WHERE}")
    digest = hashlib.sha256()
    record = Prepared(seed, {"name": source.name, "bytes": source.stat().st_size})
    needed = sum(sizes.values())
    candidates = _first_by_hash(source, record, digest, seed=seed, count=needed + max(MIN_RESERVE, needed // 20))
    record.source["sha256"] = digest.hexdigest()
    taken = list(_sound(candidates, source, record, count=needed))
    if record.bad_rows > max_bad_rows * record.rows:
        raise TaskError(
            f"{source}: {record.bad_rows} of {record.rows} rows are bad, more than the share {max_bad_rows:g} that is "
            f"allowed: {'; '.join(record.examples[:5])}"
        )
    if len(taken) < needed:
        raise TaskError(f"{source}: {needed} puzzles are needed and {len(taken)} can be used; ask for smaller splits")
    _write(out, taken, sizes, record)
    return record


def _first_by_hash(source: Path, record: Prepared, digest: Any, *, seed: int, count: int) -> list[tuple[int, Puzzle]]:
    """The `count` puzzles with the smallest hashes, in their order, each with its line. Memory: those alone.

    Rows with the same pieces and side to move share their hash; the first one is kept.
    """
    kept: dict[int, tuple[int, Puzzle]] = {}
    heap: list[int] = []  # negated hashes: the largest kept one is on top
    salt = f"chess/{seed}".encode()
    left_out: Counter[str] = Counter()
    for line, row in read_puzzles(source, digest=digest):
        record.rows += 1
        if isinstance(row, BadRow):
            record.bad(row)
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
    record.left_out = dict(left_out)
    return [kept[key] for key in sorted(kept)]


def _sound(candidates: list[tuple[int, Puzzle]], source: Path, record: Prepared, *, count: int) -> Iterator[Puzzle]:
    """The first `count` candidates that stand the rules, no two with the same position before the solver. The reserve
    behind them is checked as well: the record tells of every bad row among the candidates."""
    seen: set[str] = set()
    ids: set[str] = set()
    for line, puzzle in candidates:
        try:
            position = position_key(check_rules(puzzle))
        except RowError as error:
            record.bad(BadRow(str(source), line, str(error)))
            continue
        if position in seen or puzzle.id in ids:
            reason = "same position as an earlier row" if position in seen else "same id as an earlier row"
            record.left_out[reason] = record.left_out.get(reason, 0) + 1
            continue
        seen.add(position)
        ids.add(puzzle.id)
        if len(seen) <= count:
            yield puzzle


def _write(out: Path, taken: list[Puzzle], sizes: Mapping[Split, int], record: Prepared) -> None:
    out.mkdir(parents=True, exist_ok=True)
    rest = iter(taken)
    for split in FILL_ORDER:
        rows = [to_row(next(rest)) for _ in range(sizes[split])]
        content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
        (out / f"{split}.jsonl").write_bytes(content)
        record.files[f"{split}.jsonl"] = {"rows": len(rows), "sha256": hashlib.sha256(content).hexdigest()}
    text = json.dumps(asdict(record), indent=1, sort_keys=True, ensure_ascii=False)
    (out / RECORD).write_text(text + "\n", encoding="utf-8")  # last: a folder without it is not finished


def to_row(puzzle: Puzzle) -> dict[str, Any]:
    """A row of a task file; `domain.parse_row` reads it."""
    return {
        "id": puzzle.id,
        "fen": puzzle.fen,
        "moves": " ".join(puzzle.moves),
        "rating": puzzle.rating,
        "themes": list(puzzle.themes),
    }
