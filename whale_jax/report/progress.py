"""Live progress: one changing line on a terminal, plain lines elsewhere."""

import sys
import time
from typing import TextIO

from rich.console import Console
from rich.status import Status


class Progress:
    """Tells the user where the run is.

    `say` prints a line that stays. `show` is the line that changes: on a terminal it replaces the one before, elsewhere
    it is printed at most every `interval` seconds.
    """

    def __init__(self, *, stream: TextIO | None = None, interval: float = 10.0):
        self._console = Console(file=stream or sys.stdout, highlight=False, soft_wrap=True)
        self._status: Status | None = None
        self._interval = interval
        self._shown = -interval
        self._start = time.monotonic()
        self._work_done = 0
        self._work_before = 0
        self.work_total = 0

    @property
    def seconds(self) -> float:
        """Wall time of this process's part of the run."""
        return time.monotonic() - self._start

    def advance(self, rollouts: int, *, replayed: bool = False) -> None:
        """Counts finished rollouts towards `work_total`; replayed ones took no time in this process."""
        self._work_done += rollouts
        if replayed:
            self._work_before += rollouts

    @property
    def time_left(self) -> str:
        """The run's remaining time at the pace so far, evaluations and search included; empty while unknown."""
        done_here = self._work_done - self._work_before
        if done_here <= 0 or self.work_total <= 0:
            return ""
        left = max(0.0, self.work_total - self._work_done) * self.seconds / done_here
        return f"about {left / 60:.0f} min left" if left >= 90 else f"about {left:.0f} s left"

    def say(self, text: str) -> None:
        """A line that stays."""
        self._console.print(text, markup=False)

    def show(self, text: str) -> None:
        """The changing line."""
        line = " · ".join(part for part in (text, self.time_left) if part)
        if self._console.is_terminal:
            if self._status is None:
                self._status = self._console.status("")
                self._status.start()
            # Text from tasks or models never reaches this line, and brackets would be read as markup.
            self._status.update(line.replace("[", "("))
        elif time.monotonic() - self._shown >= self._interval:
            self._shown = time.monotonic()
            self._console.print(line, markup=False)

    def close(self) -> None:
        """Ends the changing line."""
        if self._status is not None:
            self._status.stop()
            self._status = None
