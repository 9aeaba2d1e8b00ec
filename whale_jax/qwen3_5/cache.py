"""What a model keeps about the sequences it is extending: one row (slot) per sequence."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from whale_jax.qwen3_5.config import LINEAR_PER_GROUP, Qwen35Config


class Cache(NamedTuple):
    """State of B sequences. Rows are independent: nothing of one row ever enters another's numbers.

    All zero is the state of empty sequences. Keys and values at or beyond `length` are stale and never read.
    """

    k: Array
    """[G, B, Kh, S, H] keys of the full-attention layers, normed and turned."""
    v: Array
    """[G, B, Kh, S, H]"""
    conv: Array
    """[G, L, B, W, Q] the last W conv inputs of the linear layers, oldest first."""
    state: Array
    """[G, L, B, Hv, Dk, Dv] recurrent state, fp32 whatever the dtype of the rest."""
    length: Array
    """[B] int32 positions consumed."""


def init_cache(config: Qwen35Config, batch: int, max_len: int, dtype: DTypeLike = jnp.float32) -> Cache:
    """A cache of `batch` empty rows with room for `max_len` positions each; `dtype` is that of k, v and conv."""
    kv = (config.num_groups, batch, config.num_kv_heads, max_len, config.head_dim)
    linear = (config.num_groups, LINEAR_PER_GROUP, batch)
    return Cache(
        k=jnp.zeros(kv, dtype),
        v=jnp.zeros(kv, dtype),
        conv=jnp.zeros((*linear, config.conv_window, config.conv_channels), dtype),
        state=jnp.zeros(
            (*linear, config.linear_value_heads, config.linear_key_dim, config.linear_value_dim), jnp.float32
        ),
        length=jnp.zeros((batch,), jnp.int32),
    )
