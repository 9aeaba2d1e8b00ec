"""The stream of training batches: generated text, tokenised and packed into rows of fixed length.

Deterministic in its seed. One batch takes about 50 ms to make, so a thread that keeps a few ahead costs the training
little.
"""

import queue
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from whale_jax.demo.spans import Span
from whale_jax.qwen3_5.template import ChatTemplate

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


Spans = Callable[[random.Random, ChatTemplate, float], list[Span]]
"""The next text in pieces, of a kind that depends on the share of the training that is done."""


class SpanStream:
    """Endless encoded texts: called with the share of the training that is done, it gives the next one."""

    def __init__(self, spans: Spans, tokenizer: Tokenizer, template: ChatTemplate, seed: int, limit: int) -> None:
        self._spans, self._tokenizer, self._template, self._limit = spans, tokenizer, template, limit
        self._rng = random.Random(seed)

    def __call__(self, progress: float) -> Encoded:
        return encode(self._tokenizer, self._spans(self._rng, self._template, progress), self._limit)


Texts = Callable[[float], Encoded]
"""The next text, of a kind that depends on the share of the training that is done."""


def batches(texts: Texts, *, rows: int, row_len: int, steps: int) -> Iterator[PackedBatch]:
    """`steps` batches of `rows` x `row_len`: each row takes the longest open text that fits until none does."""
    waiting: list[Encoded] = []
    for step in range(steps):
        tokens, segments, targets = (np.zeros((rows, row_len), np.int32) for _ in range(3))
        weights = np.zeros((rows, row_len), np.float32)
        for row in range(rows):
            start, segment = 0, 0
            while True:
                while len(waiting) < OPEN_TEXTS:
                    waiting.append(texts(step / steps))
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
