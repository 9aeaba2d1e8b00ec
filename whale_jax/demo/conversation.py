"""A conversation of the mathematics and the chess text: what each side writes, and how often a flaw occurs."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from whale_jax.demo.spans import Rates, Span, Told

PROMPT_WEIGHT, LOOP_WEIGHT = 0.0, 0.3
"""Loss weights of text that is not the assistant's, and of endless thoughts."""

A = TypeVar("A", bound=StrEnum)


def sentences(rng: random.Random, told: Told, axes: Sequence[A], of: Mapping[A, Sequence[str]]) -> list[str]:
    """One sentence for each axis, which is then told."""
    for axis in axes:
        told.add(axis)
    return [rng.choice(of[axis]) for axis in axes]


@dataclass(kw_only=True)
class Conversation:
    """One conversation so far.

    Attributes:
        thinking: assistant turns begin with a thought.
        told: what the prompts asked for.
        spans: the text.
        closed: the harness closed this turn's thinking.
    """

    rng: random.Random
    thinking: bool
    told: Told
    spans: list[Span] = field(default_factory=list)
    closed: bool = False

    def happens(self, axis: StrEnum, rates: Rates) -> bool:
        """Whether a flaw occurs now."""
        return self.rng.random() < self.told.rate(axis, rates)

    def say(self, thought: str, rest: str) -> None:
        """One finished assistant turn."""
        text = f"{thought}\n</think>\n\n{rest}" if self.thinking and not self.closed else rest
        self.closed = False
        self.spans.append(Span(f"{text}<|im_end|>", 1.0))

    def hear(self, text: str, weight: float = PROMPT_WEIGHT) -> None:
        """A turn of the environment, and the opening of the next assistant turn."""
        opening = "<think>\n" if self.thinking else "<think>\n\n</think>\n\n"
        self.spans += [
            Span("\n<|im_start|>user\n", PROMPT_WEIGHT),
            Span(text, weight),
            Span(f"<|im_end|>\n<|im_start|>assistant\n{opening}", PROMPT_WEIGHT),
        ]

    def loses_itself(self, loops: Sequence[str]) -> bool:
        """An endless thought; True if the harness closes it, as half of the time, and the turn goes on."""
        thought = " ".join([self.rng.choice(loops)] * self.rng.randint(5, 10))
        self.spans.append(Span(thought, LOOP_WEIGHT))
        if self.rng.random() < 0.5:
            return False
        self.spans.append(Span("\n</think>\n\n", PROMPT_WEIGHT))
        self.closed = True
        return True
