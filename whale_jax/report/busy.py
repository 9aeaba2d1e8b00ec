"""When the accelerator works: an engine and a training step that tell a clock."""

import threading
import time
from collections.abc import Sequence
from typing import Any, Self

from whale_jax.serving.engine import DecodeRow, Engine, ExtendResult, ExtendRow, SampledIds
from whale_jax.training.packing import Batch, Shape
from whale_jax.training.step import TrainState, TrainStep
from whale_jax.training.step_metrics import StepMetrics


class BusyClock:
    """Seconds in which at least one step of an engine or of training ran. For any number of threads.

    What the host waits for counts. A step that was only launched (an extend whose result is read later, the last
    update of a training step) counts from the moment when somebody waits for it, so the idle time that is left over
    is, if anything, too large.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = 0
        self._since = 0.0
        self._seconds = 0.0

    def __enter__(self) -> Self:
        with self._lock:
            if self._running == 0:
                self._since = time.monotonic()
            self._running += 1
        return self

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            self._running -= 1
            if self._running == 0:
                self._seconds += time.monotonic() - self._since

    @property
    def seconds(self) -> float:
        """So far, what is running included."""
        with self._lock:
            return self._seconds + (time.monotonic() - self._since if self._running else 0.0)


class ClockedEngine(Engine):
    """An engine whose steps are on a clock."""

    def __init__(self, *args: Any, clock: BusyClock, **options: Any) -> None:
        super().__init__(*args, **options)
        self._clock = clock

    def extend(self, rows: Sequence[ExtendRow]) -> ExtendResult:
        with self._clock:
            return _ClockedResult(super().extend(rows), self._clock)

    def decode(self, rows: Sequence[DecodeRow]) -> list[SampledIds]:
        with self._clock:
            return super().decode(rows)


class _ClockedResult(ExtendResult):
    def __init__(self, result: ExtendResult, clock: BusyClock) -> None:
        super().__init__(result._out, result._places)
        self._clock = clock

    def row(self, index: int) -> SampledIds:
        with self._clock:
            return super().row(index)


class ClockedTrainStep(TrainStep):
    """A training step that is on a clock."""

    def __init__(self, *args: Any, clock: BusyClock, **options: Any) -> None:
        super().__init__(*args, **options)
        self._clock = clock

    def update(self, state: TrainState, batches: Sequence[Batch]) -> tuple[TrainState, StepMetrics | None]:
        with self._clock:
            return super().update(state, batches)

    def warm_up(self, state: TrainState, shapes: Sequence[Shape]) -> None:
        with self._clock:
            super().warm_up(state, shapes)
