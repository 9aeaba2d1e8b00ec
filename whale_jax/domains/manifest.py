"""What data preparation did: from which public files, with which seed, and what came out.

The module `prepare` of each domain names the public files that it reads as `PUBLIC_FILES`, and has the function
`prepare(source: Path, out: Path, *, seed: int) -> Manifest`. It reads them under `source`, writes the task files of a
run into the new folder `out`, and last of all the manifest beside them with `Manifest.write`: a folder without it is
not finished. A manifest holds no absolute path and no time, so the same input and seed give the same bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from whale_jax.domains.task import BadRow, Split, TaskError

MANIFEST_NAME = "prepared.json"
SHOWN_BAD_ROWS = 20
"""Of each file, the bad rows that a manifest names; it counts them all."""
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class PublicFile:
    """A file that a domain's preparation looks for.

    Attributes:
        path: where it is expected, relative to the source folder.
        what: what it holds and what is made of it, in a few words.
        origin: the page from which it can be had.
        licence: its licence as its publisher states it.
        needed: whether preparation stops without it.
    """

    path: str
    what: str
    origin: str
    licence: str
    needed: bool = True

    def __str__(self) -> str:
        optional = "" if self.needed else " (optional)"
        return f"{self.path}{optional}: {self.what}\n    from {self.origin}\n    licence {self.licence}"


@dataclass(frozen=True)
class SourceFile:
    """A public file as it was read.

    Attributes:
        path: relative to the source folder.
        bytes: its size.
        sha256: hex digest of its bytes.
        origin: the page from which it can be had.
        licence: its licence as its publisher states it.
        rows: rows in it, bad ones included; None when they were not counted.
        bad_rows: rows that could not be used.
    """

    path: str
    bytes: int
    sha256: str
    origin: str
    licence: str
    rows: int | None = None
    bad_rows: int = 0


@dataclass(frozen=True)
class OutputFile:
    """A file that was written: its path relative to the output folder, rows (None when it has none), size, digest."""

    path: str
    rows: int | None
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The record of one preparation.

    Attributes:
        domain: the domain's name.
        seed: the seed of every choice that was made.
        sources: the public files read.
        outputs: the files written, the manifest itself left out.
        counts: named figures, such as rows per split and set, or near copies left out.
        notes: what a reader should know about the choices, a sentence each.
    """

    domain: str
    seed: int
    sources: tuple[SourceFile, ...]
    outputs: tuple[OutputFile, ...]
    counts: Mapping[str, int]
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """JSON-able form."""
        return asdict(self) | {"counts": dict(self.counts)}

    def to_text(self) -> str:
        """The content of `prepared.json`."""
        return json.dumps(self.to_json(), indent=2, sort_keys=True, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Manifest:
        """The inverse of `to_json`."""
        return cls(
            domain=data["domain"],
            seed=data["seed"],
            sources=tuple(SourceFile(**item) for item in data["sources"]),
            outputs=tuple(OutputFile(**item) for item in data["outputs"]),
            counts=dict(data["counts"]),
            notes=tuple(data["notes"]),
        )

    def write(self, out: Path) -> Path:
        """Writes `prepared.json` into the folder `out`; returns its path."""
        path = out / MANIFEST_NAME
        path.write_text(self.to_text(), encoding="utf-8")
        return path

    @classmethod
    def read(cls, out: Path) -> Manifest:
        """The manifest in the folder `out`. Raises OSError when there is none."""
        return cls.from_json(json.loads((out / MANIFEST_NAME).read_text(encoding="utf-8")))


def digest(path: Path) -> tuple[int, str]:
    """Size in bytes and SHA-256 of a file, read in pieces."""
    sha256, size = hashlib.sha256(), 0
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            sha256.update(chunk)
            size += len(chunk)
    return size, sha256.hexdigest()


def source_file(
    folder: Path, path: str, *, origin: str, licence: str, rows: int | None = None, bad_rows: int = 0
) -> SourceFile:
    """The record of the public file `folder / path`."""
    size, sha256 = digest(folder / path)
    return SourceFile(path, size, sha256, origin, licence, rows, bad_rows)


def output_file(folder: Path, path: str, *, rows: int | None) -> OutputFile:
    """The record of the written file `folder / path`."""
    size, sha256 = digest(folder / path)
    return OutputFile(path, rows, size, sha256)


def require_new_folder(out: Path) -> None:
    """Raises TaskError unless `out` is empty or not there yet."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise TaskError(f"{out}: must be a new or an empty folder, so that no earlier data is mixed in")


def write_split(out: Path, split: Split, rows: Iterable[Mapping[str, Any]]) -> OutputFile:
    """Writes one split as the task file `<split>.jsonl` into the folder `out`; returns its record."""
    name, count = f"{split}.jsonl", 0
    with (out / name).open("w", encoding="utf-8", newline="\n") as stream:
        for row in rows:
            stream.write(json.dumps(row, ensure_ascii=False) + "\n")
            count += 1
    return output_file(out, name, rows=count)


def bad_row_notes(path: str, bad_rows: Sequence[BadRow]) -> tuple[str, ...]:
    """A sentence on each of the first `SHOWN_BAD_ROWS` bad rows of the public file `path`."""
    return tuple(f"{path}:{row.line} could not be used: {row.reason}" for row in bad_rows[:SHOWN_BAD_ROWS])
