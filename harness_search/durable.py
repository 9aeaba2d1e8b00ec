"""The file-system steps that an archive is made of: each is done wholly or not at all, and never over something else.

Every step that changes the disk goes through one of these functions, which is what lets a test cut a search between any
two of them. One process writes an archive at a time.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

TEMPORARY_PREFIX = ".tmp-"
"""Siblings with this prefix are unfinished work of the archive itself; whoever finds one may discard it."""


def write_bytes(path: Path, data: bytes) -> None:
    """Writes a file inside a directory that is not yet visible, and syncs it."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def make_directory(path: Path) -> None:
    """Creates a directory; its parent exists, it does not."""
    path.mkdir()


def publish(temporary: Path, final: Path) -> None:
    """Renames finished work into place. FileExistsError if something is there already: nothing is ever replaced."""
    if os.path.lexists(final):
        raise FileExistsError(f"{final} exists already; an archive never replaces what it holds")
    if temporary.is_dir():
        sync_directory(temporary)
    os.rename(temporary, final)
    sync_directory(final.parent)


def replace(temporary: Path, final: Path) -> None:
    """Renames a file over its earlier version: for derived files alone, never for evidence."""
    os.replace(temporary, final)


def sync_directory(path: Path) -> None:
    """Makes the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def discard_temporaries(directory: Path) -> None:
    """Removes unfinished work, which is recognised by its name; everything else stays."""
    for path in directory.glob(TEMPORARY_PREFIX + "*"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
