"""A tiny random Qwen3.5 and one engine on it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.whale_jax.serving.conversations import MAX_LEN, STOP_ID, VOCAB
from whale_jax.qwen3_5 import model
from whale_jax.qwen3_5.config import Qwen35Config
from whale_jax.serving.driver import Driver, make_driver
from whale_jax.serving.engine import Engine


@pytest.fixture(scope="session")
def config() -> Qwen35Config:
    return Qwen35Config.from_hf(
        {
            "model_type": "qwen3_5_text",
            "vocab_size": VOCAB,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 2,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
            "linear_conv_kernel_dim": 4,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.25,
            "tie_word_embeddings": False,
            "full_attention_interval": 4,
        }
    )


@pytest.fixture(scope="session")
def params(config: Qwen35Config) -> Any:
    # Far larger than usual, so that the next token depends visibly on everything before it.
    initial = model.init_params(config, jax.random.key(0), jnp.float32)
    return jax.tree.map(lambda leaf: leaf * 8 if leaf.shape[-1] > 16 else leaf, initial)


@pytest.fixture(scope="session")
def engine(config: Qwen35Config, params: Any) -> Engine:
    """Shared by all tests, since compiling it takes seconds: each test drives it with a driver of its own."""
    return Engine(
        config,
        params,
        slots=5,
        max_len=MAX_LEN,
        stop_ids=(STOP_ID,),
        extend_rows=2,
        extend_chunk=8,
        decode_steps=3,
        decode_lot=2,
        page_size=8,
        token_bytes=[bytes([97 + token % 26]) for token in range(VOCAB)],
    )


@pytest.fixture(params=["scheduler", "jetstream"])
def driver(request: pytest.FixtureRequest, engine: Engine, params: Any) -> Iterator[Driver]:
    """Each of the two drivers in turn, started on the shared engine with its first weights."""
    engine.set_weights(params, 0)
    with make_driver(request.param, engine) as started:
        yield started
