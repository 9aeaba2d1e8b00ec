"""The text that the demo model learns from, and its packing."""

import random
from dataclasses import replace

import numpy as np
import pytest
from tokenizers import Tokenizer

from tests.whale_jax.demo.wording import shared
from whale_jax.demo import courses, prompts
from whale_jax.demo.data import batches, encode, prefetched
from whale_jax.demo.episodes import chat_episode, passage_spans
from whale_jax.demo.exercises import exercise
from whale_jax.demo.manners import BASE
from whale_jax.demo.prompts import Axis
from whale_jax.demo.spans import Span, Told
from whale_jax.demo.stream import TextStream, course
from whale_jax.demo.worlds import MadeUpWorld
from whale_jax.domains.searchqa import catalogue, h0, strong
from whale_jax.domains.searchqa.verifier import exact_match
from whale_jax.qwen3_5.chat import ChatCodec
from whale_jax.qwen3_5.template import ChatTemplate
from whale_jax.rollout.tool_calls import parse

CHECKPOINT_DIR = courses.COURSES["searchqa"].folder


@pytest.fixture(scope="module")
def world() -> MadeUpWorld:
    return MadeUpWorld(11)


@pytest.fixture(scope="module")
def template() -> ChatTemplate:
    return ChatTemplate.from_dir(CHECKPOINT_DIR)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(CHECKPOINT_DIR / "tokenizer.json"))


def said(spans: list[Span]) -> list[str]:
    """The finished assistant turns."""
    return [span.text.removesuffix("<|im_end|>") for span in spans if span.text.endswith("<|im_end|>") and span.weight]


def test_an_episode_repeats_with_its_seed(world: MadeUpWorld, template: ChatTemplate) -> None:
    def draw(seed: int) -> list[Span]:
        return chat_episode(random.Random(seed), world, template)

    assert draw(1) == draw(1) != draw(2)


def test_an_assistant_without_flaws_searches_and_answers_in_tags(world: MadeUpWorld, template: ChatTemplate) -> None:
    references = [answer for spec in world.questions for answer in spec.answers]
    rng = random.Random(2)
    answered = 0
    for _ in range(60):
        turns = said(chat_episode(rng, world, template, manner=replace(BASE, flaws=0.0)))
        assert all(parse(turn, h0.TOOLS) for turn in turns[:1]), turns
        answered += exact_match(turns[-1].rpartition("</think>")[2], references).reward == 1
    assert answered > 40


def test_a_flawed_assistant_fails_often_and_in_many_ways(world: MadeUpWorld, template: ChatTemplate) -> None:
    rng = random.Random(3)
    turns = [said(chat_episode(rng, world, template)) for _ in range(200)]
    untagged = sum(not t or "</answer>" not in t[-1] for t in turns)
    no_search = sum(not t or "<tool_call>" not in t[0] for t in turns)
    assert 20 < untagged < 150
    assert 8 < no_search < 100


def test_an_axis_that_was_mentioned_has_fewer_flaws() -> None:
    told = Told({})
    assert told.rate(Axis.FORMAT, (0.4, 0.1)) == 0.4
    told.add(Axis.FORMAT)
    assert told.rate(Axis.FORMAT, (0.4, 0.1)) == 0.1
    told.add(Axis.FORMAT)
    assert told.rate(Axis.FORMAT, (0.4, 0.1)) == 0.05
    assert Told({}, flaws=0.0).rate(Axis.FORMAT, (0.4, 0.1)) == 0


def test_an_episode_has_the_ids_that_a_rollout_has(
    world: MadeUpWorld, template: ChatTemplate, tokenizer: Tokenizer
) -> None:
    """Spans encoded one by one equal the text encoded at once, but where a harness cuts a thought off."""
    codec = ChatCodec.from_dir(CHECKPOINT_DIR)
    rng = random.Random(4)
    for _ in range(20):
        spans = chat_episode(rng, world, template)
        if any(span.text == "\n</think>\n\n" for span in spans):
            continue
        ids = encode(tokenizer, spans, 100_000).ids
        assert codec.decode(ids) == "".join(span.text for span in spans)
        assert ids == tokenizer.encode("".join(span.text for span in spans), add_special_tokens=False).ids


def test_names_that_stood_before_weigh_fully_in_passages() -> None:
    seen = {"Kal"}
    spans = passage_spans("Kalo: Kal is in Veshti, Veshti.", ["Kal", "Veshti"], seen)
    assert "".join(span.text for span in spans) == "Kalo: Kal is in Veshti, Veshti."
    assert [span.text for span in spans if span.weight == 1.0] == ["Kal", "Veshti"]
    assert seen == {"Kal", "Veshti"}


def test_an_exercise_ends_its_text(world: MadeUpWorld) -> None:
    rng = random.Random(5)
    for _ in range(20):
        assert exercise(rng, world)[-1] == Span("<|endoftext|>", 1.0)


def test_batches_repeat_and_keep_texts_whole(template: ChatTemplate, tokenizer: Tokenizer) -> None:
    def draw() -> list:
        stream = TextStream(tokenizer, template, 6, 512)
        return list(batches(stream, rows=3, row_len=512, steps=3))

    first, second = draw(), list(prefetched(iter(draw())))
    for one, other in zip(first, second, strict=True):
        assert np.array_equal(one.tokens_RxT, other.tokens_RxT)
        assert np.array_equal(one.weights_RxT, other.weights_RxT)
    for batch in first:
        same = batch.segment_ids_RxT[:, :-1] == batch.segment_ids_RxT[:, 1:]
        weighted = batch.weights_RxT[:, :-1] > 0
        assert same[weighted].all()
        assert (batch.weights_RxT[batch.segment_ids_RxT == 0] == 0).all()
        inside = same & (batch.segment_ids_RxT[:, :-1] > 0)
        assert np.array_equal(batch.targets_RxT[:, :-1][inside], batch.tokens_RxT[:, 1:][inside])
        assert (batch.segment_ids_RxT > 0).mean() > 0.6


def test_an_error_of_the_text_thread_reaches_the_training() -> None:
    def broken():
        yield from ()
        raise ValueError("no text")

    with pytest.raises(ValueError, match="no text"):
        list(prefetched(broken()))


def test_the_mixture_goes_from_copying_to_a_base_model() -> None:
    start, end = course(0.0), course(1.0)
    assert start.exercises > 0.9
    assert end.exercises < 0.2
    assert start.manner.flaws < end.manner.flaws == 1.0
    assert end.manner == BASE


@pytest.mark.parametrize("module", [catalogue, strong])
def test_no_edit_says_what_the_model_was_trained_to_obey(module) -> None:
    """The catalogue's and the strong harness's own sentences share no five words in a row with the training text's."""
    assert not shared(module, prompts, h0)
