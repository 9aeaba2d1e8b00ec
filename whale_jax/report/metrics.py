"""metrics.jsonl and TensorBoard: the place of times and rates. A resumed run appends to what is there."""

import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path

from tensorboardX import SummaryWriter


class MetricsWriter:
    """Appends scalar metrics to `<run_dir>/metrics.jsonl` and to TensorBoard."""

    def __init__(self, run_dir: Path):
        path = run_dir / "metrics.jsonl"
        _drop_half_a_line(path)
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 - open as long as the run
        self._board = SummaryWriter(str(run_dir / "tensorboard"))

    def write(self, kind: str, step: int, values: Mapping[str, float | int | str | None]) -> None:
        """One line and one TensorBoard point per finite number.

        Args:
          kind: what was measured (`weight`, `search`, `evaluation`); the prefix of the TensorBoard tags.
          step: the horizontal axis: rollouts so far.
          values: name → value; texts go to the file alone.
        """
        line = {"time": round(time.time(), 3), "kind": kind, "step": step}
        for name, value in values.items():
            number = isinstance(value, int | float)
            finite = number and math.isfinite(value)
            line[name] = value if finite or not number else str(value)
            if finite:
                self._board.add_scalar(f"{kind}/{name}", value, step)
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Flushes both."""
        self._file.close()
        self._board.close()


def _drop_half_a_line(path: Path) -> None:
    """Cuts off what a kill or a full disk left of a line, so that the next one stands by itself."""
    if path.exists():
        data = path.read_bytes()
        if data and not data.endswith(b"\n"):
            os.truncate(path, data.rfind(b"\n") + 1)
