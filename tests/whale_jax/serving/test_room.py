"""Pages run short, states leave the device, memory is given up, weights change: no bit of any answer does."""

from __future__ import annotations

import asyncio
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.whale_jax.serving.conversations import MAX_LEN, STOP_ID, conversation, converse
from whale_jax.serving.compilations import CompilationMeter
from whale_jax.serving.driver import Driver, Generation, Sampling, Session, make_driver
from whale_jax.serving.engine import Engine
from whale_jax.serving.pages import PagePool
from whale_jax.serving.slots import Request, SlotTable

CONVERSATIONS = [conversation(seed) for seed in range(6)]


@pytest.fixture(scope="module")
def alone(engine: Engine, params: Any) -> list[list[Generation]]:
    """Each conversation by itself, with all the pages there are."""
    engine.set_weights(params, 0)
    with make_driver("scheduler", engine) as driver:
        return [asyncio.run(converse(driver, turns)) for turns in CONVERSATIONS]


def leave(engine: Engine, pages: int) -> None:
    """Hides all but so many pages of the pool."""
    assert engine._pool.take(engine.free_pages - pages) is not None


async def crowd(driver: Driver) -> list[list[Generation]]:
    return await asyncio.gather(*(converse(driver, turns) for turns in CONVERSATIONS))


def test_with_pages_for_one_full_slot(driver: Driver, engine: Engine, alone: list[list[Generation]]) -> None:
    leave(engine, MAX_LEN // 8)
    assert asyncio.run(crowd(driver)) == alone
    assert driver.stats()["pauses"] > 0
    assert driver.stats()["compilations_after_warm_up"] == 0


@pytest.mark.parametrize("name", ["scheduler", "jetstream"])
def test_states_that_are_lost_are_computed_again(
    name: Any, engine: Engine, params: Any, alone: list[list[Generation]], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.set_weights(params, 0)
    monkeypatch.setattr(engine, "host_bytes", 0)
    monkeypatch.setattr(engine, "prefix_bytes", 0)
    with make_driver(name, engine) as driver:
        assert asyncio.run(crowd(driver)) == alone
        assert driver.stats()["replayed_tokens"] > 0
        assert driver.stats()["host_state_bytes"] == 0


def test_nothing_is_held_when_all_is_over(driver: Driver, engine: Engine) -> None:
    asyncio.run(crowd(driver))
    held = engine.page_count - engine.free_pages
    for _ in range(3):
        asyncio.run(crowd(driver))
    again = engine.page_count - engine.free_pages
    assert again <= max(held, engine.slots * engine.places + 2 * len(CONVERSATIONS) * engine.places)
    assert driver.stats()["requests_in_flight"] == 0


class Table:
    """A table and requests in it, driven step by step."""

    def __init__(self, engine: Engine, params: Any) -> None:
        engine.set_weights(params, 0)
        self.table = SlotTable(engine)
        self.answers: dict[int, Any] = {}

    def ask(self, number: int, session: Session | None = None, **settings: Any) -> Session:
        session = session or Session()
        ids = conversation(number)[0].ids
        sampling = Sampling(**{"min_tokens": 12, **settings})
        request = Request(session, [ids], 12, sampling, (number, 0), lambda out: self.answers.update({number: out}))
        slot = self.table.choose(session, len(ids))
        assert slot is not None
        self.table.attach(request, slot)
        return session

    def step(self) -> None:
        while self.table.waiting_to_extend():
            self.table.extend()
        self.table.decode()

    def finish(self) -> dict[int, Any]:
        while any(self.table.running):
            self.step()
        return self.answers


def test_memory_is_given_up_and_taken_again_under_way(engine: Engine, params: Any) -> None:
    undisturbed = Table(engine, params)
    for number in range(3):
        undisturbed.ask(number)
    expected = undisturbed.finish()
    table = Table(engine, params)
    for number in range(3):
        table.ask(number)
    table.step()
    assert not table.answers
    meter = CompilationMeter()
    with meter.watch():
        table.table.suspend()
        assert engine.suspended
        table.table.resume()
        assert table.finish() == expected
    assert meter.count == 0


def test_new_weights_under_way_go_on_from_all_ids(engine: Engine, params: Any) -> None:
    other = jax.tree.map(lambda leaf: leaf * 1.5, params)
    table = Table(engine, params)
    session = table.ask(1)
    table.step()
    begun = list(table.table.running[session.slot].ids)  # type: ignore[index,union-attr]
    with pytest.raises(Exception, match="between rollouts"):
        table.table.set_weights(other, 1)
    table.table.set_weights(other, 1, in_flight=True)
    generation = table.finish()[1]
    count = len(begun)
    assert generation.ids[:count] == tuple(begun)
    assert generation.weight_versions == (0,) * count + (1,) * (12 - count)
    assert generation.weight_version == 1
    # The rest is what the new weights say after the same ids, at the same positions with the same key.
    anew = SlotTable(engine)
    answers: list[Any] = []
    prompt = [*conversation(1)[0].ids, *begun[:-1]]
    request = Request(Session(), [prompt], 1, Sampling(temperature=0.0), (0, 0), answers.append)
    anew.attach(request, 0)
    anew.extend()
    while anew.waiting_to_extend():
        anew.extend()
    assert answers
    engine.set_weights(params, 0)


def test_a_stop_string_ends_a_reply_where_it_is_complete(engine: Engine, params: Any) -> None:
    plain = Table(engine, params)
    plain.ask(2)
    reply = plain.finish()[2]
    assert engine.token_bytes is not None
    text = b"".join(engine.token_bytes[token] for token in reply.ids).decode()
    for end in range(1, len(text)):
        table = Table(engine, params)
        session = table.ask(2, min_tokens=0, stop_strings=(text[max(0, end - 2) : end], "not in it"))
        first = text.index(text[max(0, end - 2) : end]) + len(text[max(0, end - 2) : end])
        if STOP_ID in reply.ids[:first]:
            break
        cut = table.finish()[2]
        assert (cut.ids, cut.finish) == (reply.ids[:first], "stop")
        assert session.ids[-first:] == list(cut.ids)
        assert session.consumed == len(session.ids) - 1


def test_own_stop_ids_and_fewest_tokens(engine: Engine, params: Any) -> None:
    plain = Table(engine, params)
    plain.ask(3, temperature=0.0)
    reply = plain.finish()[3]
    stop = reply.ids[4]
    table = Table(engine, params)
    table.ask(3, temperature=0.0, min_tokens=0, stop_ids=(stop,))
    cut = table.finish()[3]
    assert cut.ids == reply.ids[: reply.ids.index(stop) + 1]
    assert cut.finish == "stop"
    table = Table(engine, params)
    table.ask(3, temperature=0.0, min_tokens=7, stop_ids=(stop,))
    assert stop not in table.finish()[3].ids[:7]


def test_weights_are_copied_in_the_dtypes_being_served(engine: Engine, params: Any) -> None:
    meter = CompilationMeter()
    mine = jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), params)
    with meter.watch():
        engine.set_weights(mine, 3)
        jax.tree.map(lambda leaf: leaf.delete(), mine)
        plain = Table(engine, params)
        plain.ask(0)
        assert np.isfinite(plain.finish()[0].model_logprobs).all()
    assert meter.count == 0
    halves = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
    engine.set_weights(halves, 4)
    assert jax.tree.leaves(engine._params)[0].dtype == jnp.float32
    engine.set_weights(params, 0)


def test_pages_are_shared_and_zeroed_when_tainted() -> None:
    pool = PagePool(4)
    mine = pool.take(3)
    assert mine is not None
    assert pool.take(2) is None
    pool.share(mine[:2])
    assert pool.drop(mine) == []
    assert pool.free == 2
    pool.taint(mine[:1])
    assert pool.drop(mine[:2]) == mine[:1]
    assert pool.free == 4
    assert pool.tainted == []
