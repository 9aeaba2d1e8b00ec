"""The demo models, one for each domain: which text each learns from, how long, and where its checkpoint lies.

Each domain has a model of its own, so that a change to one domain's text leaves the others' figures as they were, and
so that a tokenizer fits its text: a chess position takes 548 tokens of SearchQA's on average, 249 of its own.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tokenizers import Tokenizer

from whale_jax.demo.architecture import Size
from whale_jax.demo.chess import stream as chess
from whale_jax.demo.data import Spans, SpanStream, Texts
from whale_jax.demo.episodes import chat_episode
from whale_jax.demo.exercises import exercise
from whale_jax.demo.math import stream as math
from whale_jax.demo.stream import TextStream
from whale_jax.demo.tokenizer import DEMO_DIR, PRETOKENIZE_PATTERN
from whale_jax.demo.worlds import MadeUpWorld
from whale_jax.qwen3_5.template import ChatTemplate

TOKENIZER_TEXTS = 12_000
TOKENIZER_SEED = 20_260_829

CHESS_PATTERN = (
    r"[a-h][1-8]|[KQRBN](?=[a-h]?[1-8]?x?[a-h][1-8])|x(?=[a-h][1-8])|[a-h](?=x?[a-h][1-8])|\] SAN=|(?: \.)+|"
    + PRETOKENIZE_PATTERN
)
"""Squares, the letters of moves, and runs of empty squares are tokens of their own."""


@dataclass(frozen=True)
class Course:
    """How one demo model is made.

    Attributes:
        folder: its checkpoint.
        size: of the model.
        pattern: the tokenizer's pre-tokenisation.
        texts: tokenizer, template, seed and the longest text in ids → the stream that the model learns from.
        samples: random numbers and template → texts that the tokenizer learns from.
        tokens: positions to train on, padding included.
        rows, row_len: of a batch.
    """

    folder: Path
    size: Size
    pattern: str
    texts: Callable[[Tokenizer, ChatTemplate, int, int], Texts]
    samples: Callable[[random.Random, ChatTemplate], Iterator[str]]
    tokens: int
    rows: int = 6
    row_len: int = 640


def _searchqa_samples(rng: random.Random, template: ChatTemplate) -> Iterator[str]:
    """Generated text in about the proportions of the training."""
    world = MadeUpWorld(rng.getrandbits(48))
    for number in range(TOKENIZER_TEXTS):
        if number % 10 == 9:
            world = MadeUpWorld(rng.getrandbits(48))
        spans = exercise(rng, world) if rng.random() < 0.2 else chat_episode(rng, world, template)
        yield "".join(span.text for span in spans)


def _samples(spans: Spans, rng: random.Random, template: ChatTemplate) -> Iterator[str]:
    for _ in range(TOKENIZER_TEXTS // 3):
        yield "".join(span.text for span in spans(rng, template, 1.0))


COURSES: dict[str, Course] = {
    "searchqa": Course(
        DEMO_DIR / "checkpoint",
        Size(1536, 384, "float32"),
        PRETOKENIZE_PATTERN,
        TextStream,
        _searchqa_samples,
        tokens=8_400_000,
    ),
    "math": Course(
        DEMO_DIR / "math" / "checkpoint",
        Size(768, 256, "bfloat16"),
        PRETOKENIZE_PATTERN,
        partial(SpanStream, math.spans),
        partial(_samples, math.spans),
        tokens=4_500_000,
    ),
    "chess": Course(
        DEMO_DIR / "chess" / "checkpoint",
        Size(640, 256, "bfloat16"),
        CHESS_PATTERN,
        partial(SpanStream, chess.spans),
        partial(_samples, chess.spans),
        tokens=4_500_000,
        row_len=768,
    ),
}
