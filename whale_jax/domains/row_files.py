"""Files of rows in the field's formats: JSON lines (plain, .gz, .zst) and Parquet, read as a stream.

A compressed file that was cut short is an error, never a shorter file.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import zstandard

ROW_SUFFIXES = (".jsonl", ".jsonl.zst", ".jsonl.gz", ".parquet")
"""Endings of the files that `raw_rows` is meant for, in the order in which `find_rows` looks for them."""

_CHUNK_BYTES = 1 << 17
_MAX_WINDOW_BYTES = 1 << 31  # what `zstd --long=31` writes


class RowFileError(ValueError):
    """A file cannot be read as rows; the message names it, the reason, and what to do."""


def find_rows(folder: Path, stem: str) -> Path | None:
    """The file `stem` in `folder` with the first of `ROW_SUFFIXES` that exists; None when there is none."""
    candidates = (folder / f"{stem}{suffix}" for suffix in ROW_SUFFIXES)
    return next((path for path in candidates if path.is_file()), None)


def raw_rows(path: Path) -> Iterator[tuple[int, bytes | Mapping[str, Any]]]:
    """The rows of a file with their numbers, counted from 1: lines as bytes, or rows of a Parquet file as mappings.

    Raises:
        RowFileError: the file cannot be opened, is damaged or cut short, or needs a package that is not installed.
    """
    if path.suffix == ".parquet":
        yield from _parquet(path)
    else:
        yield from enumerate(lines(path), start=1)


def lines(path: Path) -> Iterator[bytes]:
    """The lines of a file, decompressed when it is named .zst or .gz. Raises RowFileError."""
    try:
        with path.open("rb") as stream:
            if path.suffix == ".zst":
                yield from _split(_decompressed(stream, path))
            elif path.suffix == ".gz":
                with gzip.open(stream) as plain:
                    yield from plain
            else:
                yield from stream
    except (EOFError, gzip.BadGzipFile, zlib.error, zstandard.ZstdError) as error:
        raise RowFileError(f"{path}: damaged or cut short: {error}") from error
    except OSError as error:
        raise RowFileError(f"{path}: cannot be read: {error.strerror or error}") from error


def _decompressed(stream: BinaryIO, path: Path) -> Iterator[bytes]:
    """The content of every frame. zstandard's own stream reader takes a cut frame for the end of the file."""
    decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
    frame = None
    while chunk := stream.read(_CHUNK_BYTES):
        while chunk:
            frame = frame or decompressor.decompressobj()
            yield frame.decompress(chunk)
            chunk = frame.unused_data if frame.eof else b""
            frame = None if frame.eof else frame
    if frame is not None:
        raise RowFileError(f"{path}: cut short: its last zstd frame has no end; copy or download it again")


def _split(chunks: Iterator[bytes]) -> Iterator[bytes]:
    rest: list[bytes] = []
    for chunk in chunks:
        *whole, last = chunk.split(b"\n")
        if whole:
            yield b"".join([*rest, whole[0]])
            yield from whole[1:]
            rest = []
        rest.append(last)
    if any(rest):
        yield b"".join(rest)


def _parquet(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise RowFileError(f"{path}: reading Parquet needs pyarrow: pip install 'whale-jax[parquet]'") from error
    number = 0
    try:
        with path.open("rb") as stream, pyarrow.parquet.ParquetFile(stream) as file:
            for batch in file.iter_batches(batch_size=1024):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except pyarrow.ArrowException as error:
        raise RowFileError(f"{path}: not a sound Parquet file: {error}") from error
    except OSError as error:
        raise RowFileError(f"{path}: cannot be read: {error.strerror or error}") from error
