"""Small conversations to run through drivers, and the sizes they were made for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from whale_jax.serving.driver import Driver, Generation, Sampling

VOCAB = 97
STOP_ID = 5
MAX_LEN = 64


@dataclass(frozen=True)
class Turn:
    """One request of a test conversation."""

    ids: tuple[int, ...]
    max_tokens: int
    sampling: Sampling
    key: tuple[int, int]


def conversation(seed: int, turns: int = 2) -> list[Turn]:
    """Random turns of 1-17 ids, below, at and above the extend chunk of 8; every third one greedy."""
    rng = np.random.default_rng(seed)
    sampling = Sampling(temperature=0.0) if seed % 3 == 0 else Sampling(temperature=1.0, top_p=0.9, top_k=10)
    return [
        Turn(tuple(rng.integers(6, VOCAB - 1, rng.integers(1, 18)).tolist()), 9, sampling, (seed, turn))
        for turn in range(turns)
    ]


async def converse(driver: Driver, turns: Sequence[Turn]) -> list[Generation]:
    """Runs a conversation on one session."""
    session = driver.open()
    results = [
        await driver.generate(session, turn.ids, max_tokens=turn.max_tokens, sampling=turn.sampling, key=turn.key)
        for turn in turns
    ]
    driver.close(session)
    return results
