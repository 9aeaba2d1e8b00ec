"""What both drivers promise about sessions, budgets, errors, cancellation and weights."""

from __future__ import annotations

import asyncio
from typing import Any

import jax
import pytest

from tests.whale_jax.serving.conversations import MAX_LEN, STOP_ID, VOCAB, conversation, converse
from whale_jax.serving.compilations import CompilationMeter
from whale_jax.serving.driver import (
    ContextOverflow,
    Driver,
    DriverStopped,
    Generation,
    Sampling,
    ServingError,
    Session,
    make_driver,
)
from whale_jax.serving.engine import Engine

GREEDY = Sampling(temperature=0.0)


async def say(driver: Driver, session: Session, ids: list[int], max_tokens: int = 4, **changes: Any) -> Generation:
    settings = {"sampling": Sampling(), "key": (3, 4), **changes}
    return await driver.generate(session, ids, max_tokens=max_tokens, **settings)


def test_ids_are_the_whole_history_and_a_stop_id_stays_in_them(driver: Driver) -> None:
    async def until_stopped() -> None:
        for seed in range(100):
            session = driver.open()
            generation = await say(driver, session, [10, 11], max_tokens=20, key=(seed, 0))
            assert session.ids == [10, 11, *generation.ids]
            assert STOP_ID not in generation.ids[:-1]
            assert len(generation.ids) == len(generation.logprobs) == len(generation.model_logprobs)
            if generation.finish == "stop":
                assert generation.ids[-1] == STOP_ID
                return
            assert len(generation.ids) == 20
        pytest.fail("no reply stopped by itself")

    asyncio.run(until_stopped())


def test_a_later_turn_computes_its_new_tokens_only(driver: Driver) -> None:
    async def two_turns() -> None:
        session = driver.open()
        first = await say(driver, session, list(range(10, 30)), max_tokens=5)
        before = driver.stats()["computed_tokens"]
        second = await say(driver, session, [40, 41, 42], max_tokens=5)
        computed = driver.stats()["computed_tokens"] - before
        # The id sampled last, the new ones, and every id sampled after them except the last.
        assert computed == 1 + 3 + len(second.ids) - 1
        assert len(first.ids) > 0

    asyncio.run(two_turns())


def test_a_turn_may_add_nothing(driver: Driver) -> None:
    async def continued() -> None:
        session = driver.open()
        first = await say(driver, session, [10, 11, 12], max_tokens=2)
        second = await say(driver, session, [], max_tokens=2)
        assert session.ids == [10, 11, 12, *first.ids, *second.ids]

    asyncio.run(continued())


def test_the_context_bounds_a_request_by_its_true_length(driver: Driver) -> None:
    async def at_the_limit() -> None:
        session = driver.open()
        with pytest.raises(ContextOverflow, match=f"max_len is {MAX_LEN}"):
            await say(driver, session, [10] * MAX_LEN)
        assert session.ids == []
        generation = await say(driver, session, [10] * (MAX_LEN - 1), max_tokens=50)
        assert len(generation.ids) == 1
        with pytest.raises(ContextOverflow):
            await say(driver, session, [])

    asyncio.run(at_the_limit())


@pytest.mark.parametrize(
    ("ids", "max_tokens", "sampling", "message"),
    [
        ([], 4, Sampling(), "at least one id"),
        ([VOCAB], 4, Sampling(), "outside the vocabulary"),
        ([-1], 4, Sampling(), "outside the vocabulary"),
        ([10], 0, Sampling(), "max_tokens"),
        ([10], 4, Sampling(top_k=21), "max_top_k"),
    ],
)
def test_bad_requests_are_refused_and_change_nothing(
    driver: Driver, ids: list[int], max_tokens: int, sampling: Sampling, message: str
) -> None:
    session = driver.open()
    with pytest.raises(ValueError, match=message):
        asyncio.run(say(driver, session, ids, max_tokens, sampling=sampling))
    assert asyncio.run(say(driver, session, [10])).ids


def test_one_request_at_a_time_per_session_and_none_after_close(driver: Driver) -> None:
    async def misuse() -> None:
        session = driver.open()
        running = asyncio.create_task(say(driver, session, [10], max_tokens=30))
        await asyncio.sleep(0)
        with pytest.raises(ServingError, match="in flight"):
            await say(driver, session, [11])
        await running
        driver.close(session)
        driver.close(session)
        with pytest.raises(ServingError, match="closed"):
            await say(driver, session, [12])

    asyncio.run(misuse())


def test_a_request_whose_numbers_are_not_finite_fails_alone(driver: Driver, params: Any) -> None:
    expected = asyncio.run(converse(driver, conversation(1)))
    used = {token for turn in conversation(1) for token in turn.ids} | {id for turn in expected for id in turn.ids}
    poison = next(token for token in range(1, VOCAB) if token not in used)  # 0 also fills rows up
    driver.set_weights({**params, "embed": params["embed"].at[poison].set(float("nan"))}, 0)

    async def beside() -> list[Any]:
        poisoned = [say(driver, driver.open(), [poison]) for _ in range(7)]
        return await asyncio.gather(*poisoned, converse(driver, conversation(1)), return_exceptions=True)

    *failed, survivor = asyncio.run(beside())
    assert all(isinstance(error, ServingError) and "not finite" in str(error) for error in failed)
    assert survivor == expected
    # The slots that held the failed ones hold nothing that could reach later sequences.
    for _ in range(6):
        assert asyncio.run(converse(driver, conversation(1))) == expected


def test_cancelled_and_closed_requests_free_their_slots(driver: Driver) -> None:
    async def give_up() -> None:
        sessions = [driver.open() for _ in range(12)]
        tasks = [asyncio.create_task(say(driver, session, [10] * 20, max_tokens=40)) for session in sessions]
        await asyncio.sleep(0)
        for task in tasks[:6]:
            task.cancel()
        for session in sessions[6:]:
            driver.close(session)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result) for result in results] == [asyncio.CancelledError] * 6 + [ServingError] * 6
        assert driver.stats()["requests_in_flight"] == 0

    expected = asyncio.run(converse(driver, conversation(2)))
    asyncio.run(give_up())
    assert asyncio.run(converse(driver, conversation(2))) == expected


def test_weights_are_replaced_without_compiling_and_drop_kept_state(driver: Driver, params: Any) -> None:
    other = jax.tree.map(lambda leaf: leaf * 1.5, params)

    async def turn(session: Session) -> Generation:
        return await say(driver, session, [20, 21], max_tokens=6, sampling=GREEDY)

    kept = driver.open()
    before = asyncio.run(turn(kept))
    meter = CompilationMeter()
    with meter.watch():
        driver.set_weights(other, 7)
    fresh = driver.open()
    after = asyncio.run(turn(fresh))
    assert (before.weight_version, after.weight_version) == (0, 7)
    assert before.model_logprobs != after.model_logprobs
    continued = asyncio.run(turn(kept))
    recomputed = driver.open()
    whole = asyncio.run(say(driver, recomputed, [20, 21, *before.ids, 20, 21], max_tokens=6, sampling=GREEDY))
    assert continued == whole
    with meter.watch():
        driver.set_weights(params, 0)
    assert asyncio.run(turn(driver.open())) == before
    assert meter.count == driver.stats()["compilations_after_warm_up"] == 0


def test_weights_are_refused_in_flight_and_in_another_shape(driver: Driver, params: Any) -> None:
    async def in_flight() -> None:
        task = asyncio.create_task(say(driver, driver.open(), [10], max_tokens=40))
        await asyncio.sleep(0)
        with pytest.raises(ServingError, match="between rollouts"):
            driver.set_weights(params, 1)
        await task

    asyncio.run(in_flight())
    with pytest.raises(ValueError, match="differ"):
        driver.set_weights({**params, "embed": params["embed"][:-1]}, 1)


def test_weights_may_be_replaced_right_after_a_cancellation(driver: Driver, params: Any) -> None:
    async def cancel() -> None:
        task = asyncio.create_task(say(driver, driver.open(), [10] * 20, max_tokens=40))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    driver.set_weights(params, 1)
    assert asyncio.run(say(driver, driver.open(), [10])).weight_version == 1


def test_the_memory_of_states_is_given_up_between_rollouts_and_taken_again(driver: Driver, engine: Engine) -> None:
    session = driver.open()
    before = asyncio.run(say(driver, driver.open(), [10, 11, 12]))
    first = asyncio.run(say(driver, session, [10, 11, 12]))
    expected = asyncio.run(say(driver, session, [13], key=(5, 6)))
    session = driver.open()
    assert asyncio.run(say(driver, session, [10, 11, 12])) == first == before
    driver.suspend()
    driver.suspend()
    assert engine.suspended
    assert asyncio.run(say(driver, session, [13], key=(5, 6))) == expected, "a conversation goes on to the same bits"
    assert not engine.suspended
    assert driver.stats()["compilations_after_warm_up"] == 0

    async def in_flight() -> None:
        task = asyncio.create_task(say(driver, driver.open(), [10], max_tokens=40))
        await asyncio.sleep(0)
        with pytest.raises(ServingError, match="memory can be given up between rollouts only"):
            driver.suspend()
        await task

    asyncio.run(in_flight())


def test_a_stopped_driver_can_be_started_again(driver: Driver) -> None:
    expected = asyncio.run(converse(driver, conversation(3)))

    async def leave_one_behind() -> None:
        task = asyncio.create_task(say(driver, driver.open(), [10] * 20, max_tokens=40))
        await asyncio.sleep(0)
        driver.stop()
        with pytest.raises(DriverStopped):
            await task

    asyncio.run(leave_one_behind())
    driver.start()
    assert asyncio.run(converse(driver, conversation(3))) == expected


def test_stopping_releases_everybody(engine: Engine, params: Any) -> None:
    engine.set_weights(params, 0)
    for name in ("scheduler", "jetstream"):
        driver = make_driver(name, engine)
        with pytest.raises(DriverStopped, match="not started"):
            asyncio.run(say(driver, driver.open(), [10]))

        async def stop_in_the_middle(driver: Driver) -> list[Any]:
            driver.start()
            tasks = [asyncio.create_task(say(driver, driver.open(), [10] * 20, max_tokens=40)) for _ in range(12)]
            await asyncio.sleep(0)
            await asyncio.to_thread(driver.stop)
            return await asyncio.gather(*tasks, return_exceptions=True)

        results = asyncio.run(stop_in_the_middle(driver))
        assert all(isinstance(result, Generation | DriverStopped) for result in results)
        assert any(isinstance(result, DriverStopped) for result in results)
        with pytest.raises(DriverStopped):
            asyncio.run(say(driver, driver.open(), [10]))


def test_a_dead_engine_releases_everybody(driver: Driver, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(rows: Any) -> Any:
        raise RuntimeError("device lost")

    monkeypatch.setattr(engine, "decode", broken)

    async def doomed() -> list[Any]:
        return await asyncio.gather(
            *(say(driver, driver.open(), [10], max_tokens=9) for _ in range(8)), return_exceptions=True
        )

    results = asyncio.run(doomed())
    assert any(isinstance(result, DriverStopped) and "device lost" in str(result) for result in results)
    assert all(isinstance(result, DriverStopped | Generation) for result in results)
    with pytest.raises(DriverStopped, match="device lost"):
        asyncio.run(say(driver, driver.open(), [10]))


def test_unknown_driver_is_refused(engine: Engine) -> None:
    with pytest.raises(ValueError, match="known: scheduler, jetstream"):
        make_driver("other", engine)  # type: ignore[arg-type]
