"""What a benchmark is, and how its runs are timed."""

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Result:
    """What a benchmark measured.

    Attributes:
        settings: what was measured, by name.
        rows: one measurement each, all with the same keys; a unit ends the key (`_ms`, `_s`).
        notes: what a reader must know, for instance what was left out and why.
        figures: what it all comes down to, by name; keys of their own in the JSON object.
    """

    settings: dict[str, Any]
    rows: list[dict[str, str | float | None]]
    notes: tuple[str, ...] = ()
    figures: Mapping[str, float | None] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Figures, settings, rows and notes."""
        return {**self.figures, "settings": self.settings, "rows": self.rows, "notes": list(self.notes)}


@dataclass(frozen=True)
class Bench:
    """One benchmark of the command.

    Attributes:
        help: one line.
        add_arguments: adds its own options to a parser that has `--json` and `--repeats`.
        run: measures; raises ValueError for options that do not fit together.
        all_cores: whether each core of a CPU is to be a device, as in the main job.
        one_core: whether the process is held to one core of the CPU.
    """

    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], Result]
    all_cores: bool = False
    one_core: bool = False


def seconds(function: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Runs `function`, which must wait for its own result, once and then `repeats` times.

    Returns:
        The first run's time, which includes compiling, and the median of the others.
    """
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return times[0], statistics.median(times[1:])
