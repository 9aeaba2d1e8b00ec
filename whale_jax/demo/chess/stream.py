"""The chess text as an endless stream: lists to pick from first, then right conversations, at last a base model's."""

import random
from dataclasses import replace

from whale_jax.demo.chess import positions
from whale_jax.demo.chess.episodes import BASE, chat_episode
from whale_jax.demo.spans import Span
from whale_jax.qwen3_5.template import ChatTemplate

GIVEN_WEIGHT = 0.03
"""Loss weight of text that nobody could foresee."""
_SQUARES = [f"{file}{rank}" for file in "abcdefgh" for rank in "12345678"]


def exercise(rng: random.Random, longest: int) -> list[Span]:
    """A made-up list of up to `longest` moves, on no board, and questions about it; ended by `<|endoftext|>`."""
    ends = rng.sample(_SQUARES, rng.randint(3, longest))
    table = {}
    for end in sorted(ends):
        start = rng.choice(_SQUARES)
        capture = "x" if rng.random() < 0.08 else ""
        table[start + end] = f"{rng.choice('KQRQRBN')}{capture}{end}{'+' if rng.random() < 0.12 else ''}"
    mate = rng.choice(list(table))
    if rng.random() < 0.8:
        table[mate] = table[mate].rstrip("+") + "#"
    lines = sorted(table.items())
    spans = [Span("Legal moves:\n" + "".join(f"[{uci}] SAN={san}\n" for uci, san in lines), GIVEN_WEIGHT)]
    asked = rng.sample(lines, min(len(lines), 2))
    if table[mate].endswith("#"):
        asked = [(mate, table[mate]), *[row for row in asked if row[0] != mate]]
    for uci, san in asked:
        if san.endswith("#"):
            spans.append(
                Span(f"Mate: {san} <move>{uci}</move>\n" if rng.random() < 0.5 else f"Mate: <move>{uci}</move>\n", 1.0)
            )
        else:
            spans += [Span(f"Move: {san}", 0.3), Span(f" <move>{uci}</move>\n", 1.0)]
    return [*spans, Span("<|endoftext|>", 1.0)]


def spans(rng: random.Random, template: ChatTemplate, progress: float) -> list[Span]:
    """The next text; `progress` is the share of the training that is done."""
    exercises = 0.92 if progress < 0.12 else 0.6 if progress < 0.3 else 0.2
    if rng.random() < exercises:
        return exercise(rng, 6 if progress < 0.06 else 14 if progress < 0.12 else 22)
    flaws = 0.2 if progress < 0.5 else 0.5 if progress < 0.7 else 1.0
    return chat_episode(rng, positions.draw(rng), template, manner=replace(BASE, flaws=flaws))
