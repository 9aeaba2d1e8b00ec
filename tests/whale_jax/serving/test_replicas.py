"""Several drivers behind one: sessions are spread, and nothing of it shows."""

import asyncio
from typing import Any

import pytest

from whale_jax.serving.driver import DriverStopped, Generation, Sampling, Session
from whale_jax.serving.replicas import Replicas


class Recorder:
    """A driver that remembers what it was asked."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails, self.running = fails, False
        self.sessions: list[Session] = []
        self.closed: list[Session] = []
        self.weights: list[int] = []

    suspended = False

    def start(self) -> None:
        if self.fails:
            raise DriverStopped("no device")
        self.running = True

    def stop(self) -> None:
        self.running = False

    def open(self) -> Session:
        self.sessions.append(Session())
        return self.sessions[-1]

    async def generate(self, session: Session, new_ids, **_: Any) -> Generation:
        assert session in self.sessions
        return Generation(tuple(new_ids), (0.0,), (0.0,), "stop", 1)

    def close(self, session: Session) -> None:
        self.closed.append(session)

    def suspend(self) -> None:
        self.suspended = True

    def set_weights(self, params: Any, version: int) -> None:
        self.weights.append(version)

    def stats(self) -> dict[str, int]:
        return {"sampled_tokens": len(self.sessions)}


def test_a_session_goes_to_the_emptiest_replica_and_stays_there():
    drivers = [Recorder(), Recorder()]
    replicas = Replicas(drivers)
    first, second, third = (replicas.open() for _ in range(3))
    assert [len(driver.sessions) for driver in drivers] == [2, 1]
    replicas.close(first)
    replicas.close(first)
    replicas.close(third)
    assert drivers[0].closed == [first, third]
    assert replicas.open() in drivers[0].sessions
    generation = asyncio.run(replicas.generate(second, [5], max_tokens=1, sampling=Sampling(), key=(0, 0)))
    assert generation.ids == (5,)


def test_weights_reach_all_and_counters_are_summed():
    drivers = [Recorder(), Recorder(), Recorder()]
    replicas = Replicas(drivers)
    for _ in range(4):
        replicas.open()
    replicas.set_weights({}, 7)
    replicas.suspend()
    assert all(driver.suspended for driver in drivers)
    assert [driver.weights for driver in drivers] == [[7], [7], [7]]
    assert replicas.stats() == {"sampled_tokens": 4}


def test_all_are_started_and_stopped():
    drivers = [Recorder(), Recorder()]
    with Replicas(drivers):
        assert all(driver.running for driver in drivers)
    assert not any(driver.running for driver in drivers)


def test_one_that_does_not_start_stops_the_others():
    drivers = [Recorder(), Recorder(fails=True)]
    with pytest.raises(DriverStopped, match="no device"):
        Replicas(drivers).start()
    assert not drivers[0].running


def test_no_driver_is_an_error():
    with pytest.raises(ValueError, match="at least one"):
        Replicas([])
