"""The Lichess puzzle database: a CSV file, plain or compressed with zstd, read row by row.

Columns: `PuzzleId,FEN,Moves,Rating,RatingDeviation,Popularity,NbPlays,Themes,GameUrl,OpeningTags`; the header may be
missing, later columns too, and their order is the header's. One line is one row. Here a row is checked for its form
(`puzzle.check_form`), at a few microseconds each; `puzzle.check_rules` plays its moves, which costs a hundred times as
much and is done for the rows that are used.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import zstandard

from whale_jax.domains.chess.puzzle import Puzzle, check_form
from whale_jax.domains.manifest import PublicFile
from whale_jax.domains.task import BadRow, RowError, TaskError

COLUMNS = (
    "PuzzleId", "FEN", "Moves", "Rating", "RatingDeviation", "Popularity", "NbPlays", "Themes", "GameUrl", "OpeningTags"
)  # fmt: skip
PUBLIC_FILE = PublicFile(
    "lichess_db_puzzle.csv.zst",
    "the Lichess puzzle database (about 300 MB, read as it is or unpacked), all four splits",
    "https://database.lichess.org/lichess_db_puzzle.csv.zst",
    "CC0-1.0",
)

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_CHUNK = 1 << 18


def read_puzzles(path: Path) -> Iterator[tuple[int, Puzzle | BadRow]]:
    """The rows of a file in order, each with its line (from 1): a puzzle, or a bad row with the reason.

    Args:
        path: a .csv or .csv.zst file; its first bytes tell which.

    Raises:
        TaskError: the file cannot be read, is cut off, or its header lacks a column that is needed.
    """
    columns = _Columns(COLUMNS)
    for number, line in enumerate(_lines(path), start=1):
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
            if line.startswith(b"PuzzleId") or b",FEN," in line:
                columns = _Columns.of_header(path, line.decode("utf-8", "replace"))
                continue
        if not line:
            continue
        try:
            yield number, columns.puzzle(line)
        except RowError as error:
            yield number, BadRow(str(path), number, str(error))


class _Columns:
    """Where the fields of a row are."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._width = len(names)
        self._id, self._fen, self._moves = (names.index(name) for name in COLUMNS[:3])
        self._rating = names.index("Rating") if "Rating" in names else None
        self._themes = names.index("Themes") if "Themes" in names else None
        self._needed = 1 + max(self._id, self._fen, self._moves)

    @classmethod
    def of_header(cls, path: Path, header: str) -> _Columns:
        names = tuple(name.strip() for name in header.split(","))
        missing = [name for name in COLUMNS[:3] if name not in names]
        if missing:
            raise TaskError(f"{path}:1: the header lacks {', '.join(missing)}; it must be that of the Lichess puzzles")
        return cls(names)

    def puzzle(self, line: bytes) -> Puzzle:
        """The puzzle of one line. Raises RowError."""
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            raise RowError(f"not UTF-8: byte {error.start}") from error
        row = text.split(",") if '"' not in text else _quoted(text)
        if not self._needed <= len(row) <= self._width:
            raise RowError(f"a row must have {self._width} columns, got {len(row)}")
        puzzle_id = row[self._id]
        if not puzzle_id.strip():
            raise RowError("PuzzleId is empty")
        moves = check_form(row[self._fen], row[self._moves])
        rating = _field(row, self._rating)
        themes = _field(row, self._themes)
        if rating and not (rating.isascii() and rating.isdigit() and len(rating) <= 5):
            raise RowError(f"Rating must be a whole number, got {rating[:20]!r}")
        return Puzzle(puzzle_id, row[self._fen], moves, int(rating) if rating else None, tuple(themes.split()))


def _field(row: list[str], place: int | None) -> str:
    return row[place] if place is not None and place < len(row) else ""


def _quoted(text: str) -> list[str]:
    try:
        return next(csv.reader([text], strict=True))
    except (csv.Error, StopIteration) as error:
        raise RowError(f"not CSV: {error}") from error


def _lines(path: Path) -> Iterator[bytes]:
    """The lines of a file without their ends."""
    rest = b""
    for data in _unpacked(path):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r")
    if rest:
        yield rest.removesuffix(b"\r")


def _unpacked(path: Path) -> Iterator[bytes]:
    """The content in pieces; a zstd file may have several frames."""
    raw = _chunks(path)
    first = next(raw, b"")
    if not first.startswith(_ZSTD_MAGIC):
        yield first
        yield from raw
        return
    frame = None
    try:
        for chunk in _and_then(first, raw):
            while chunk:
                frame = frame or zstandard.ZstdDecompressor().decompressobj()
                yield frame.decompress(chunk)
                chunk = frame.unused_data if frame.eof else b""
                frame = None if frame.eof else frame
    except zstandard.ZstdError as error:
        raise TaskError(f"{path}: not a sound zstd file: {error}") from error
    if frame is not None:
        raise TaskError(f"{path}: the zstd file ends in the middle; get it again")


def _and_then(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


def _chunks(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                yield chunk
    except OSError as error:
        raise TaskError(f"{path}: cannot be read: {error.strerror}") from error
