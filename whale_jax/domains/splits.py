"""The four splits of a domain: read from the task files of a folder, ordered, kept apart, and hashed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from whale_jax.domains.row_files import ROW_SUFFIXES, find_rows
from whale_jax.domains.task import BadRow, Split, Task, TaskError, TaskFile, canonical_json, check_disjoint

Splits = Mapping[Split, Sequence[Task]]
"""The tasks of every split, in the order in which a run takes them."""


class Digest(Protocol):
    """What a hash of `hashlib` takes."""

    def update(self, data: bytes, /) -> None: ...


@dataclass(frozen=True)
class TaskFolder:
    """The tasks of a folder's four files, the rows that were left out as bad, and how many were left out as copies."""

    splits: Splits
    bad_rows: Sequence[BadRow]
    copies: int


def task_file(folder: Path, split: Split) -> Path:
    """The file of a split: its name with the first of `ROW_SUFFIXES` that is there.

    Raises:
        TaskError: there is none.
    """
    path = find_rows(folder, split)
    if path is None:
        names = ", ".join(f"{split}{suffix}" for suffix in ROW_SUFFIXES)
        raise TaskError(f"{folder}: no {split} tasks: one of {names} must be there (see whale_jax.prepare)")
    return path


def read_splits(folder: Path, read: Callable[[Path, Split], TaskFile], *, allow_overlap: bool = False) -> TaskFolder:
    """Reads the four task files of a folder.

    The tasks of a split come in the order of the hash of their ids, so that the first n of them are a fair sample
    whatever the order of the file.

    Args:
        folder: where `task_file` looks for them.
        read: reads the file of one split, usually by `load_tasks`; its ids are unique in the file.
        allow_overlap: see `check_disjoint`.

    Raises:
        TaskError: a file is missing or cannot be used, or splits overlap.
    """
    files = {split: read(task_file(folder, split), split) for split in Split}
    splits = {
        split: sorted(file.tasks, key=lambda task: hashlib.sha256(task.id.encode()).digest())
        for split, file in files.items()
    }
    check_disjoint(splits, allow_overlap=allow_overlap)
    bad_rows = [row for file in files.values() for row in file.bad_rows]
    return TaskFolder(splits, bad_rows, sum(file.copies for file in files.values()))


def data_hash(splits: Splits, add_to: Callable[[Digest], None] | None = None) -> str:
    """Hex digest of all tasks, references included, in their order; and of what `add_to` adds, such as a corpus."""
    digest = hashlib.sha256()
    for split in Split:
        for task in splits[split]:
            digest.update(canonical_json(asdict(task)).encode() + b"\n")
    if add_to is not None:
        add_to(digest)
    return digest.hexdigest()
