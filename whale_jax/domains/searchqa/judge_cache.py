"""Verdicts kept on disk, so that no answer is paid for twice and a resumed run is judged as it was."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from pathlib import Path

from whale_jax.domains.task import TaskError


class VerdictCache:
    """A SQLite file of verdicts by key. Threads and processes of one machine may share it."""

    def __init__(self, path: Path) -> None:
        """Opens the file, or makes it. Raises TaskError: it cannot be used."""
        self._path = path
        self._lock = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = sqlite3.connect(path, timeout=60, check_same_thread=False, isolation_level=None)
            self._file.execute("CREATE TABLE IF NOT EXISTS verdicts (key TEXT PRIMARY KEY, correct INTEGER NOT NULL)")
        except (sqlite3.Error, OSError) as error:
            raise TaskError(f"{path}: cannot be used as the judge's cache: {error}") from error

    def get(self, key: str) -> bool | None:
        """The verdict under `key`; None when there is none."""
        with self._lock:
            row = self._file.execute("SELECT correct FROM verdicts WHERE key = ?", (key,)).fetchone()
        return None if row is None else bool(row[0])

    def put(self, key: str, correct: bool) -> None:
        """Keeps a verdict. The first one under a key stays."""
        with self._lock:
            self._file.execute("INSERT OR IGNORE INTO verdicts VALUES (?, ?)", (key, int(correct)))

    def __len__(self) -> int:
        with self._lock:
            return self._file.execute("SELECT COUNT(*) FROM verdicts").fetchone()[0]

    def close(self) -> None:
        """Closes the file."""
        with self._lock, contextlib.suppress(sqlite3.Error):
            self._file.close()
