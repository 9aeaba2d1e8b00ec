"""Rewards of an evaluation, task by task, in a line: what paired intervals need, in a few hundred bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Scores:
    """How many of each task's samples were right, and how many were scored.

    Attributes:
        tasks: hash of the tasks' ids, which stand in their order; scores are paired where it is the same.
        k: samples asked for per task.
        right, scored: one count per task; `scored` less than k where data is missing.
    """

    tasks: str
    k: int
    right: tuple[int, ...]
    scored: tuple[int, ...]

    @classmethod
    def of(cls, rewards: Mapping[str, Sequence[int | None]], k: int) -> Scores:
        """Counts the rewards of an evaluation; None is missing data."""
        names = sorted(rewards)
        known = [[reward for reward in rewards[name] if reward is not None] for name in names]
        digest = hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]
        return cls(digest, k, tuple(map(sum, known)), tuple(map(len, known)))

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Scores:
        """The inverse of `to_json`. Raises ValueError, KeyError or TypeError for anything else."""
        right, scored = (tuple(_DIGITS.index(digit) for digit in content[name]) for name in ("right", "scored"))
        if len(right) != len(scored) or any(one > of for one, of in zip(right, scored, strict=True)):
            raise ValueError("more answers are right than were scored")
        return cls(str(content["tasks"]), int(content["k"]), right, scored)

    def to_json(self) -> dict[str, Any]:
        """One digit (0-9, a-z) per task and count. Raises ValueError for more than 35 samples."""
        if self.k >= len(_DIGITS):
            raise ValueError(f"{self.k} samples per task; a result holds at most {len(_DIGITS) - 1}")
        right, scored = ("".join(_DIGITS[count] for count in counts) for counts in (self.right, self.scored))
        return {"tasks": self.tasks, "k": self.k, "right": right, "scored": scored}

    @property
    def shares(self) -> np.ndarray:
        """Share of right answers per task, [tasks]; NaN where nothing was scored."""
        right, scored = np.array(self.right, float), np.array(self.scored, float)
        return np.divide(right, scored, out=np.full(right.shape, np.nan), where=scored > 0)

    @property
    def mean(self) -> float:
        """mean@k; NaN where nothing was scored."""
        shares = self.shares
        return float(np.nanmean(shares)) if np.isfinite(shares).any() else float("nan")
