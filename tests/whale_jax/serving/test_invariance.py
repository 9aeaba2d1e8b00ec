"""A request's tokens and log-probabilities do not depend on slot, neighbours, order, driver or eviction: to the bit."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.whale_jax.serving.conversations import MAX_LEN, VOCAB, Turn, conversation, converse
from whale_jax.assemble import checkpoint_directory
from whale_jax.qwen3_5 import model
from whale_jax.qwen3_5.config import Qwen35Config
from whale_jax.serving.driver import Driver, Generation, Sampling, Session, make_driver
from whale_jax.serving.engine import DecodeRow, Engine, ExtendRow

CONVERSATIONS = [conversation(seed) for seed in range(9)]


@pytest.fixture(scope="module")
def alone(engine: Engine, params: Any) -> list[list[Generation]]:
    """Each conversation by itself: the reference for all other circumstances."""
    engine.set_weights(params, 0)
    with make_driver("scheduler", engine) as driver:
        return [asyncio.run(converse(driver, turns)) for turns in CONVERSATIONS]


def test_the_conversations_exercise_what_they_should(alone: list[list[Generation]]) -> None:
    generations = [generation for turns in alone for generation in turns]
    assert {generation.finish for generation in generations} == {"stop", "length"}
    assert len({generation.ids for generation in generations}) == len(generations)


@pytest.mark.parametrize("order_seed", [0, 1])
def test_in_a_crowd_larger_than_the_slots(driver: Driver, alone: list[list[Generation]], order_seed: int) -> None:
    order = list(range(len(CONVERSATIONS)))
    random.Random(order_seed).shuffle(order)

    async def crowd() -> list[list[Generation]]:
        return await asyncio.gather(*(converse(driver, CONVERSATIONS[index]) for index in order))

    results = asyncio.run(crowd())
    assert dict(zip(order, results, strict=True)) == dict(enumerate(alone))
    assert driver.stats()["requests_in_flight"] == 0


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    name=st.sampled_from(("scheduler", "jetstream")),
    crowd=st.lists(
        st.tuples(st.integers(0, len(CONVERSATIONS) - 1), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=14
    ),
    given_up=st.booleans(),
)
def test_in_any_circumstances(
    engine: Engine,
    params: Any,
    alone: list[list[Generation]],
    name: Any,
    crowd: list[tuple[int, int, int]],
    given_up: bool,
) -> None:
    """Any conversations, the same one several times too, each turn begun after some turns of the event loop; more of
    them than slots push each other out. `given_up`: the device memory of all states between first and second turns."""
    engine.set_weights(params, 0)

    async def turn(driver: Driver, session: Session, index: int, number: int, wait: int) -> Generation:
        for _ in range(wait):
            await asyncio.sleep(0.0005)
        return await generate(driver, session, CONVERSATIONS[index][number])

    async def run(driver: Driver) -> list[list[Generation]]:
        sessions = [driver.open() for _ in crowd]
        both = list(zip(sessions, crowd, strict=True))
        if given_up:
            first = await asyncio.gather(*(turn(driver, session, index, 0, wait) for session, (index, wait, _) in both))
            driver.suspend()
            second = await asyncio.gather(
                *(turn(driver, session, index, 1, wait) for session, (index, _, wait) in both)
            )
            return [list(turns) for turns in zip(first, second, strict=True)]

        async def whole(session: Session, index: int, *waits: int) -> list[Generation]:
            return [await turn(driver, session, index, number, wait) for number, wait in enumerate(waits)]

        return await asyncio.gather(*(whole(session, *drawn) for session, drawn in both))

    with make_driver(name, engine) as driver:
        assert asyncio.run(run(driver)) == [alone[index] for index, *_ in crowd]
        assert driver.stats()["compilations_after_warm_up"] == 0


def test_in_every_slot(engine: Engine, params: Any, alone: list[list[Generation]]) -> None:
    engine.set_weights(params, 0)
    with make_driver("scheduler", engine) as driver:

        async def one_after_another() -> list[list[Generation]]:
            results = []
            for _ in range(engine.slots):
                # Idle sessions keep their slots, so each conversation lands in another one.
                results.append(await converse(driver, CONVERSATIONS[1]))
                await driver.generate(driver.open(), [7], max_tokens=1, sampling=Sampling(), key=(0, 0))
            return results

        assert asyncio.run(one_after_another()) == [alone[1]] * engine.slots


def test_after_moving_to_the_host_and_back(driver: Driver, engine: Engine, alone: list[list[Generation]]) -> None:
    first, second = CONVERSATIONS[4]

    async def with_intruders() -> list[Generation]:
        session = driver.open()
        results = [await generate(driver, session, first)]
        before = driver.stats()["moves_to_host"]
        intruders = [driver.open() for _ in range(2 * engine.slots)]
        await asyncio.gather(*(generate(driver, intruder, CONVERSATIONS[5][0]) for intruder in intruders))
        assert driver.stats()["moves_to_host"] > before
        return [*results, await generate(driver, session, second)]

    assert asyncio.run(with_intruders()) == alone[4]


async def generate(driver: Driver, session: Any, turn: Turn) -> Generation:
    return await driver.generate(session, turn.ids, max_tokens=turn.max_tokens, sampling=turn.sampling, key=turn.key)


def test_greedy_tokens_and_log_probabilities_are_the_training_pass_s(
    alone: list[list[Generation]], config: Qwen35Config, params: Any
) -> None:
    @jax.jit
    def log_probabilities(tokens_1xT: jax.Array, segments_1xT: jax.Array) -> jax.Array:
        hidden = model.forward(config, params, tokens_1xT, segments_1xT, remat=False)
        return jax.nn.log_softmax(model.unembed(config, params, hidden))[0]

    for turns, generations in zip(CONVERSATIONS, alone, strict=True):
        ids: list[int] = []
        for turn, generation in zip(turns, generations, strict=True):
            ids += turn.ids
            start = len(ids)
            ids += generation.ids
            tokens_1xT = np.zeros((1, MAX_LEN), np.int32)
            tokens_1xT[0, : len(ids)] = ids
            segments_1xT = (np.arange(MAX_LEN) < len(ids)).astype(np.int32)[None]
            log_TxV = np.asarray(log_probabilities(jnp.asarray(tokens_1xT), jnp.asarray(segments_1xT)))
            predicted = log_TxV[start - 1 : len(ids) - 1]
            np.testing.assert_allclose(
                generation.model_logprobs, predicted[np.arange(len(generation.ids)), list(generation.ids)], atol=1e-4
            )
            if turn.sampling.temperature == 0:
                assert list(generation.ids) == predicted.argmax(-1).tolist()
    assert predicted.shape[-1] == VOCAB


@pytest.mark.slow
def test_every_row_and_slot_of_the_demo_s_shape_gives_the_same_bits() -> None:
    shape = Qwen35Config.from_dir(checkpoint_directory(None))
    engine = Engine(shape, model.init_params(shape, jax.random.key(0)), slots=64, max_len=768, stop_ids=(1535,))
    ids = np.random.default_rng(0).integers(0, 1000, 150).tolist()

    def result(slot: int, row: int, neighbours: int) -> list[Any]:
        rng = np.random.default_rng(neighbours)
        others = [other for other in rng.permutation(engine.slots).tolist() if other != slot]
        for other in others:
            engine.configure(other, Sampling(), (neighbours, other))
        engine.configure(slot, Sampling(), (3, 4))
        engine.reset()
        assert all(engine.grow(any_slot, 300) for any_slot in rng.permutation(engine.slots).tolist())
        sampled: list[Any] = []
        for start in range(0, len(ids), engine.extend_chunk):
            rows = [
                ExtendRow(other, rng.integers(0, 1000, rng.integers(1, engine.extend_chunk + 1)).tolist(), start == 0)
                for other in others[: engine.extend_rows - 1]
            ]
            rows.insert(row, ExtendRow(slot, ids[start : start + engine.extend_chunk], start == 0))
            sampled = [engine.extend(rows).row(row)]
        active = [DecodeRow(other, int(rng.integers(0, 1000)), 8) for other in others[: 20 * neighbours]]
        for _ in range(2):
            sampled += engine.decode([*active, DecodeRow(slot, sampled[-1].ids[-1], 8)])[-1:]
        return sampled

    expected = result(slot=0, row=0, neighbours=0)
    assert expected == result(slot=37, row=5, neighbours=1)
    assert expected == result(slot=63, row=7, neighbours=3)
