"""What a run needs of its other processes. Alone, it needs nothing of them.

Process 0 leads: it has the journal, the archive, the proposer and every decision. The others follow its orders
(`follow.py`). So the loop, its phases and the schedule are written once, for one process.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from whale_jax.config import RunConfig
from whale_jax.report.busy import BusyClock
from whale_jax.rollout.trace import Trace


class Hosts(Protocol):
    """The processes of a run, as one of them sees them. `process` is its number, `count` how many there are."""

    process: int
    count: int

    def policy(self, config: RunConfig) -> int:
        """Says that there is one more policy, of these settings; gives its number.

        Raises:
            HostsError: a process is gone.
        """
        ...

    def order(self, verb: str, *, traces: Sequence[Trace] = (), **fields: Any) -> None:
        """Before a step that all processes make together: returns when all of them are about to make it.

        Raises:
            HostsError: a process is gone.
        """
        ...

    def collect(self, leaf: Any, index: tuple[int, ...] = ()) -> np.ndarray:
        """A copy of `leaf[index]` on the host of process 0, to which the others bring the parts that it lacks.

        Raises:
            HostsError: a process is gone.
        """
        ...

    def totals(self, counters: Mapping[str, int]) -> dict[str, int]:
        """The sum of this process's counters and of those last heard from the others."""
        ...

    def mean_busy(self, seconds: float) -> float:
        """Busy seconds per process, as last heard."""
        ...


class MeanBusy:
    """A clock of busy seconds per process."""

    def __init__(self, clock: BusyClock, hosts: Hosts) -> None:
        self._clock, self._hosts = clock, hosts

    @property
    def seconds(self) -> float:
        """So far, what is running here included."""
        return self._hosts.mean_busy(self._clock.seconds)


class Alone:
    """One process: there is nobody to tell."""

    process = 0
    count = 1

    def policy(self, config: RunConfig) -> int:
        return 0

    def order(self, verb: str, *, traces: Sequence[Trace] = (), **fields: Any) -> None:
        pass

    def collect(self, leaf: Any, index: tuple[int, ...] = ()) -> np.ndarray:
        return np.array(jax.device_get(leaf[index] if index else leaf), copy=True)

    def totals(self, counters: Mapping[str, int]) -> dict[str, int]:
        return dict(counters)

    def mean_busy(self, seconds: float) -> float:
        return seconds
