"""Common beginnings are computed once, and change no bit."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from whale_jax.serving.driver import Driver, Generation, Sampling, Session, make_driver
from whale_jax.serving.engine import Engine
from whale_jax.serving.host_states import HostStates
from whale_jax.serving.prefixes import PrefixStore, boundaries
from whale_jax.serving.rows import Kept, RowState
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
    assert computed(engine) - before - sampled == len(prompt)


def test_a_whole_prompt_is_found_again_in_host_memory(engine: Engine, params: Any) -> None:
    desk = Desk(engine, params, prefix_bytes=2**30)
    prompt = [*HEAD, *[54] * 21]
    desk.ask(prompt, 0)
    first = desk.finish()
    desk.table.suspend()
    before = computed(engine)
    desk.ask(prompt, 0)
    assert desk.finish() == [*first, *first]
    assert computed(engine) - before == len(first[0].ids) - 1


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


def test_who_waits_keeps_its_own_state_when_no_page_is_left_for_the_whole_prompt(
    engine: Engine, params: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had started from a shorter beginning; that must not be taken away for one that cannot be put in its place."""
    desk = Desk(engine, params, prefix_bytes=2**30)
    for seed in (1, 2):  # the head is seen, then kept
        desk.ask([*HEAD, *[55 + seed] * 9], seed)
        desk.finish()
    prompt = [*HEAD, *[58] * 15]
    asked = [desk.ask(prompt, seed) for seed in (3, 4)]
    assert asked[1].awaits is not None
    assert asked[1].session.consumed > 0
    keep, taken = engine.keep, []

    def keep_and_leave_no_page(*args: Any) -> Kept | None:
        kept = keep(*args)
        if args[1] == len(prompt):
            while len(desk.table._prefixes or ()):
                desk.table._prefixes.shrink()
            taken.extend(engine._pool.take(engine.free_pages) or [])
        return kept

    monkeypatch.setattr(engine, "keep", keep_and_leave_no_page)
    while not taken:
        desk.table.extend()
    assert asked[1].session.consumed < len(prompt)
    engine._pool.drop(taken)
    answers = desk.finish()[2:]
    alone = Desk(engine, params, prefix_bytes=0)
    for seed in (3, 4):
        alone.ask(prompt, seed)
    assert answers == alone.finish()


def test_older_beginnings_leave_the_device_for_one_that_is_needed(
    engine: Engine, params: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(engine, params, prefix_bytes=2**30)
    prompt = [*HEAD, *[59] * 15]
    for ids in ([*HEAD, *[60] * 15], prompt):
        desk.ask(ids, 0)
        desk.finish()
    taken = engine._pool.take(engine.free_pages) or []
    monkeypatch.setattr(engine._pool, "held_once", lambda pages: 0)
    before = desk.table.stats()["prefix_hits"]
    asked = desk.ask(prompt, 0)
    assert desk.table.stats()["prefix_hits"] == before + 1
    assert asked.session.consumed == len(prompt)
    engine._pool.drop(taken)
    assert desk.finish()[2] == desk.finish()[1]


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


class Memory:
    """Stands in for an engine's: nothing is on a device."""

    row_bytes, page_bytes = 4, 3

    def __init__(self) -> None:
        self.dropped: list[int] = []

    def drop(self, kept: Kept, *, tainted: bool = False) -> None:
        self.dropped.append(kept.length)

    def kept_to_host(self, kept: Kept) -> RowState:
        page = np.zeros((1, 1, len(kept.pages), 1, 3), np.int8)
        return RowState(page, page, np.zeros(2, np.int8), np.zeros(2, np.int8), kept.length)


def state(length: int) -> Kept:
    """Two pages and a row: 10 bytes, and 16 in host memory."""
    nothing: Any = None
    return Kept((0, 1), nothing, nothing, length)


def store(memory: Memory, max_bytes: int, host_bytes: int = 0) -> PrefixStore:
    fake: Any = memory
    return PrefixStore(fake, HostStates(host_bytes), max_bytes)


def test_the_least_recently_used_states_go_first_to_the_host_and_then_for_good() -> None:
    memory = Memory()
    kept = store(memory, 30, host_bytes=20)
    for length, key in enumerate((b"a", b"b", b"c")):
        kept.keep(key, state(length))
    assert kept.find([b"a"]) == (1, state(0))
    kept.keep(b"d", state(3))
    assert memory.dropped == [1]
    found = kept.find([b"b"])
    assert found is not None
    assert isinstance(found[1], RowState)
    kept.keep(b"e", state(4))  # c follows b to the host, where there is room for one
    assert kept.find([b"b"]) is None
    assert [kept.find([key]) is not None for key in (b"a", b"c", b"d", b"e")] == [True] * 4


def test_the_longest_kept_beginning_is_found() -> None:
    kept = store(Memory(), 100)
    kept.keep(b"short", state(1))
    kept.keep(b"long", state(2))
    assert kept.find([b"short", b"long", b"longer"]) == (2, state(2))


def test_worth_keeping_is_the_whole_and_what_another_prompt_had_too() -> None:
    kept = store(Memory(), 100)
    assert kept.worth_keeping([b"1", b"12", b"123"]) == {b"123"}
    assert kept.worth_keeping([b"1", b"12", b"124"]) == {b"12", b"124"}
    assert kept.worth_keeping([b"1", b"12", b"124"]) == {b"124"}


def test_the_same_ids_cut_otherwise_are_another_beginning() -> None:
    assert boundaries([[1, 2], [3]])[1] != boundaries([[1], [2, 3]])[1]
    assert len(boundaries([[1, 2, 3]])) == 1


def prompt_tokens_computed(engine: Engine, params: Any, *, prefix_bytes: int) -> int:
    """Six groups of eight conversations of four turns: a common head of 16 ids, 4 of the group, then 6 in each turn."""
    head, group_size, turns = HEAD[:16], 8, 4

    async def converse(driver: Driver, number: int) -> None:
        session = driver.open()
        for turn in range(turns):
            ids = [*head, *[30 + number // group_size] * 4] if turn == 0 else [60 + turn] * 6
            await driver.generate(session, ids, max_tokens=3, sampling=NO_STOP, key=(number, turn))
        driver.close(session)

    async def workload(driver: Driver) -> None:
        await asyncio.gather(*(converse(driver, number) for number in range(6 * group_size)))

    engine.set_weights(params, 0)
    before, engine.prefix_bytes = engine.prefix_bytes, prefix_bytes
    try:
        with make_driver("scheduler", engine) as driver:
            already = driver.stats()["extended_tokens"]
            asyncio.run(workload(driver))
            sampled_last = 6 * group_size * (turns - 1)  # enters with the next turn, and is no prompt token
            return driver.stats()["extended_tokens"] - already - sampled_last
    finally:
        engine.prefix_bytes = before


NO_STOP = Sampling(min_tokens=3)


def test_prompt_tokens_are_computed_once(engine: Engine, params: Any) -> None:
    new = 16 + 6 * 4 + 6 * 8 * 3 * 6
    ratio = prompt_tokens_computed(engine, params, prefix_bytes=2**30) / new
    without = prompt_tokens_computed(engine, params, prefix_bytes=0) / new
    assert 1.0 <= ratio <= 1.02
    assert without == (6 * 8 * (20 + 3 * 6)) / new > 2
