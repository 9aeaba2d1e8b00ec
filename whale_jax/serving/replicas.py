"""Several engines behind one driver: each serves its share of the sessions on a device of its own.

A replica is a fixed unit, and a request's tokens do not depend on the engine that computes them, so the number of
replicas shows in no result. On a CPU it is what puts all cores to work: XLA runs the body of a loop on one thread.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, Self

import numpy as np

from whale_jax.serving.driver import Driver, Generation, Sampling, Session
from whale_jax.serving.weights import WeightSwap

LEAN = 8
"""How many more open sessions than the emptiest replica one may have to get a session whose prompt it knows: a group
of the default size stays together."""
_PROMPTS = 1024
"""First prompts that are remembered."""


class Replicas:
    """`Driver` over drivers.

    A session gets its replica with its first request: the one where the same prompt was last, so that the samples of a
    group find it computed, unless that one is `LEAN` sessions fuller than the emptiest; else the emptiest.
    """

    def __init__(self, drivers: Sequence[Driver], devices: Sequence[Any] = ()) -> None:
        """Starts nothing.

        Args:
          drivers: one per replica.
          devices: where each lives. If they are all different, new weights reach them by one jitted step.

        Raises:
          ValueError: no driver.
        """
        if not drivers:
            raise ValueError("Replicas: at least one driver is needed")
        self._drivers = list(drivers)
        self._swap = WeightSwap(devices, lambda: None) if len(set(devices)) == len(drivers) else None
        self._homes: dict[Session, int] = {}
        self._prompts: OrderedDict[bytes, int] = OrderedDict()
        self._open = [0] * len(self._drivers)
        self._running: ExitStack | None = None

    def start(self) -> None:
        """Starts all; their programs are compiled at the same time."""
        if self._running is not None:
            return
        with ExitStack() as stack:
            for driver in self._drivers:
                stack.callback(driver.stop)
            with ThreadPoolExecutor(len(self._drivers)) as pool:
                for done in [pool.submit(driver.start) for driver in self._drivers]:
                    done.result()
            self._running = stack.pop_all()

    def stop(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def open(self) -> Session:
        return Session()

    async def generate(
        self, session: Session, new_ids: Sequence[int], *, max_tokens: int, sampling: Sampling, key: tuple[int, int]
    ) -> Generation:
        if session not in self._homes:
            self._homes[session] = self._home(new_ids)
            self._open[self._homes[session]] += 1
        driver = self._drivers[self._homes[session]]
        return await driver.generate(session, new_ids, max_tokens=max_tokens, sampling=sampling, key=key)

    def close(self, session: Session) -> None:
        session.closed = True
        home = self._homes.pop(session, None)
        if home is not None:
            self._open[home] -= 1
            self._drivers[home].close(session)

    def _home(self, ids: Sequence[int]) -> int:
        """Where a session that starts with `ids` goes."""
        key = np.asarray(ids, np.int32).tobytes()
        emptiest = self._open.index(min(self._open))
        home = self._prompts.get(key, emptiest)
        if self._open[home] - self._open[emptiest] >= LEAN:
            home = emptiest
        self._prompts[key] = home
        self._prompts.move_to_end(key)
        if len(self._prompts) > _PROMPTS:
            self._prompts.popitem(last=False)
        return home

    def set_weights(self, params: Any, version: int) -> None:
        copies = [params] * len(self._drivers) if self._swap is None else self._swap(params)
        for driver, copy in zip(self._drivers, copies, strict=True):
            driver.set_weights(copy, version)

    def suspend(self) -> None:
        for driver in self._drivers:
            driver.suspend()

    def stats(self) -> dict[str, int]:
        total: Counter[str] = Counter()
        for driver in self._drivers:
            total.update(driver.stats())
        return dict(total)
