"""Gated full attention with grouped key/value heads, normed q and k, and partial RoPE (PAPER section 7).

Scores and softmax are fp32. In training, no array of T x T is ever kept: rows of up to `_LONGEST_UNROLLED` positions
are handled in a few blocks of queries, each recomputed in the backward pass; longer ones by `blockwise`.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from whale_jax.qwen3_5.blockwise import MASKED, blockwise_attention
from whale_jax.qwen3_5.config import Qwen35Config
from whale_jax.qwen3_5.layers import product, rms_norm, rotate

_SMALLEST_BLOCK, _MOST_BLOCKS = 128, 8
"""Queries handled together: few enough for their scores to stay in a core's cache, and the unrolled code short."""

_LONGEST_UNROLLED = 1024
"""Positions of a row up to which a few large blocks are faster than a scan over many small ones."""


def project(
    config: Qwen35Config, params: dict[str, Array], x_BxTxD: Array, cos: Array, sin: Array
) -> tuple[Array, Array, Array, Array]:
    """q [B, T, N, H] and k [B, T, Kh, H] (normed and turned), v [B, T, Kh, H], gate [B, T, N * H].

    The checkpoint's q_proj holds query and gate interleaved per head: [head, (query, gate), feature].
    """
    batch, length, _ = x_BxTxD.shape
    q_and_gate = product(x_BxTxD, params["q"]).reshape(batch, length, config.num_heads, 2, config.head_dim)
    k = product(x_BxTxD, params["k"]).reshape(batch, length, config.num_kv_heads, config.head_dim)
    v = product(x_BxTxD, params["v"]).reshape(batch, length, config.num_kv_heads, config.head_dim)
    q = rotate(rms_norm(q_and_gate[:, :, :, 0], params["q_norm"], config.rms_eps), cos, sin)
    k = rotate(rms_norm(k, params["k_norm"], config.rms_eps), cos, sin)
    return q, k, v, q_and_gate[:, :, :, 1].reshape(batch, length, -1)


def gated_output(params: dict[str, Array], attended: Array, gate: Array) -> Array:
    """(attended * sigmoid(gate)), in fp32, through o_proj; `attended` is fp32 [..., N, H]."""
    gated = attended.reshape(gate.shape) * jax.nn.sigmoid(gate.astype(jnp.float32))
    return product(gated.astype(gate.dtype), params["o"])


def attend(q_BxTxNxH: Array, k_BxKxKhxH: Array, v_BxKxKhxH: Array, visible_BxTxK: Array) -> Array:
    """softmax(q k^T / sqrt(H)) v under a mask. Returns [B, T, N, H] in fp32."""
    batch, length, heads, size = q_BxTxNxH.shape
    kv_heads = k_BxKxKhxH.shape[2]
    q = q_BxTxNxH.reshape(batch, length, kv_heads, heads // kv_heads, size) * size**-0.5
    scores = jnp.einsum("btgrh,bkgh->bgrtk", q, k_BxKxKhxH, preferred_element_type=jnp.float32)
    weights = jax.nn.softmax(jnp.where(visible_BxTxK[:, None, None], scores, MASKED), axis=-1)
    attended = jnp.einsum(
        "bgrtk,bkgh->btgrh", weights.astype(v_BxKxKhxH.dtype), v_BxKxKhxH, preferred_element_type=jnp.float32
    )
    return attended.reshape(batch, length, heads, size)


def packed_attention(q_BxTxNxH: Array, k_BxTxKhxH: Array, v_BxTxKhxH: Array, segment_ids_BxT: Array) -> Array:
    """Causal attention inside each segment of packed rows. Returns [B, T, N, H] in fp32.

    A block of queries looks at the keys up to its own end, so about half of the work is skipped.
    """
    length = q_BxTxNxH.shape[1]
    if length > _LONGEST_UNROLLED:
        scaled = q_BxTxNxH * q_BxTxNxH.shape[-1] ** -0.5
        return blockwise_attention(scaled, k_BxTxKhxH, v_BxTxKhxH, segment_ids_BxT)
    size = max(_SMALLEST_BLOCK, -(-length // _MOST_BLOCKS))

    @partial(jax.checkpoint, static_argnums=(4,))
    def block(q: Array, k: Array, v: Array, segments: Array, start: int) -> Array:
        stop = start + q.shape[1]
        causal = jnp.arange(start, stop)[:, None] >= jnp.arange(stop)[None, :]
        same = segments[:, start:stop, None] == segments[:, None, :stop]
        return attend(q, k[:, :stop], v[:, :stop], causal & same)

    blocks = [
        block(q_BxTxNxH[:, start : start + size], k_BxTxKhxH, v_BxTxKhxH, segment_ids_BxT, start)
        for start in range(0, length, size)
    ]
    return jnp.concatenate(blocks, axis=1)
