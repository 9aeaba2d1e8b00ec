"""A tiny random Qwen3.5 and engines on it. Engines are shared by a module's tests: compiling one takes seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from whale_jax.qwen3_5 import model
from whale_jax.qwen3_5.config import Qwen35Config
from whale_jax.serving.engine import Engine

VOCAB = 97
STOP_ID = 5


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
            "tie_word_embeddings": True,
            "full_attention_interval": 4,
        }
    )


@pytest.fixture(scope="session")
def params(config: Qwen35Config) -> Any:
    # Ten times the usual scale, so that the next token depends visibly on everything before it.
    scaled = model.init_params(config, jax.random.key(0), jnp.float32)
    return jax.tree.map(lambda leaf: leaf * 10 if leaf.ndim > 2 else leaf, scaled)


@pytest.fixture(scope="session")
def make_engine(config: Qwen35Config, params: Any) -> Callable[..., Engine]:
    def make(**changes: Any) -> Engine:
        settings = {
            "slots": 5,
            "max_len": 64,
            "extend_rows": 2,
            "extend_chunk": 8,
            "decode_steps": 3,
            "stop_ids": (STOP_ID,),
        }
        return Engine(config, params, **{**settings, **changes})

    return make
