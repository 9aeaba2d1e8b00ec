"""An engine that waits before its decode steps, so that a test knows where it is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from whale_jax.serving.engine import Engine

PATIENCE = 60.0
"""Seconds after which something will not happen any more."""


class Gate:
    """Holds the engine before its next decode step, until it is opened for good."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered, self._open = threading.Event(), threading.Event()
        decode = engine.decode

        def held(rows: Any) -> Any:
            self.entered.set()
            assert self._open.wait(PATIENCE)
            return decode(rows)

        monkeypatch.setattr(engine, "decode", held)

    def open(self) -> None:
        self._open.set()


def eventually(condition: Callable[[], bool]) -> None:
    """Waits for what another thread brings about and gives no event for."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen within {PATIENCE} seconds"
        threading.Event().wait(0.005)
