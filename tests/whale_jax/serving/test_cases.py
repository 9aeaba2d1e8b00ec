"""Cases of rollouts (sections b and h) as far as the engine answers for them; the others have tests where they belong.

B044 does not apply: a session can only grow, so a turn is always an extension of what was before. H201 does not apply:
nothing below the runner tries a request again.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.whale_jax.serving.conversations import MAX_LEN, STOP_ID, conversation, converse
from tests.whale_jax.serving.gate import PATIENCE, Gate, eventually
from whale_jax.serving.driver import ContextOverflow, Driver, Generation, Sampling, make_driver
from whale_jax.serving.engine import Engine

GREEDY = Sampling(temperature=0.0)


async def say(driver: Driver, ids: list[int], max_tokens: int, sampling: Sampling = GREEDY) -> Generation:
    return await driver.generate(driver.open(), ids, max_tokens=max_tokens, sampling=sampling, key=(1, 2))


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 4, 7])
def test_B036_a_reply_that_is_cut_has_exactly_its_ids_and_a_log_probability_for_each(
    driver: Driver, max_tokens: int
) -> None:
    generation = asyncio.run(say(driver, [10, 11, 12], max_tokens))
    assert STOP_ID not in generation.ids, "the case needs a reply that does not stop by itself"
    assert generation.finish == "length"
    assert len(generation.ids) == len(generation.logprobs) == len(generation.model_logprobs) == max_tokens


def test_B051_B052_both_drivers_cut_a_reply_alike_and_say_so(engine: Engine, params: Any) -> None:
    engine.set_weights(params, 0)
    results = []
    for name in ("scheduler", "jetstream"):
        with make_driver(name, engine) as driver:
            nearly_full = asyncio.run(say(driver, [10] * (MAX_LEN - 1), 50))
            results.append([nearly_full, asyncio.run(say(driver, [10, 11], 4))])
    assert results[0] == results[1]
    assert len(results[0][0].ids) == 1
    assert [generation.finish for generation in results[0]] == ["length", "length"]


def test_H184_a_stuck_call_is_given_up_and_the_others_go_on(
    driver: Driver, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = asyncio.run(converse(driver, conversation(2)))
    gate = Gate(engine, monkeypatch)

    async def crowd() -> list[Any]:
        others = [asyncio.create_task(converse(driver, conversation(2))) for _ in range(7)]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await say(driver, [10] * 9, 50)
        await asyncio.to_thread(gate.entered.wait, PATIENCE)
        gate.open()
        return await asyncio.gather(*others)

    assert asyncio.run(crowd()) == [expected] * 7


def test_H186_all_failing_raise_and_leave_nothing(driver: Driver, engine: Engine, params: Any) -> None:
    """One that fails among others is `test_a_request_whose_numbers_are_not_finite_fails_alone`."""
    driver.set_weights({**params, "embed": params["embed"].at[40].set(float("nan"))}, 0)

    async def doomed() -> list[Any]:
        return await asyncio.gather(*(say(driver, [40], 4) for _ in range(8)), return_exceptions=True)

    assert all(isinstance(result, Exception) for result in asyncio.run(doomed()))
    assert driver.stats()["requests_in_flight"] == 0
    driver.set_weights(params, 0)
    assert asyncio.run(say(driver, [40], 4)).ids


def test_H189_cancelled_rollouts_leave_the_engine(
    driver: Driver, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(engine, monkeypatch)

    async def cancel_ten() -> None:
        tasks = [asyncio.create_task(say(driver, [10 + number] * 9, 50)) for number in range(10)]
        await asyncio.to_thread(gate.entered.wait, PATIENCE)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(cancel_ten())
    assert driver.stats()["requests_in_flight"] == 0
    gate.open()
    before = driver.stats()["sampled_tokens"]
    generation = asyncio.run(say(driver, [10], 2))
    # Nothing was sampled for those that went, but for the one step that was running.
    assert driver.stats()["sampled_tokens"] - before <= len(generation.ids) + engine.slots * engine.decode_steps
    eventually(lambda: driver.stats()["requests_waiting"] == 0)


def test_H196_H197_one_prompt_and_two_of_different_length_give_the_same_tokens(driver: Driver) -> None:
    """Greedy, to the end of the context: one alone keeps what it sampled, and a neighbour changes nothing."""
    prompts = [[12, 13], [14 + number for number in range(21)]]
    room = MAX_LEN - 21
    alone = [asyncio.run(say(driver, prompt, room)) for prompt in prompts]

    async def together() -> list[Generation]:
        return await asyncio.gather(*(say(driver, prompt, room) for prompt in prompts))

    assert asyncio.run(together()) == alone
    for generation in alone:
        assert len(generation.ids) == room or generation.ids[-1] == STOP_ID


@pytest.mark.parametrize("length", [MAX_LEN, MAX_LEN + 1, 3 * MAX_LEN])
def test_H199_the_true_length_counts_and_nothing_is_cut(driver: Driver, length: int) -> None:
    with pytest.raises(ContextOverflow, match=f"{length} new ones .* max_len is {MAX_LEN}"):
        asyncio.run(say(driver, [10] * length, 1))
