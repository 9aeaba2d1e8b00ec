"""The journal: one file per commit, created if absent, never changed, and the only index of a run (DESIGN section 9).

An entry holds what was decided and the hashes of the evidence, never a time, a rate, or anything that depends on
caches, drivers or hosts: two runs of one configuration have the same bytes here. Each entry names the SHA-256 of the
one before it.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any


class JournalError(RuntimeError):
    """The journal on disk is not one that this run could have written; the message names the file."""


def canonical(value: Any) -> bytes:
    """JSON with sorted keys and one trailing newline; the form that is hashed.

    Raises:
      ValueError: for NaN or infinity, which have no JSON form.
    """
    return (json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def write_once(path: Path, data: bytes) -> None:
    """Writes a file that must not exist yet, so that it appears whole or not at all, also after a crash.

    Raises:
      FileExistsError: `path` exists; it is left as it is.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class Journal:
    """A run's commits, replayed from disk first and appended afterwards.

    The loop asks `replay()` at every point where it would commit. While entries remain, it gets them back one by one
    and only follows them; from the first None on it does the work and calls `append`.
    """

    def __init__(self, folder: Path, *, inherited: int = 0, write: Callable[[Path, bytes], None] = write_once):
        """Reads and verifies what is there.

        Args:
          write: creates the file of an entry, which must not exist, after all that it rests on (`Home.commit`).
          inherited: entries at the beginning that are another run's, from which this one branches.

        Raises:
          JournalError: a gap in the numbers, a file that is not JSON, or a broken chain of hashes.
        """
        self._folder = folder
        self._create = write
        folder.mkdir(parents=True, exist_ok=True)
        self._hash = ""
        self.entries: list[dict[str, Any]] = []
        self._cursor = 0
        self._inherited = inherited
        self._held: tuple[Path, bytes, Future[Any]] | None = None
        for number, path in enumerate(sorted(folder.glob("[0-9]*.json"))):
            if path.name != f"{number:06d}.json":
                raise JournalError(f"{path}: expected entry {number:06d}.json here; an entry is missing")
            data = path.read_bytes()
            try:
                entry = json.loads(data)
            except ValueError as error:
                raise JournalError(f"{path}: not JSON ({error})") from error
            if not isinstance(entry, dict) or entry.get("previous") != self._hash or entry.get("entry") != number:
                raise JournalError(f"{path}: does not follow the entry before it; the journal was changed")
            self._hash = hashlib.sha256(data).hexdigest()
            self.entries.append(entry)
        if len(self.entries) < inherited:
            raise JournalError(f"{folder}: holds {len(self.entries)} of the {inherited} entries that it branches from")

    @property
    def hash(self) -> str:
        """SHA-256 of the last entry's file; it stands for the whole history."""
        return self._hash

    def replay(self, kind: str, **where: Any) -> dict[str, Any] | None:
        """The next recorded entry, or None when all have been replayed.

        Args:
          kind: what the loop would commit now.
          **where: fields (cycle, step, …) that the entry must carry.

        Raises:
          JournalError: the recorded entry is another one, so the code or the configuration is not that of the journal.
        """
        if self._cursor >= len(self.entries):
            return None
        entry = self.entries[self._cursor]
        expected = {"kind": kind, **where}
        found = {name: entry.get(name) for name in expected}
        if found != expected:
            raise JournalError(
                f"{self._folder}/{self._cursor:06d}.json: holds {found}, but this run would commit {expected}"
            )
        self._cursor += 1
        return entry

    def next_inherited(self) -> dict[str, Any] | None:
        """The next entry, if the run that this one branches from made it: it says what comes, whatever the settings."""
        return self.entries[self._cursor] if self._cursor < self._inherited else None

    @property
    def followed_inherited(self) -> bool:
        """Whether the entry replayed last is another run's."""
        return 0 < self._cursor <= self._inherited

    @property
    def replaying(self) -> bool:
        """Whether recorded entries are left to follow."""
        return self._cursor < len(self.entries)

    def append(self, kind: str, fields: Mapping[str, Any], *, after: Future[Any] | None = None) -> dict[str, Any]:
        """Commits an entry; it is on disk when this returns, unless it rests on evidence that is still being written.

        Args:
          after: the writing of the evidence. The entry follows it (see `settle`), before any later one; a job that ends
            earlier has not committed it.

        Raises:
          JournalError: entries are left to replay, or another process wrote the same entry.
          Exception: of the evidence of the entry before.
        """
        self.settle()
        if self.replaying:
            raise JournalError(f"{self._folder}: entry {self._cursor} must be replayed before another is written")
        number = len(self.entries)
        entry = {"entry": number, "kind": kind, "previous": self._hash, **fields}
        data = canonical(entry)
        path = self._folder / f"{number:06d}.json"
        if after is None:
            self._write(path, data)
        else:
            self._held = path, data, after
        entry = json.loads(data)
        self._hash = hashlib.sha256(data).hexdigest()
        self.entries.append(entry)
        self._cursor = len(self.entries)
        return entry

    def settle(self, *, wait: bool = True) -> None:
        """Writes the entry that waits for its evidence, if there is one.

        Args:
          wait: for the evidence; without it, an entry whose evidence is not complete goes on waiting.

        Raises:
          Exception: what the writing of the evidence raised; the entry is then no commit.
          JournalError: another process wrote the same entry.
        """
        if self._held is None or not (wait or self._held[2].done()):
            return
        (path, data, evidence), self._held = self._held, None
        try:
            evidence.result()
        except BaseException:
            self._hash = self.entries.pop()["previous"]
            self._cursor = len(self.entries)
            raise
        self._write(path, data)

    def _write(self, path: Path, data: bytes) -> None:
        try:
            self._create(path, data)
        except FileExistsError as error:
            raise JournalError(
                f"{path}: written by another process; two runs must not share a run directory"
            ) from error
