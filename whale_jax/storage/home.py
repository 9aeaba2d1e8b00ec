"""Where a run directory lives. The run works in a local folder in any case; its home says when something counts.

On a local disk, a file counts when it is there. In a bucket (`whale_jax.storage.bucket_home`), the folder is a working
copy, and what counts is in the bucket: evidence before the journal entry that rests on it, the entry created if absent.
"""

from pathlib import Path
from typing import Protocol

from whale_jax.journal import write_once


class Home(Protocol):
    """What the parts of a run tell of what they have done on the disk."""

    @property
    def directory(self) -> Path:
        """The folder that the run works in."""
        ...

    def commit(self, path: Path, data: bytes) -> None:
        """Writes a journal entry, which must not exist yet, after everything that it may rest on.

        Raises:
            FileExistsError: another process wrote it; it is left as it is.
        """
        ...

    def publish(self, path: Path | None = None) -> None:
        """Makes what was written under `path` count, as far as it is new; default: all but journal and checkpoints."""
        ...

    def fetch(self) -> None:
        """Makes the folder equal to what counts, arrays of checkpoints apart."""
        ...

    def bring(self, path: Path) -> None:
        """Makes sure that what counts under `path`, a checkpoint, is in the folder."""
        ...

    def removed(self, path: Path) -> None:
        """Tells that a checkpoint is not kept any longer; it counts until the next commit."""
        ...


class LocalHome:
    """A folder on a disk."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def commit(self, path: Path, data: bytes) -> None:
        write_once(path, data)

    def publish(self, path: Path | None = None) -> None:
        pass

    def fetch(self) -> None:
        pass

    def bring(self, path: Path) -> None:
        pass

    def removed(self, path: Path) -> None:
        pass
