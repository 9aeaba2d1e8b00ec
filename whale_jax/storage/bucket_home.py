"""A run directory in a bucket, and the folder on this machine in which the run works.

The bucket is the run: a job begins by making the folder equal to it, and nothing of the run counts before it is there.
An object is only ever written over the one that this process read or wrote last, so whatever another process does there
is noticed, not lost. Where several files count together (`_LAST`), one of them is sent last, and without it the others
are as if they were not there: that is what a job leaves that ends in between.

Arrays of checkpoints are fetched when they are asked for (`bring`); all else is in the folder from the start. This
machine's own are names that begin with a dot, the proposer's workspace, which is made from the archive, and what a
probe writes before it is over.
"""

import contextlib
import os
import threading
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from whale_jax.config import ConfigError
from whale_jax.journal import write_once
from whale_jax.storage.bucket import Bucket, BucketError, Conflict, Stored, bring, each
from whale_jax.storage.lease import Lease, RunLost
from whale_jax.storage.url import is_path

READS = 5
"""Tries to read a run that goes on while it is read."""
_CHECKPOINTS = ("checkpoints", "unfinished")
_LAST = {
    "checkpoints/*": "meta.json",
    "unfinished/*": "meta.json",
    "cycle_*/search/candidates/*": "verdict.json",
    "export": "manifest.json",
}
"""Folder → the file in it that is written last."""
_JOURNAL = "journal"
_LOCAL = ("workspace", "probe")


@dataclass(frozen=True)
class _Same:
    """A file that is equal to an object: the object's generation, and what shows that the file changed since."""

    generation: int
    file: tuple[int, int, int] | None


class BucketHome:
    """A `Home`. The run's thread and the checkpoints' writer may use it at the same time."""

    def __init__(self, bucket: Bucket, directory: Path, lease: Lease | None = None) -> None:
        """Args:
        directory: the working copy, this process's own.
        lease: the right to write; without it, the run is only read.
        """
        self.directory = directory
        self._bucket, self._lease = bucket, lease
        self._known: dict[str, _Same] = {}
        self._dropped: list[Path] = []
        self._guard = threading.Lock()
        self._failed = False

    # From the bucket --------------------------------------------------------------------------------------------------

    def fetch(self) -> None:
        """Makes the folder equal to the bucket.

        Raises:
            ConfigError: what is there is no run directory.
            Conflict: something was written meanwhile.
            BucketError, OSError: the bucket cannot be read, or the folder cannot be written.
        """
        for last in (False,) * (READS - 1) + (True,) if self._lease is None else (True,):
            try:
                return self._fetch_all()
            except Conflict:  # a run that goes on wrote over what was just being read
                if last:
                    raise

    def _fetch_all(self) -> None:
        # Of a run that goes on, the journal as it was before the rest was listed: all that it rests on is there.
        entries = self._bucket.list(f"{_JOURNAL}/") if self._lease is None else None
        stored = {name: one for name, one in self._bucket.list().items() if not _is_own(name)}
        if entries is not None:
            stored = {
                name: one for name, one in stored.items() if not name.startswith(f"{_JOURNAL}/") or name in entries
            }
        self._check(stored)
        for name in _cut(stored):
            cut = stored.pop(name)
            if self._lease is not None:
                self._bucket.delete(name, cut.generation)
        self._remove_others(stored)
        self._known = {name: _Same(one.generation, None) for name, one in stored.items()}
        self._fetch(one for name, one in stored.items() if not _is_array(name))

    def _check(self, stored: Collection[str]) -> None:
        url = self._bucket.url
        if stored and "config.json" not in stored:
            there = ", ".join(sorted(stored)[:3])
            raise ConfigError(f"--run_dir={url}: holds {there} and is no run directory; name a fresh prefix")
        for name in stored:
            if not is_path(name):
                raise BucketError(f"{url}/{name}: no file can have this name; remove the object")

    def bring(self, path: Path) -> None:
        """Fetches a checkpoint, as far as it is not there."""
        under = path.relative_to(self.directory).as_posix() + "/"
        with self._guard:
            missing = [name for name, same in self._known.items() if name.startswith(under) and same.file is None]
        if missing:
            stored = self._bucket.list(under)
            self._fetch(one for name, one in stored.items() if name in missing)

    def _fetch(self, wanted: Iterable[Stored]) -> None:
        each(self._fetch_one, list(wanted))

    def _fetch_one(self, stored: Stored) -> None:
        path = self.directory / stored.name
        bring(self._bucket, stored, path)
        with self._guard:
            self._known[stored.name] = _Same(stored.generation, _identity(path))

    def _remove_others(self, stored: Collection[str]) -> None:
        """Removes what a job left here that the bucket does not have, links and empty folders included."""
        for root, folders, files in os.walk(self.directory, topdown=False):
            for name in files:
                path = Path(root, name)
                relative = path.relative_to(self.directory).as_posix()
                if relative not in stored and relative not in (".lock", ".home"):
                    path.unlink()
            for name in folders:
                path = Path(root, name)
                if path.is_symlink():
                    path.unlink()
                elif not any(path.iterdir()):
                    path.rmdir()

    # Into the bucket --------------------------------------------------------------------------------------------------

    def publish(self, path: Path | None = None) -> None:
        """Sends what is new under a path; without one, all but journal and checkpoints.

        Raises:
            Conflict: another process wrote there.
            BucketError, OSError: the bucket cannot be used, or a file cannot be read.
        """
        if path is not None and path.is_dir():
            with self._or_lost():
                self._begin_anew(path)
        where = self.directory if path is None else path
        found = {name: identity for name, identity in self._files(where) if path is not None or _is_evidence(name)}
        with self._guard:
            new = {
                name: one
                for name, one in found.items()
                if (known := self._known.get(name)) is None or known.file != one
            }
        by_rank: dict[int, list[str]] = {}
        for name in new:
            by_rank.setdefault(_rank(name), []).append(name)
        with self._or_lost():
            for _, names in sorted(by_rank.items()):
                each(lambda name: self._send(name, new[name]), names)

    def commit(self, path: Path, data: bytes) -> None:
        """Creates a journal entry in the bucket, then here.

        Raises:
            FileExistsError: another process wrote it.
            RunLost: another process has taken the run over.
            BucketError: the bucket cannot be used.
        """
        assert self._lease is not None
        self.publish()
        name = path.relative_to(self.directory).as_posix()
        with self._or_lost():
            self._lease.confirm()
            try:
                generation = self._bucket.write(name, data, generation=0)
            except Conflict as error:
                raise FileExistsError(f"{self._bucket.url}/{name} exists") from error
        write_once(path, data)
        with self._guard:
            self._known[name] = _Same(generation, _identity(path))
            dropped, self._dropped = self._dropped, []
        for folder in dropped:
            self._drop(folder)

    def removed(self, path: Path) -> None:
        """Remembers what is to be removed from the bucket after the next commit."""
        with self._guard:
            self._dropped.append(path)

    def close(self) -> None:
        """Sends what came after the last commit, unless the bucket was lost already. Raises as `commit` does."""
        if not self._failed and self._lease is not None:
            self._lease.confirm()
            self.publish()

    @contextlib.contextmanager
    def _or_lost(self) -> Iterator[None]:
        try:
            yield
        except (BucketError, FileExistsError, RunLost):
            self._failed = True
            raise

    def _begin_anew(self, folder: Path) -> None:
        """Before a checkpoint that replaces another one is sent: the other one ceases to count."""
        under = folder.relative_to(self.directory).as_posix() + "/"
        with self._guard:
            before = {name: one for name, one in self._known.items() if name.startswith(under)}
        last = under + "meta.json"
        if last in before and before[last].file != _identity(folder / "meta.json"):
            for name in sorted(before, key=lambda name: name != last):
                self._bucket.delete(name, before[name].generation)
                with self._guard:
                    del self._known[name]

    def _drop(self, folder: Path) -> None:
        under = folder.relative_to(self.directory).as_posix() + "/"
        with self._guard:
            gone = {name: one.generation for name, one in self._known.items() if name.startswith(under)}
        for name in sorted(gone, key=lambda name: -_rank(name)):  # what makes it count goes first
            if not (self.directory / name).exists():
                self._bucket.delete(name, gone[name])
                with self._guard:
                    del self._known[name]

    def _send(self, name: str, identity: tuple[int, int, int]) -> None:
        with self._guard:
            known = self._known.get(name)
        generation = self._bucket.write(name, self.directory / name, generation=known.generation if known else 0)
        with self._guard:
            self._known[name] = _Same(generation, identity)

    def _files(self, where: Path) -> Iterator[tuple[str, tuple[int, int, int]]]:
        for root, folders, files in os.walk(where, followlinks=True):
            folders[:] = [name for name in folders if not name.startswith(".") and name not in _LOCAL]
            for file in files:
                path = Path(root, file)
                if not file.startswith("."):
                    with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                        yield path.relative_to(self.directory).as_posix(), _identity(path)


def _identity(path: Path) -> tuple[int, int, int]:
    """Changes with every change of the file."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ino


def _is_own(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


def _is_evidence(name: str) -> bool:
    """Whether a file is sent by itself; journal entries and checkpoints are sent when they are told of."""
    return not name.startswith((f"{_JOURNAL}/", "checkpoints/"))


def _is_array(name: str) -> bool:
    return name.startswith(tuple(f"{folder}/" for folder in _CHECKPOINTS)) and not name.endswith("/meta.json")


def _unit(name: str) -> tuple[str, str] | None:
    """The folder whose files count together that a file is in, and the file of it that is written last."""
    for folder in PurePosixPath(name).parents:
        for pattern, last in _LAST.items():
            if fnmatchcase(folder.as_posix(), pattern) and pattern.count("/") == folder.as_posix().count("/"):
                return folder.as_posix(), last
    return None


def _rank(name: str) -> int:
    """The order in which files are sent: what others rest on, first."""
    unit = _unit(name)
    late = 4 if name.startswith("unfinished/") else 0  # as long as the grace period lasts
    if unit is not None:
        return late + (name == f"{unit[0]}/{unit[1]}")
    return 2 if fnmatchcase(name, "cycle_*/search/iterations/*") else 0


def _cut(stored: Collection[str]) -> list[str]:
    """What a job that ended in between left of folders whose files count together."""
    return [name for name in stored if (unit := _unit(name)) is not None and f"{unit[0]}/{unit[1]}" not in stored]
