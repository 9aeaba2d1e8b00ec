"""The stream of training batches: generated text, tokenised and packed into rows of fixed length.

Deterministic in its seed. One batch takes about 50 ms to make, so a thread that keeps a few ahead costs the training
little.
"""

import queue
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from tokenizers import Tokenizer

from whale_jax.demo.episodes import Span, chat_episode
from whale_jax.demo.exercises import exercise
from whale_jax.demo.manners import BASE, Manner
from whale_jax.demo.worlds import MadeUpWorld
from whale_jax.qwen3_5.template import ChatTemplate

TEXTS_PER_WORLD = 12
OPEN_TEXTS = 24
"""Texts among which the packing chooses the longest that fits."""


@dataclass(frozen=True)
class Encoded:
    """One text: ids, and the loss weight of each id as a target."""

    ids: list[int]
    weights: list[float]


@dataclass(frozen=True)
class PackedBatch:
    """Rows of packed texts.

    Attributes:
        tokens_RxT: int32 ids, 0 at padding.
        segment_ids_RxT: int32; 0 padding, 1, 2, … the texts of a row.
        targets_RxT: int32; the id after each position.
        weights_RxT: fp32 loss weight of each target; 0 where the next position belongs to another text.
    """

    tokens_RxT: np.ndarray
    segment_ids_RxT: np.ndarray
    targets_RxT: np.ndarray
    weights_RxT: np.ndarray


def encode(tokenizer: Tokenizer, spans: Sequence[Span], limit: int) -> Encoded:
    """Each span by itself, as a rollout encodes its pieces; cut to `limit` ids."""
    ids: list[int] = []
    weights: list[float] = []
    for span, encoding in zip(
        spans, tokenizer.encode_batch([s.text for s in spans], add_special_tokens=False), strict=True
    ):
        ids += encoding.ids
        weights += [span.weight] * len(encoding.ids)
    return Encoded(ids[:limit], weights[:limit])


@dataclass(frozen=True)
class Mixture:
    """What the text is made of at one moment of the training.

    Attributes:
        exercises: share of texts that are exercises.
        silent: share of conversations that do not announce the tool in their head.
        manner: the assistant of the conversations.
    """

    exercises: float
    silent: float
    manner: Manner


def course(progress: float) -> Mixture:
    """First copying, then right conversations, at last those of a base model; `progress` is the share done."""
    exercises = 0.92 if progress < 0.15 else 0.5 if progress < 0.35 else 0.14
    flaws = 0.2 if progress < 0.5 else 0.5 if progress < 0.7 else 1.0
    return Mixture(exercises, silent=0.65 if progress < 0.4 else 0.1, manner=replace(BASE, flaws=flaws))


class TextStream:
    """Endless encoded texts of the mixtures asked for."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, seed: int, limit: int) -> None:
        self._tokenizer, self._template, self._limit = tokenizer, template, limit
        self._rng = random.Random(seed)
        self._left = 0
        self._world: MadeUpWorld | None = None

    def next(self, mixture: Mixture) -> Encoded:
        """The next text."""
        if self._world is None or self._left == 0:
            self._world, self._left = MadeUpWorld(self._rng.getrandbits(48)), TEXTS_PER_WORLD
        self._left -= 1
        if self._rng.random() < mixture.exercises:
            spans = exercise(self._rng, self._world)
        else:
            announce = self._rng.random() >= mixture.silent
            spans = chat_episode(self._rng, self._world, self._template, announce=announce, manner=mixture.manner)
        return encode(self._tokenizer, spans, self._limit)


def batches(
    stream: TextStream, mixture: Callable[[float], Mixture], *, rows: int, row_len: int, steps: int
) -> Iterator[PackedBatch]:
    """`steps` batches of `rows` x `row_len`: each row takes the longest open text that fits until none does.

    `mixture` maps the share of the steps that is done to what the text is made of.
    """
    waiting: list[Encoded] = []
    for step in range(steps):
        tokens, segments, targets = (np.zeros((rows, row_len), np.int32) for _ in range(3))
        weights = np.zeros((rows, row_len), np.float32)
        for row in range(rows):
            start, segment = 0, 0
            while True:
                while len(waiting) < OPEN_TEXTS:
                    waiting.append(stream.next(mixture(step / steps)))
                fitting = [text for text in waiting if len(text.ids) <= row_len - start]
                if not fitting:
                    break
                text = max(fitting, key=lambda text: len(text.ids)) if segment else waiting[0]
                waiting.remove(text)
                stop = start + len(text.ids)
                segment += 1
                tokens[row, start:stop] = text.ids
                segments[row, start:stop] = segment
                targets[row, start : stop - 1] = text.ids[1:]
                weights[row, start : stop - 1] = text.weights[1:]
                start = stop
        yield PackedBatch(tokens, segments, targets, weights)


def prefetched(source: Iterator[PackedBatch], ahead: int = 4) -> Iterator[PackedBatch]:
    """The same batches, made in a thread that stays up to `ahead` of the consumer; its error is raised here."""
    ready: queue.Queue[PackedBatch | BaseException | None] = queue.Queue(ahead)

    def work() -> None:
        try:
            for batch in source:
                ready.put(batch)
            ready.put(None)
        except BaseException as error:
            ready.put(error)

    threading.Thread(target=work, daemon=True, name="demo-data").start()
    while (item := ready.get()) is not None:
        if isinstance(item, BaseException):
            raise item
        yield item
