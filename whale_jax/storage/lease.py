"""Who may write a run directory in a bucket: one process, for as long as it gives signs of life.

The lock is an object. Its owner writes it again and again, each time on the condition that it is still the one that it
wrote last; whoever finds it waits for a change, and takes it over when none comes. No two clocks are compared. An owner
that could not write it for so long that another one took it over learns of it before its next commit (`confirm`).
"""

import contextlib
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from whale_jax.config import ConfigError
from whale_jax.storage.bucket import Bucket, BucketError, Conflict

LEASE_SECONDS = 60.0
"""Without a sign of life after which an owner is taken for dead."""
LOCK = ".lock"


class RunLost(RuntimeError):
    """Another process has taken the run directory over; this one must not go on."""


class Lease:
    """The lock of one run directory. One thread takes, confirms and releases it."""

    def __init__(
        self,
        bucket: Bucket,
        beat: Bucket,
        home: str,
        *,
        seconds: float = LEASE_SECONDS,
        say: Callable[[str], None] = print,
    ) -> None:
        """Args:
        bucket: where it is.
        beat: the same, for the signs of life; its requests end within a part of `seconds`.
        home: names the place that this process alone works in, so an owner with the same one is dead.
        say: is told why it takes long.
        """
        self._bucket, self._beat, self._seconds, self._say = bucket, beat, seconds, say
        self._content = json.dumps(
            {"owner": uuid.uuid4().hex, "home": home, "host": socket.gethostname(), "pid": os.getpid()}
        ).encode()
        self._home = home
        self._generation = 0
        self._lost: str | None = None
        self._guard, self._over = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._live, name="lease", daemon=True)

    def take(self) -> None:
        """Waits until the lock is this process's, or its owner shows that it lives.

        Raises:
            ConfigError: another process works on the run.
            BucketError: the bucket cannot be used.
        """
        while self._generation == 0:
            found = self._bucket.read(LOCK)
            if found is not None:
                self._wait_for_owner(*found)
            with contextlib.suppress(Conflict):
                self._generation = self._bucket.write(LOCK, self._content, generation=found[1] if found else 0)
        self._thread.start()

    def confirm(self) -> None:
        """Renews the lock.

        Raises:
            RunLost: it is another process's.
            BucketError: the bucket cannot be used.
        """
        with self._guard:
            if self._lost is None:
                self._renew(self._bucket)
            if self._lost is not None:
                raise RunLost(self._lost)

    def release(self) -> None:
        """Gives the lock up, if it is this process's; whoever comes next waits for it where that cannot be said."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._generation and self._lost is None:
            with contextlib.suppress(BucketError):
                self._beat.delete(LOCK, self._generation)

    def _wait_for_owner(self, content: bytes, generation: int) -> None:
        owner = _owner(content)
        if owner.get("home") == self._home:
            return
        name = f"process {owner.get('pid', '?')} on {owner.get('host', 'another machine')}"
        self._say(f"{self._bucket.url} is held by {name}; waiting up to {self._seconds:g} s for a sign of life from it")
        deadline = time.monotonic() + self._seconds
        while time.monotonic() < deadline:
            time.sleep(self._seconds / 12)
            found = self._bucket.read(LOCK)
            if found is None:
                return
            if found[1] != generation:
                raise ConfigError(f"--run_dir={self._bucket.url}: another process is working on this run: {name}")

    def _live(self) -> None:
        while not self._over.wait(self._seconds / 6):
            with self._guard, contextlib.suppress(BucketError):  # a commit will tell
                if self._lost is None:
                    self._renew(self._beat)

    def _renew(self, bucket: Bucket) -> None:
        try:
            self._generation = bucket.write(LOCK, self._content, generation=self._generation)
        except Conflict:
            found = bucket.read(LOCK)
            owner = _owner(found[0]) if found else {}
            self._lost = (
                f"{bucket.url}: process {owner.get('pid', '?')} on {owner.get('host', 'another machine')} has taken "
                f"this run over, after {self._seconds:g} s without a sign of life from here; this job ends"
            )


def home_of(directory: Path) -> str:
    """A name for a folder, while this machine runs, that no other folder anywhere has."""
    path = directory / ".home"
    if not path.exists():
        path.write_text(uuid.uuid4().hex)
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{path.read_text()} {boot.read_text().strip() if boot.exists() else uuid.uuid4().hex}"


def _owner(content: bytes) -> dict[str, object]:
    with contextlib.suppress(ValueError):
        found = json.loads(content)
        if isinstance(found, dict):
            return found
    return {}
