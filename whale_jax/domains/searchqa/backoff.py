"""How long to wait between tries of something that may answer the next time."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Backoff:
    """Waits that double, with a random part so that clients which failed together do not come back together.

    Attributes:
        attempts: tries in all, the first one included.
        first_seconds: the wait after the first failure, without its random part.
        longest_seconds: what no wait exceeds, a server's own wish included.
        jitter: the share of a wait that is random, in [0, 1].
    """

    attempts: int = 3
    first_seconds: float = 0.5
    longest_seconds: float = 20.0
    jitter: float = 0.5

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"Backoff.attempts must be >= 1, got {self.attempts}")
        if not 0 < self.first_seconds <= self.longest_seconds < math.inf:
            raise ValueError(f"Backoff needs 0 < first_seconds <= longest_seconds, got {self}")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"Backoff.jitter must be in [0, 1], got {self.jitter}")

    def seconds(self, failures: int, chance: random.Random, *, asked: float | None = None) -> float:
        """The wait after the `failures`-th failure in a row: from 1 - jitter of the full one to all of it, or, when the
        server asked for more, from that to 1 + jitter of it; never above `longest_seconds`.

        Args:
            failures: 1 after the first failure.
            chance: where the random part comes from; it decides about time alone, never about results.
            asked: what the server asked for (`Retry-After`); waited for in full and a random part more.
        """
        full = min(self.first_seconds * 2.0 ** min(failures - 1, 60), self.longest_seconds)
        part = self.jitter * chance.random()
        return min(max(full * (1 - part), (asked or 0.0) * (1 + part)), self.longest_seconds)


def retry_after(header: str | None) -> float | None:
    """The seconds that a `Retry-After` header names; None without one, or when it names a date."""
    text = (header or "").strip()
    return float(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
