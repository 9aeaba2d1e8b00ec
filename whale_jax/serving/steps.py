"""What goes into the engine's steps and what comes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np


@dataclass(frozen=True)
class ExtendRow:
    """One row of an extend step: `ids` (1..C of them) enter the state of `slot`; `fresh` starts from nothing.

    `last` asks for the token that follows.
    """

    slot: int
    ids: Sequence[int]
    fresh: bool
    last: bool = True


@dataclass(frozen=True)
class DecodeRow:
    """One slot of a decode step: its last sampled id, which is not in the state yet, and how many ids it may sample.

    `forced` are ids to take in place of the first sampled ones, when a state is computed again.
    """

    slot: int
    last_id: int
    budget: int
    forced: Sequence[int] = ()


@dataclass(frozen=True)
class SampledIds:
    """What a step sampled for one row. `finite` is False if the model's numbers were not: the ids are then noise."""

    ids: list[int]
    logprobs: list[float]
    model_logprobs: list[float]

    @property
    def finite(self) -> bool:
        return bool(np.isfinite(self.model_logprobs).all())


class ExtendResult:
    """What an extend step left, still on its way from the device."""

    def __init__(self, out: tuple[Any, ...], places: Mapping[int, int] | None = None) -> None:
        """Takes the arrays of a step, and each asked row's place among the step's rows; default: the same."""
        self._out = out
        self._places = places
        self._host: tuple[np.ndarray, ...] | None = None

    def hidden(self, index: int) -> jax.Array:
        """[D] after the final norm at the last position of row `index`; stays on the device."""
        _, hidden_RxD, pick = self._out
        return pick(hidden_RxD, np.int32(self._place(index)))

    def row(self, index: int) -> SampledIds:
        """Waits for the step and returns what row `index` sampled: one id."""
        host = self._host
        if host is None:
            host = self._host = jax.device_get(self._out[0])
        token_R, logprob_R, model_logprob_R = host
        index = self._place(index)
        return SampledIds([int(token_R[index])], [float(logprob_R[index])], [float(model_logprob_R[index])])

    def _place(self, index: int) -> int:
        return index if self._places is None else self._places[index]
