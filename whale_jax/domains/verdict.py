"""What a verifier says about one returned reply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Verdict:
    """A verifier's decision.

    Attributes:
        reward: 1 right, 0 wrong, None unscored (the judge was down, or the episode fell to infrastructure). Unscored is
            missing data and never counts as 0.
        answer: the answer that was read from the reply; None when there was none to read.
        reason: one short line for a reader of traces; holds nothing of the reference.
    """

    reward: Literal[0, 1] | None
    answer: str | None
    reason: str

    def __post_init__(self) -> None:
        if self.reward not in (0, 1, None):
            raise ValueError(f"a reward is 0, 1 or None, got {self.reward!r}")

    @property
    def scored(self) -> bool:
        """Whether there is a reward at all."""
        return self.reward is not None
