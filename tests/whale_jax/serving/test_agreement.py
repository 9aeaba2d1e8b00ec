"""The embedded demo's policy: the sampler's log-probabilities are the training pass's."""

from __future__ import annotations

import asyncio
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import whale_jax.demo
from whale_jax.qwen3_5 import model
from whale_jax.qwen3_5.convert import load_checkpoint
from whale_jax.serving.driver import Driver, Generation, Sampling, make_driver
from whale_jax.serving.engine import Engine

WINDOW = 256


@pytest.mark.slow
def test_demo_log_probabilities_agree_with_the_training_pass() -> None:
    """fp32, over two turns each, page and chunk ends among them: at most 1e-4 nats apart."""
    config, params = load_checkpoint(Path(whale_jax.demo.__path__[0]) / "checkpoint")
    engine = Engine(config, params, slots=4, max_len=WINDOW, stop_ids=(), extend_rows=2, page_size=64)

    async def converse(driver: Driver, seed: int) -> tuple[list[int], list[tuple[int, Generation]]]:
        rng, session, replies = np.random.default_rng(seed), driver.open(), []
        for turn, length in enumerate((70 + seed, 33)):
            ids = rng.integers(0, 1000, length).tolist()
            reply = await driver.generate(session, ids, max_tokens=40, sampling=Sampling(), key=(seed, turn))
            replies.append((len(session.ids) - len(reply.ids), reply))
        return session.ids, replies

    async def crowd(driver: Driver) -> list[tuple[list[int], list[tuple[int, Generation]]]]:
        return await asyncio.gather(*(converse(driver, seed) for seed in range(4)))

    with make_driver("scheduler", engine) as driver:
        conversations = asyncio.run(crowd(driver))
    tokens_RxT, segments_RxT = (np.zeros((4, WINDOW), np.int32) for _ in range(2))
    for row, (ids, _) in enumerate(conversations):
        tokens_RxT[row, : len(ids)], segments_RxT[row, : len(ids)] = ids, 1

    @jax.jit
    def log_probabilities(tokens: jax.Array, segments: jax.Array) -> jax.Array:
        hidden = model.forward(config, params, tokens, segments, remat=False)
        return jax.nn.log_softmax(model.unembed(config, params, hidden))

    log_RxTxV = np.asarray(log_probabilities(jnp.asarray(tokens_RxT), jnp.asarray(segments_RxT)))
    for row, (_, replies) in enumerate(conversations):
        for start, reply in replies:
            place = np.arange(start - 1, start - 1 + len(reply.ids))
            np.testing.assert_allclose(reply.model_logprobs, log_RxTxV[row, place, list(reply.ids)], rtol=0, atol=1e-4)
