"""SIGTERM, which machines that are taken away send first: the job ends by itself, in time, and says so."""

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

EXIT_STATUS = 5
"""Of a job that SIGTERM ended: nothing is wrong, and the same command goes on."""


class Preempted(BaseException):
    """SIGTERM came while no episode was running. Not an error of anything, so no handler of errors sees it."""


class Preemption:
    """What SIGTERM does while `watch` lasts."""

    def __init__(self, grace_seconds: float) -> None:
        self._grace_seconds = grace_seconds
        self._task: asyncio.Task[Any] | None = None
        self._tell: Callable[[], None] | None = None
        self._timer: threading.Timer | None = None

    @property
    def came(self) -> bool:
        """Whether SIGTERM was received."""
        return self._timer is not None

    @contextlib.contextmanager
    def watch(self) -> Iterator["Preemption"]:
        """SIGTERM raises `Preempted`, or cancels the task of `cancels`; a job that has not ended within the grace
        period is ended where it stands. In a thread other than the main one, where Python allows no handler, SIGTERM
        stays what it was."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        before = signal.signal(signal.SIGTERM, self._on_signal)
        try:
            yield self
        finally:
            signal.signal(signal.SIGTERM, before)
            if self._timer is not None:
                self._timer.cancel()

    @contextlib.contextmanager
    def cancels(self, task: asyncio.Task[Any]) -> Iterator[None]:
        """While this lasts, SIGTERM cancels a task, which then saves what it can."""
        self._task = task
        try:
            yield
        finally:
            self._task = None

    @contextlib.contextmanager
    def tells(self, tell: Callable[[], None]) -> Iterator[None]:
        """While this lasts, SIGTERM calls `tell`, and whoever is told ends the job."""
        self._tell = tell
        try:
            yield
        finally:
            self._tell = None

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._timer is not None:
            return
        self._timer = threading.Timer(self._grace_seconds, self._give_up)
        self._timer.daemon = True
        self._timer.start()
        if self._tell is not None:
            self._tell()
            return
        if self._task is None:
            raise Preempted
        self._task.get_loop().call_soon_threadsafe(self._task.cancel)

    def _give_up(self) -> None:
        print(
            f"terminated: {self._grace_seconds:g} seconds of grace (--grace_seconds) were not enough to save what was "
            "done since the last commit; the same command goes on from there",
            file=sys.stderr,
            flush=True,
        )
        os._exit(EXIT_STATUS)
