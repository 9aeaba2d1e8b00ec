"""How often XLA compiled something while a driver served: nothing should be left to compile after warm-up."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import jax

_COMPILED = "/jax/core/compile/backend_compile_duration"
"""JAX records this event for every program that it compiles or takes from its persistent cache."""


class CompilationMeter:
    """Counts compilations of the threads that are under its watch, and of no other: training compiles too.

    JAX tells of a compilation on the thread that asked for it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0

    @property
    def count(self) -> int:
        """Programs compiled so far."""
        return self._count

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Counts what this thread compiles inside the context."""
        outer, _here.meter = getattr(_here, "meter", None), self
        try:
            yield
        finally:
            _here.meter = outer

    def _add(self) -> None:
        with self._lock:
            self._count += 1


_here = threading.local()


def _hear(event: str, duration_secs: float, **kwargs: str | int) -> None:
    meter: CompilationMeter | None = getattr(_here, "meter", None)
    if event == _COMPILED and meter is not None:
        meter._add()


jax.monitoring.register_event_duration_secs_listener(_hear)
