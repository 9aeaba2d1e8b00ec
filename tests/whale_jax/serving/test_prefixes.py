"""Common beginnings are computed once, and change no bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from whale_jax.serving.driver import Generation, Sampling, Session
from whale_jax.serving.engine import Engine
from whale_jax.serving.prefixes import PrefixStore, boundaries
from whale_jax.serving.rows import RowState
from whale_jax.serving.slots import Request, SlotTable

HEAD = list(range(10, 29))
"""Two chunks of eight and three ids more."""


class Desk:
    """Hands prompts to a table and runs it until all are answered."""

    def __init__(self, engine: Engine, params: Any, *, prefix_bytes: int) -> None:
        engine.set_weights(params, 0)
        before, engine.prefix_bytes = engine.prefix_bytes, prefix_bytes
        self.table = SlotTable(engine)
        engine.prefix_bytes = before
        self.answers: dict[int, Generation] = {}
        self.requests: list[Request] = []

    def ask(self, ids: Sequence[int], seed: int) -> Request:
        number = len(self.requests)
        request = Request(
            Session(), [ids], 4, Sampling(), (7, seed), lambda answer: self.answers.update({number: answer})
        )
        slot = self.table.choose(request.session)
        assert slot is not None
        self.table.attach(request, slot)
        self.requests.append(request)
        return request

    def finish(self) -> list[Generation]:
        while any(self.table.running):
            self.table.drop_cancelled()
            while self.table.waiting_to_extend():
                self.table.extend()
            self.table.decode()
        return [self.answers[number] for number in sorted(self.answers)]


def computed(engine: Engine) -> int:
    return engine.counters["computed_tokens"]


@pytest.fixture
def prompts() -> list[list[int]]:
    """Three samples of one prompt, and two prompts with the same head."""
    return [[*HEAD, *tail] for tail in ([40] * 14, [40] * 14, [40] * 14, [41] * 9, [42, 43])]


def test_answers_are_the_same_bits_with_and_without_the_store(
    engine: Engine, params: Any, prompts: list[list[int]]
) -> None:
    answers, work = [], []
    for size in (0, 2**30):
        desk, before = Desk(engine, params, prefix_bytes=size), computed(engine)
        for _ in range(2):  # all at once, then again with what was kept
            for seed, prompt in enumerate(prompts):
                desk.ask(prompt, seed)
            desk.finish()
        answers.append(desk.finish())
        work.append(computed(engine) - before)
    assert answers[0] == answers[1]
    assert len(answers[0]) == 10
    everything = 2 * sum(map(len, prompts))
    assert work[0] - work[1] == desk.table.stats()["prefix_tokens"] > everything / 2


def test_the_samples_of_a_group_compute_their_prompt_once(engine: Engine, params: Any) -> None:
    desk, before = Desk(engine, params, prefix_bytes=2**30), computed(engine)
    prompt = [*HEAD, *[50] * 21]  # five chunks of eight
    for seed in range(5):
        desk.ask(prompt, seed)
    sampled = sum(len(answer.ids) - 1 for answer in desk.finish())  # the last id of each was not computed
    assert computed(engine) - before - sampled == len(prompt) + 4 * 8


@pytest.mark.parametrize("chunks", [0, 1])
def test_who_waits_goes_on_when_the_first_is_cancelled(engine: Engine, params: Any, chunks: int) -> None:
    desk = Desk(engine, params, prefix_bytes=2**30)
    prompt = [*HEAD, *[51] * 14]
    first, *others = [desk.ask(prompt, seed) for seed in range(3)]
    for _ in range(chunks):
        desk.table.extend()
    assert first.awaits is None
    assert all(other.awaits for other in others)
    first.cancelled = True
    answers = desk.finish()
    alone = Desk(engine, params, prefix_bytes=0)
    for seed in (1, 2):
        alone.ask(prompt, seed)
    assert answers == alone.finish()


def test_new_weights_forget_what_was_kept(engine: Engine, params: Any) -> None:
    desk = Desk(engine, params, prefix_bytes=2**30)
    for _ in range(2):
        desk.ask([*HEAD, *[52] * 14], 0)
        desk.finish()
        desk.table.set_weights(params, 0)
    assert desk.table.stats()["prefix_hits"] == 0


def test_a_store_too_small_for_one_state_is_none(engine: Engine, params: Any) -> None:
    desk = Desk(engine, params, prefix_bytes=engine.slot_bytes - 1)
    for seed in range(3):
        assert desk.ask([*HEAD, *[53] * 14], seed).awaits is None
    desk.finish()
    assert desk.table.stats()["prefix_hits"] == 0


def state(size: int) -> RowState:
    return RowState(*[np.zeros(size // 5, np.int8)] * 5)


def test_the_least_recently_used_states_go_first() -> None:
    store = PrefixStore(30)
    for key in (b"a", b"b", b"c"):
        store.keep(key, state(10))
    assert store.find([b"a"]) is not None
    store.keep(b"d", state(10))
    assert store.find([b"b"]) is None
    assert [store.find([key]) is not None for key in (b"a", b"c", b"d")] == [True] * 3


def test_the_longest_kept_beginning_is_found() -> None:
    store = PrefixStore(100)
    store.keep(b"short", state(10))
    store.keep(b"long", state(20))
    found = store.find([b"short", b"long", b"longer"])
    assert found is not None
    assert found[0] == 2


def test_worth_keeping_is_the_whole_and_what_another_prompt_had_too() -> None:
    store = PrefixStore(100)
    assert store.worth_keeping([b"1", b"12", b"123"]) == {b"123"}
    assert store.worth_keeping([b"1", b"12", b"124"]) == {b"12", b"124"}
    assert store.worth_keeping([b"1", b"12", b"124"]) == {b"124"}


def test_the_same_ids_cut_otherwise_are_another_beginning() -> None:
    assert boundaries([[1, 2], [3], [4]])[1] != boundaries([[1], [2, 3], [4]])[1]
    assert boundaries([[1, 2, 3]]) == []
