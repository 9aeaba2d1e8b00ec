"""Several drivers behind one: sessions are spread, and nothing of it shows."""

import asyncio
from typing import Any

import jax
import pytest

from tests.whale_jax.serving.conversations import conversation, converse
from whale_jax.qwen3_5.config import Qwen35Config
from whale_jax.serving.compilations import CompilationMeter
from whale_jax.serving.driver import DriverStopped, Generation, Sampling, Session, make_driver
from whale_jax.serving.engine import Engine
from whale_jax.serving.replicas import LEAN, Replicas, replica_devices


class Recorder:
    """A driver that remembers what it was asked."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails, self.running = fails, False
        self.sessions: list[Session] = []
        self.closed: list[Session] = []
        self.prompts: list[int] = []
        self.weights: list[int] = []

    suspended = False

    def start(self) -> None:
        if self.fails:
            raise DriverStopped("no device")
        self.running = True

    def stop(self) -> None:
        self.running = False

    def open(self) -> Session:
        return Session()

    async def generate(self, session: Session, new_ids, **_: Any) -> Generation:
        self.sessions.append(session)
        self.prompts.extend(new_ids)
        return Generation(tuple(new_ids), (0.0,), (0.0,), "stop", 1)

    def close(self, session: Session) -> None:
        self.closed.append(session)

    def suspend(self) -> None:
        self.suspended = True

    def set_weights(self, params: Any, version: int) -> None:
        self.weights.append(version)

    def stats(self) -> dict[str, int]:
        return {"sampled_tokens": len(self.sessions)}


def ask(replicas: Replicas, session: Session, ids: list[int]) -> Generation:
    return asyncio.run(replicas.generate(session, ids, max_tokens=1, sampling=Sampling(), key=(0, 0)))


def opened(replicas: Replicas, prompt: int) -> Session:
    session = replicas.open()
    ask(replicas, session, [prompt])
    return session


def test_a_session_goes_to_the_emptiest_replica_and_stays_there():
    drivers = [Recorder(), Recorder()]
    replicas = Replicas(drivers)
    first, second, third = (opened(replicas, prompt) for prompt in range(3))
    assert [driver.sessions for driver in drivers] == [[first, third], [second]]
    replicas.close(first)
    replicas.close(first)
    replicas.close(third)
    assert drivers[0].closed == [first, third]
    assert first.closed
    assert ask(replicas, second, [5]).ids == (5,)
    assert drivers[1].sessions == [second, second]
    assert opened(replicas, 4) in drivers[0].sessions


def test_a_session_without_a_request_takes_no_place():
    drivers = [Recorder(), Recorder()]
    replicas = Replicas(drivers)
    idle = [replicas.open() for _ in range(3)]
    replicas.close(idle[0])
    assert idle[0].closed
    assert opened(replicas, 1) in drivers[0].sessions


def test_the_samples_of_a_prompt_stay_together_until_their_replica_is_much_fuller():
    drivers = [Recorder(), Recorder()]
    replicas = Replicas(drivers)
    for prompt in (1, 2):
        for _ in range(LEAN):
            opened(replicas, prompt)
    assert [len(driver.sessions) for driver in drivers] == [LEAN, LEAN]
    assert [set(driver.prompts) for driver in drivers] == [{1}, {2}]
    for _ in range(2 * LEAN):
        opened(replicas, 1)
    assert [len(driver.sessions) for driver in drivers] == [2 * LEAN, 2 * LEAN]


def test_prompts_of_long_ago_are_forgotten():
    replicas = Replicas([Recorder(), Recorder()])
    for prompt in range(3000):
        replicas.close(opened(replicas, prompt))
    assert len(replicas._prompts) <= 1024


def test_weights_reach_all_and_counters_are_summed():
    drivers = [Recorder(), Recorder(), Recorder()]
    replicas = Replicas(drivers)
    for prompt in range(4):
        opened(replicas, prompt)
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
    with pytest.raises(ValueError, match="2 drivers and 1 devices"):
        Replicas([Recorder(), Recorder()], jax.local_devices()[:1])


def test_replicas_of_a_cpu_share_a_device_and_no_more_than_there_are():
    assert len(jax.local_devices()) == 2
    assert replica_devices(0) == replica_devices(2) == jax.local_devices()[:1] * 2
    assert replica_devices(1) == jax.local_devices()[:1]
    with pytest.raises(ValueError, match="has 2 devices, and a replica needs one"):
        replica_devices(3)


@pytest.mark.slow
def test_replicas_on_one_device_compile_once_and_share_the_weights(config: Qwen35Config, params: Any):
    """No other engine has these settings, so nothing of them is compiled yet."""

    def engines(devices: list[Any]) -> list[Engine]:
        sizes = {"slots": 3, "max_len": 64, "stop_ids": (5,), "extend_rows": 2, "extend_chunk": 8, "decode_steps": 5}
        return [Engine(config, params, **sizes, device=device) for device in devices]

    async def crowd(driver: Any) -> list[list[Generation]]:
        return await asyncio.gather(*(converse(driver, conversation(seed)) for seed in range(7)))

    (single,) = engines(jax.local_devices()[:1])
    with make_driver("scheduler", single) as driver:
        alone = [asyncio.run(converse(driver, conversation(seed))) for seed in range(7)]
    two = engines(replica_devices(2))
    meter = CompilationMeter()
    with meter.watch():
        for engine in two:
            engine.warm_up()
    assert meter.count == 0
    with make_driver("scheduler", *two) as driver:
        assert asyncio.run(crowd(driver)) == alone
        driver.set_weights(jax.tree.map(lambda leaf: leaf * 1.5, params), 1)
        leaves, others = (jax.tree.leaves(engine._params) for engine in two)
        assert all(leaf is other for leaf, other in zip(leaves, others, strict=True))
        driver.set_weights(params, 0)
        assert asyncio.run(crowd(driver)) == alone
        assert all(engine.counters["sampled_tokens"] for engine in two)
        assert driver.stats()["compilations_after_warm_up"] == 0

    elsewhere = engines(jax.local_devices())
    with make_driver("scheduler", *elsewhere) as driver:
        driver.set_weights(params, 0)
        assert asyncio.run(crowd(driver)) == alone
        assert [jax.tree.leaves(engine._params)[0].devices() for engine in elsewhere] == [
            {device} for device in jax.local_devices()
        ]
