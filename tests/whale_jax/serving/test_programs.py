"""The two steps in lots and whole, with parameters by layer as on a CPU and stacked as on accelerators."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.whale_jax.serving.conversations import MAX_LEN, conversation, converse
from whale_jax.qwen3_5.config import Qwen35Config
from whale_jax.qwen3_5.params import by_layer, is_by_layer
from whale_jax.serving import weights
from whale_jax.serving.driver import Generation, Sampling, make_driver
from whale_jax.serving.engine import CPU_DECODE_LOT, CPU_EXTEND_LOT, Engine
from whale_jax.serving.weights import Served

GREEDY = Sampling(temperature=0.0)
CONVERSATIONS = [[replace(turn, sampling=GREEDY) for turn in conversation(seed)] for seed in range(5)]


def make_engine(config: Qwen35Config, params: Any, **lots: Any) -> Engine:
    return Engine(config, params, slots=5, max_len=MAX_LEN, stop_ids=(), extend_rows=3, extend_chunk=8, **lots)


def replies(engine: Engine) -> list[list[Generation]]:
    async def crowd(driver: Any) -> list[list[Generation]]:
        return await asyncio.gather(*(converse(driver, turns) for turns in CONVERSATIONS))

    with make_driver("scheduler", engine) as driver:
        return asyncio.run(crowd(driver))


@pytest.fixture(scope="module")
def expected(config: Qwen35Config, params: Any) -> list[list[Generation]]:
    engine = make_engine(config, params, extend_lot=2, decode_lot=2)
    assert is_by_layer(engine._params)
    return replies(engine)


@pytest.mark.parametrize("lots", [{}, {"extend_lot": 2, "decode_lot": 2}], ids=["whole", "lots"])
def test_stacked_parameters_give_the_same_replies(
    config: Qwen35Config,
    params: Any,
    expected: list[list[Generation]],
    lots: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What accelerators run."""
    monkeypatch.setattr(weights, "serves_by_layer", lambda device: False)
    engine = make_engine(config, params, **(lots or {"extend_lot": 3, "decode_lot": 5}))
    assert not is_by_layer(engine._params)
    for ours, theirs in zip(replies(engine), expected, strict=True):
        assert [turn.ids for turn in ours] == [turn.ids for turn in theirs]
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(one.model_logprobs, other.model_logprobs, atol=1e-4)


def test_a_lot_is_never_larger_than_its_step(config: Qwen35Config, params: Any) -> None:
    engine = make_engine(config, params)
    assert (engine.extend_lot, engine.decode_lot) == (CPU_EXTEND_LOT, min(CPU_DECODE_LOT, 5))
    for name in ("extend_lot", "decode_lot"):
        with pytest.raises(ValueError, match=f"{name} must be >= 1, got 0"):
            make_engine(config, params, **{name: 0})


def test_weights_are_taken_stacked_or_as_they_are_served(config: Qwen35Config, params: Any) -> None:
    engine = make_engine(config, params)
    served = Served(by_layer(params))
    engine.set_weights(served, 1)
    assert engine._params is served.params
    engine.set_weights(params, 2)
    assert is_by_layer(engine._params)
    for wrong in (by_layer(params), Served(params)):
        with pytest.raises(ValueError, match="structure or shapes differ"):
            engine.set_weights(wrong, 3)
    assert engine.version == 2
