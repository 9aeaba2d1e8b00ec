"""The four task files of a folder, as every domain reads them."""

from __future__ import annotations

from pathlib import Path

from whale_jax.domains.row_files import ROW_SUFFIXES, find_rows
from whale_jax.domains.task import Split, TaskError


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
