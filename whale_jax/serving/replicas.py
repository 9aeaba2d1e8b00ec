"""Several engines behind one driver, each with its share of the sessions: on an accelerator, a device for each.

A replica is a fixed unit, and a request's tokens do not depend on the engine that computes them, so the number of
replicas shows in no result. On a CPU it is what puts all cores to work: XLA runs the body of a loop on one thread.
Its replicas share the first device, where the programs of several threads run at the same time (`replica_devices`).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, Self

import jax
import numpy as np

from whale_jax.serving.driver import Driver, Generation, Sampling, Session
from whale_jax.serving.weights import WeightSwap

LEAN = 8
"""How many more open sessions than the emptiest replica one may have to get a session whose prompt it knows: a group
of the default size stays together."""
_PROMPTS = 1024
"""First prompts that are remembered."""


def replica_devices(replicas: int) -> list[Any]:
    """The devices of so many replicas (0: of as many as there are devices here), one each.

    On a CPU all have the first, however many it is divided into: so they compile once, and share new weights.

    Raises:
      ValueError: there are fewer devices than replicas.
    """
    devices = jax.local_devices()
    if replicas > len(devices):
        raise ValueError(f"this machine has {len(devices)} devices, and a replica needs one")
    devices = devices[: replicas or len(devices)]
    return devices[:1] * len(devices) if devices[0].platform == "cpu" else devices


class Replicas:
    """`Driver` over drivers.

    A session gets its replica with its first request: the one where the same prompt was last, so that the samples of a
    group find it computed, unless that one is `LEAN` sessions fuller than the emptiest; else the emptiest.
    """

    def __init__(self, drivers: Sequence[Driver], devices: Sequence[Any] = ()) -> None:
        """Starts nothing.

        Args:
          drivers: one per replica.
          devices: where each lives; default: elsewhere. New weights reach all of them by one jitted step, and those on
            one device share them, as they share what is compiled (`programs.compiled`).

        Raises:
          ValueError: no driver, or not a device for each.
        """
        if not drivers:
            raise ValueError("Replicas: at least one driver is needed")
        if devices and len(devices) != len(drivers):
            raise ValueError(f"Replicas: {len(drivers)} drivers and {len(devices)} devices")
        self._drivers = list(drivers)
        self._places = list(devices)
        self._swap = WeightSwap(list(dict.fromkeys(devices))) if devices else None
        self._homes: dict[Session, int] = {}
        self._prompts: OrderedDict[bytes, int] = OrderedDict()
        self._open = [0] * len(self._drivers)
        self._running: ExitStack | None = None

    def start(self) -> None:
        """Starts all: programs of different devices are compiled at the same time, those of one device once."""
        if self._running is not None:
            return
        with ExitStack() as stack:
            for driver in self._drivers:
                stack.callback(driver.stop)
            together: dict[Any, list[Driver]] = {}
            for driver, place in zip(self._drivers, self._places or range(len(self._drivers)), strict=True):
                together.setdefault(place, []).append(driver)
            with ThreadPoolExecutor(len(together)) as pool:
                for done in [pool.submit(_start, drivers) for drivers in together.values()]:
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
        copies = [params] * len(self._drivers)
        if self._swap is not None:
            on = dict(zip(dict.fromkeys(self._places), self._swap(params), strict=True))
            copies = [on[place] for place in self._places]
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


def _start(drivers: Sequence[Driver]) -> None:
    for driver in drivers:
        driver.start()
