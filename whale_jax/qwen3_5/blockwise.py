"""What makes long rows cheap in memory: attention by blocks of queries and keys, and layers by blocks of positions.

Attention walks the blocks on and below the diagonal with an online softmax (Milakov and Gimelshein, 2018), and its
backward pass recomputes each block's scores from q, k and the saved log-normalisers (Dao et al., "FlashAttention",
2022). So the largest array that depends on two positions is one block's scores, and no work is spent above the
diagonal but inside the diagonal blocks themselves.

Letters beside those of `config`: n blocks, c positions of a block, r query heads per key/value head.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

ATTENTION_BLOCK = 1024
"""Queries, and keys, of one block. Scores of a block are N x 1024 x 1024 fp32: 32 MB for the 8 heads of the 2B, which
fits a TPU core's vector memory."""

_MASKED = -1e30
"""Finite, so that a block without a visible key gives finite numbers; the diagonal block then scales them to zero."""

_einsum = partial(jnp.einsum, preferred_element_type=jnp.float32)

_Carry = TypeVar("_Carry")


def blockwise_attention(
    q_BxTxNxH: Array, k_BxTxKhxH: Array, v_BxTxKhxH: Array, segment_ids_BxT: Array, *, block: int = ATTENTION_BLOCK
) -> Array:
    """Causal attention inside each segment of packed rows: softmax(q k^T / sqrt(H)) v.

    Scores and statistics are fp32; products run in the dtype of the inputs and accumulate in fp32.

    Args:
        segment_ids_BxT: a position sees the positions up to its own that have its id.
        block: positions of a block; rows are padded to whole blocks.

    Returns:
        [B, T, N, H] in q's dtype.

    Raises:
        ValueError: block < 1.
    """
    if block < 1:
        raise ValueError(f"blockwise_attention: block must be >= 1, got {block}")
    batch, length, heads, size = q_BxTxNxH.shape
    kv_heads = k_BxTxKhxH.shape[2]
    block = min(block, length)
    pad = -length % block
    grouped = q_BxTxNxH.reshape(batch, length, kv_heads, heads // kv_heads, size) * size**-0.5
    q = _blocks(grouped, pad, block).transpose(0, 1, 3, 4, 2, 5)  # [n, B, Kh, r, c, H]
    k, v = (_blocks(t, pad, block).transpose(0, 1, 3, 2, 4) for t in (k_BxTxKhxH, v_BxTxKhxH))  # [n, B, Kh, c, H]
    out = _attention(q, k, v, _blocks(segment_ids_BxT, pad, block))
    out = out.transpose(1, 0, 4, 2, 3, 5).reshape(batch, length + pad, heads, size)
    return out[:, :length]


def _blocks(x_BxT: Array, pad: int, block: int) -> Array:
    """[B, T, ...] to [n, B, c, ...], padded with zeros to whole blocks."""
    x = jnp.pad(x_BxT, ((0, 0), (0, pad)) + ((0, 0),) * (x_BxT.ndim - 2))
    return jnp.moveaxis(x.reshape(x.shape[0], -1, block, *x.shape[2:]), 1, 0)


class _Saved(NamedTuple):
    q: Array
    k: Array
    v: Array
    segments: Array
    out: Array
    lse: Array
    """[n, B, Kh, r, c] fp32: the logarithm of each query's sum of exp(score)."""


@jax.custom_vjp
def _attention(q: Array, k: Array, v: Array, segments: Array) -> Array:
    """q [n, B, Kh, r, c, H] (scaled), k and v [n, B, Kh, c, H], segments [n, B, c] to [n, B, Kh, r, c, H]."""
    return _forward(q, k, v, segments)[0]


def _forward(q: Array, k: Array, v: Array, segments: Array) -> tuple[Array, _Saved]:
    rows, columns = _pairs(q.shape[0])

    def pair(carry: tuple[Array, ...], at: tuple[Array, Array]) -> tuple[tuple[Array, ...], None]:
        out, lse, acc, total, top = carry
        i, j = at
        # The first block of a row of blocks starts its sums anew.
        acc, total = jnp.where(j == 0, 0.0, acc), jnp.where(j == 0, 0.0, total)
        top = jnp.where(j == 0, _MASKED, top)
        scores = _scores(q[i], k[j], segments, i, j)
        new_top = jnp.maximum(top, jnp.max(scores, axis=-1))
        weights = jnp.exp(scores - new_top[..., None])
        kept = jnp.exp(top - new_top)
        total = total * kept + jnp.sum(weights, axis=-1)
        acc = acc * kept[..., None] + _einsum("bgrqk,bgkh->bgrqh", weights.astype(v.dtype), v[j])
        # Written at every block; the last one, on the diagonal, is what stays.
        out = lax.dynamic_update_index_in_dim(out, (acc / total[..., None]).astype(out.dtype), i, 0)
        lse = lax.dynamic_update_index_in_dim(lse, new_top + jnp.log(total), i, 0)
        return (out, lse, acc, total, new_top), None

    of_row = jnp.zeros(q.shape[1:-1], jnp.float32)
    start = (
        jnp.zeros(q.shape, q.dtype),
        jnp.zeros(q.shape[:-1], jnp.float32),
        jnp.zeros(q.shape[1:], jnp.float32),
        of_row,
        of_row,
    )
    (out, lse, *_), _ = lax.scan(pair, start, (rows, columns))
    return out, _Saved(q, k, v, segments, out, lse)


def _backward(saved: _Saved, d_out: Array) -> tuple[Array, Array, Array, np.ndarray]:
    q, k, v, segments, out, lse = saved
    rows, columns = _pairs(q.shape[0])
    # d score = weight (d weight - sum over keys of weight x d weight), and that sum is out . d_out.
    mean = jnp.sum(out.astype(jnp.float32) * d_out.astype(jnp.float32), axis=-1)

    def pair(carry: tuple[Array, ...], at: tuple[Array, Array]) -> tuple[tuple[Array, ...], None]:
        dq, dk, dv, acc = carry
        i, j = at
        acc = jnp.where(j == 0, 0.0, acc)
        weights = jnp.exp(_scores(q[i], k[j], segments, i, j) - lse[i][..., None])
        d_weights = _einsum("bgrqh,bgkh->bgrqk", d_out[i], v[j])
        d_scores = (weights * (d_weights - mean[i][..., None])).astype(q.dtype)
        acc = acc + _einsum("bgrqk,bgkh->bgrqh", d_scores, k[j])
        dq = lax.dynamic_update_index_in_dim(dq, acc.astype(dq.dtype), i, 0)
        dk = dk.at[j].add(_einsum("bgrqk,bgrqh->bgkh", d_scores, q[i]))
        dv = dv.at[j].add(_einsum("bgrqk,bgrqh->bgkh", weights.astype(v.dtype), d_out[i]))
        return (dq, dk, dv, acc), None

    start = (
        jnp.zeros(q.shape, q.dtype),
        jnp.zeros(k.shape, jnp.float32),
        jnp.zeros(v.shape, jnp.float32),
        jnp.zeros(q.shape[1:], jnp.float32),
    )
    (dq, dk, dv, _), _ = lax.scan(pair, start, (rows, columns))
    return dq, dk.astype(k.dtype), dv.astype(v.dtype), np.zeros(segments.shape, jax.dtypes.float0)


_attention.defvjp(_forward, _backward)


def _pairs(blocks: int) -> tuple[Array, Array]:
    """The blocks on and below the diagonal, row by row: [n (n + 1) / 2] int32 each."""
    rows, columns = np.tril_indices(blocks)
    return jnp.asarray(rows, jnp.int32), jnp.asarray(columns, jnp.int32)


def _scores(q: Array, k: Array, segments: Array, i: Array, j: Array) -> Array:
    """Masked fp32 scores [B, Kh, r, c, c] of query block i and key block j."""
    position = jnp.arange(q.shape[-2])
    causal = (i > j) | (position[:, None] >= position[None, :])
    same = segments[i][:, :, None] == segments[j][:, None, :]
    return jnp.where((same & causal)[:, None, None], _einsum("bgrqh,bgkh->bgrqk", q, k), _MASKED)


def scan_positions(
    function: Callable[[_Carry, Any], tuple[_Carry, Any]], carry: _Carry, inputs: Any, *, block: int
) -> tuple[_Carry, Any]:
    """Runs a layer over a row in blocks of positions, keeping for the backward pass only what goes in and the carries.

    Args:
        function: (carry, inputs of c positions) to (carry, outputs of c positions).
        inputs: arrays [B, T, ...].
        block: c; divides T.

    Returns:
        The last carry, and the outputs [B, T, ...].

    Raises:
        ValueError: `block` does not divide T.
    """
    length = jax.tree.leaves(inputs)[0].shape[1]
    if length % block:
        raise ValueError(f"scan_positions: {length} positions are not whole blocks of {block}")
    split = jax.tree.map(lambda x: _blocks(x, 0, block), inputs)
    carry, outputs = lax.scan(jax.checkpoint(function), carry, split)

    def join(x: Array) -> Array:
        return jnp.moveaxis(x, 0, 1).reshape(x.shape[1], length, *x.shape[3:])

    return carry, jax.tree.map(join, outputs)
