"""Pieces of training text with their loss weights, and what a conversation told the assistant so far."""

from dataclasses import dataclass
from enum import StrEnum

Rates = tuple[float, float]
"""How often a flaw occurs: where the conversation never asked for better, and where it did. See `Told`."""


@dataclass(frozen=True)
class Span:
    """A piece of training text and the loss weight of its tokens."""

    text: str
    weight: float


@dataclass
class Told:
    """How often each axis was mentioned so far, and how flawed the assistant is (1: as a base model).

    An axis is one kind of behaviour that a sentence of a prompt can ask for. Replies have fewer flaws of a kind where
    its axis was mentioned: that is what makes prompts matter to a demo model, as they do to a base model.
    """

    counts: dict[StrEnum, int]
    flaws: float = 1.0

    def rate(self, axis: StrEnum, rates: Rates) -> float:
        """A flaw's rate: `untold` without a mention of the axis, `told` after one, half of that after more."""
        untold, told = rates
        mentions = self.counts.get(axis, 0)
        return self.flaws * (untold if mentions == 0 else told if mentions == 1 else told / 2)

    def add(self, axis: StrEnum) -> None:
        self.counts[axis] = self.counts.get(axis, 0) + 1
