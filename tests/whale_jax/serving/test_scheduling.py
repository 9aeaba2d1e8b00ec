"""How requests take turns, and that nothing is left to compile when they do."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.whale_jax.serving.conversations import conversation, converse
from tests.whale_jax.serving.gate import PATIENCE, Gate, eventually
from whale_jax.serving import jetstream_driver, scheduler
from whale_jax.serving.compilations import CompilationMeter
from whale_jax.serving.driver import Driver, DriverStopped, Generation, Sampling, ServingError, make_driver
from whale_jax.serving.engine import Engine

LONG = [[10 + number, *range(20, 75)] for number in range(4)]
"""Seven extend chunks each."""


async def say(driver: Driver, ids: list[int], max_tokens: int, key: tuple[int, int] = (3, 4)) -> Generation:
    return await driver.generate(driver.open(), ids, max_tokens=max_tokens, sampling=Sampling(), key=key)


def long_reply(driver: Driver) -> tuple[tuple[int, int], Generation]:
    """A key under which the prompt [30] has a reply of 40 ids, and that reply."""
    for seed in range(200):
        generation = asyncio.run(say(driver, [30], 40, (seed, 0)))
        if len(generation.ids) == 40:
            return (seed, 0), generation
    pytest.fail("every reply stopped early")


@pytest.fixture
def scheduled(engine: Engine, params: Any) -> Any:
    engine.set_weights(params, 0)
    with make_driver("scheduler", engine) as started:
        yield started


def test_long_prompts_take_turns_with_who_is_sampling(
    scheduled: Driver, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, expected = long_reply(scheduled)
    monkeypatch.setattr(scheduler, "FULL_EXTENDS", 3)
    gate, steps = Gate(engine, monkeypatch), []
    for name in ("extend", "decode"):
        step = getattr(engine, name)
        monkeypatch.setattr(engine, name, lambda rows, step=step, name=name: (steps.append(name), step(rows))[1])

    async def crowd() -> list[Generation]:
        first = asyncio.create_task(say(scheduled, [30], 40, key))
        await asyncio.to_thread(gate.entered.wait, PATIENCE)
        others = [asyncio.create_task(say(scheduled, prompt, 4)) for prompt in LONG]
        await asyncio.sleep(0)
        steps.clear()
        gate.open()
        return await asyncio.gather(first, *others)

    first, *others = asyncio.run(crowd())
    assert first == expected
    runs = [len(run) for run in "".join("e" if step == "extend" else "d" for step in steps).split("d")]
    assert sum(runs) == 14, "28 chunks in steps of two rows"
    assert max(runs) == 3
    assert others == [asyncio.run(say(scheduled, prompt, 4)) for prompt in LONG]


def test_a_cancelled_request_s_slot_is_free_at_the_next_step(
    scheduled: Driver, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, _ = long_reply(scheduled)
    gate, rows_seen = Gate(engine, monkeypatch), []
    extend = engine.extend

    def seen(rows: Any) -> Any:
        rows_seen.append(list(rows))
        return extend(rows)

    async def crowd() -> None:
        running = [asyncio.create_task(say(scheduled, [30], 40, key)) for _ in range(engine.slots)]
        await asyncio.to_thread(gate.entered.wait, PATIENCE)
        late = asyncio.create_task(say(scheduled, [31, 32], 2))
        await asyncio.sleep(0)
        assert scheduled.stats()["requests_waiting"] >= 1
        monkeypatch.setattr(engine, "extend", seen)
        running[2].cancel()
        await asyncio.gather(running[2], return_exceptions=True)
        gate.open()
        await late
        # Without the cancellation, one of the others would have had to end first.
        assert [tuple(row.ids) for row in rows_seen[0]] == [(31, 32)]
        assert not any(task.done() for index, task in enumerate(running) if index != 2)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    asyncio.run(crowd())
    eventually(lambda: scheduled.stats()["requests_in_flight"] == 0)


def test_a_request_that_cannot_be_started_fails_alone(
    driver: Driver, engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = asyncio.run(converse(driver, conversation(1)))
    configure = engine.configure

    def refused(slot: int, sampling: Sampling, key: tuple[int, int], **rest: int) -> None:
        if key == (99, 99):
            raise MemoryError("no room for it")
        configure(slot, sampling, key, **rest)

    monkeypatch.setattr(engine, "configure", refused)

    async def crowd() -> list[Any]:
        doomed = [say(driver, [10 + number], 5, (99, 99)) for number in range(7)]
        return await asyncio.gather(*doomed, converse(driver, conversation(1)), return_exceptions=True)

    *failed, survivor = asyncio.run(crowd())
    assert all(isinstance(error, ServingError) and "no room for it" in str(error) for error in failed)
    assert survivor == expected
    assert "could not be started" in caplog.text
    # Every slot serves again.
    assert asyncio.run(_many(driver, engine.slots)) == [expected] * engine.slots


async def _many(driver: Driver, count: int) -> list[Any]:
    return await asyncio.gather(*(converse(driver, conversation(1)) for _ in range(count)))


def test_nothing_is_compiled_after_warm_up(driver: Driver, engine: Engine, params: Any) -> None:
    other = jax.tree.map(lambda leaf: leaf * 1.5, params)

    async def everything() -> None:
        kept = [driver.open() for _ in range(2 * engine.slots)]
        for _ in range(2):  # more sessions than slots: states move to the host and back
            turns = (
                driver.generate(session, [10] * 20, max_tokens=3, sampling=Sampling(temperature=0.0), key=(0, 0))
                for session in kept
            )
            await asyncio.gather(*turns)

    asyncio.run(everything())
    driver.set_weights(other, 1)
    asyncio.run(everything())
    driver.set_weights(params, 0)
    assert driver.stats()["moves_to_device"] > 0
    assert driver.stats()["compilations_after_warm_up"] == 0


def test_the_meter_counts_its_own_threads_alone() -> None:
    meter = CompilationMeter()

    def compile_something(constant: int) -> None:
        jax.jit(lambda x: x * constant + 3)(jnp.ones(7)).block_until_ready()

    with meter.watch():
        compile_something(17)
        counted = meter.count
        other = threading.Thread(target=compile_something, args=(18,))
        other.start()
        other.join()
    compile_something(19)
    assert counted >= 1
    assert meter.count == counted


def test_threads_inherit_no_context_of_who_starts_them(
    driver: Driver, engine: Engine, params: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    for name in ("warm_up", "set_weights", "extend", "decode"):
        method = getattr(engine, name)

        def recorded(*args: Any, method: Any = method, name: str = name) -> Any:
            seen.append((name, jax.config.jax_default_matmul_precision))
            return method(*args)

        monkeypatch.setattr(engine, name, recorded)
    expected = asyncio.run(say(driver, [10, 11], 8))
    driver.stop()
    with jax.default_matmul_precision("float32"):
        driver.start()
        driver.set_weights(params, 0)
        assert asyncio.run(say(driver, [10, 11], 8)) == expected
    assert {name for name, _ in seen} == {"warm_up", "set_weights", "extend", "decode"}
    assert {precision for _, precision in seen} == {None}
    assert driver.stats()["compilations_after_warm_up"] == 0


@pytest.mark.parametrize("name", ["scheduler", "jetstream"])
def test_stopping_has_a_bound_and_releases_everybody_first(
    engine: Engine, params: Any, monkeypatch: pytest.MonkeyPatch, name: Any
) -> None:
    """An engine step that does not end holds up neither the callers nor who stops the driver."""
    engine.set_weights(params, 0)
    for module in (scheduler, jetstream_driver):
        monkeypatch.setattr(module, "STOP_SECONDS", 0.05)
    before = threading.active_count()
    driver = make_driver(name, engine)
    driver.start()
    gate = Gate(engine, monkeypatch)

    async def stuck() -> None:
        task = asyncio.create_task(say(driver, [10], 9))
        await asyncio.to_thread(gate.entered.wait, PATIENCE)
        with pytest.raises(ServingError, match="stuck"):
            await asyncio.to_thread(driver.stop)
        with pytest.raises(DriverStopped):
            await task

    asyncio.run(stuck())
    gate.open()
    eventually(lambda: threading.active_count() <= before)  # all of them: the engine is the next test's
    with pytest.raises(DriverStopped):
        asyncio.run(say(driver, [10], 2))


def test_a_driver_that_died_can_be_started_again(
    driver: Driver, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = asyncio.run(say(driver, [10], 9))
    with monkeypatch.context() as patch:
        patch.setattr(engine, "decode", lambda rows: 1 / 0)
        with pytest.raises(DriverStopped, match="division"):
            asyncio.run(say(driver, [10], 9))
        driver.stop()
    driver.start()
    assert asyncio.run(say(driver, [10], 9)) == expected
