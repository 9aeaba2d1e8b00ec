"""The processes of a study: one command after the other, ended in time, each with its output in a file."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Protocol

TERMINATED = 5
"""Exit status of a main job that SIGTERM ended; the same command goes on (docs/operations.md)."""


class TimeUsed(Exception):
    """`--max_hours` are over: what was begun goes on with the same command."""


class Terminated(BaseException):
    """SIGTERM came; the job that was running has ended."""


class Jobs(Protocol):
    """Runs the modules of this package as commands."""

    def run(self, module: str, argv: Sequence[str], log: Path) -> int:
        """Waits for `python -m module argv…`, its output at the end of `log`; returns its exit status.

        Raises:
            TimeUsed: there was no time left to begin, or it was ended for that.
        """
        ...


class Processes:
    """Jobs as child processes."""

    def __init__(self, deadline: float | None = None) -> None:
        """Args:
        deadline: of `time.monotonic`, when a running job is sent SIGTERM; None: never.
        """
        self._deadline = deadline

    def run(self, module: str, argv: Sequence[str], log: Path) -> int:
        """See `Jobs.run`."""
        left = self._left()
        if left is not None and left <= 0:
            raise TimeUsed
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a") as output:
            print(f"$ python -m {module} {' '.join(argv)}", file=output, flush=True)
            process = subprocess.Popen([sys.executable, "-m", module, *argv], stdout=output, stderr=output)
            try:
                return process.wait(left)
            except subprocess.TimeoutExpired:
                process.terminate()
                if process.wait() == 0:
                    return 0
                raise TimeUsed from None
            except BaseException:
                process.terminate()
                process.wait()
                raise

    def _left(self) -> float | None:
        return None if self._deadline is None else self._deadline - time.monotonic()


@contextlib.contextmanager
def sigterm_raises() -> Iterator[None]:
    """SIGTERM raises `Terminated` in the main thread while this lasts."""

    def on_signal(number: int, frame: FrameType | None) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def last_lines(log: Path, count: int = 5) -> list[str]:
    """The end of a log, as far as it is text."""
    if not log.is_file():
        return []
    return log.read_text("utf-8", "replace").splitlines()[-count:]
