"""Causal attention over long packed rows that never holds a T x T array, forward or backward.

A row is cut into blocks of positions, and a scan walks the pairs (block of queries, block of keys) on and below the
diagonal, row by row: half of the work of a full square, with a trip count known at compile time. Along a row of pairs
the softmax is computed online (Milakov and Gimelshein 2018; Dao et al. 2022): a running maximum m, the sum l of
exp(score - m) and the sum of exp(score - m) v, rescaled when m grows. The backward pass keeps q, k, v, the output and
one number per query and head (the log of the normaliser), and computes the weights anew, pair by pair.

Letters beyond those of `config`: n blocks of b positions, R query heads per key head.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

MASKED = -1e30
"""Score of a key that must not be seen. Finite, so that blocks without a visible key have finite values: what they add
is scaled to zero by the first visible key, and every position sees at least itself."""

BLOCK = 512

_einsum = partial(jnp.einsum, preferred_element_type=jnp.float32)


class _Pairs(NamedTuple):
    """Indices of the blocks on and below the diagonal, row by row; int32, one per pair."""

    row: Array
    column: Array

    @classmethod
    def of(cls, blocks: int) -> "_Pairs":
        return cls(*(jnp.asarray(index, jnp.int32) for index in np.tril_indices(blocks)))


class _Saved(NamedTuple):
    """What the backward pass needs; q, k, v, out in blocks."""

    q: Array
    k: Array
    v: Array
    segments: Array
    pairs: _Pairs
    out: Array
    """[n, B, b, Kh, R, H] fp32."""
    log_norm: Array
    """[n, B, Kh, R, b] fp32: the log of the sum of exp(scores) of each query."""


def blockwise_attention(
    q_BxTxNxH: Array, k_BxTxKhxH: Array, v_BxTxKhxH: Array, segment_ids_BxT: Array, *, block: int = BLOCK
) -> Array:
    """softmax(q k^T) v, causal inside each segment.

    Products take the dtype of q and v and accumulate in fp32; scores, softmax and sums are fp32.

    Args:
        q_BxTxNxH: queries, already scaled; query head h uses key head h // (N / Kh).
        segment_ids_BxT: a position sees those at or before it with its own id.
        block: positions per block; the largest inner array is [B, N, block, block].

    Returns:
        [B, T, N, H] fp32.
    """
    batch, length, heads, size = q_BxTxNxH.shape
    kv_heads = k_BxTxKhxH.shape[2]
    q, k, v, segments = (_to_blocks(x, block) for x in (q_BxTxNxH, k_BxTxKhxH, v_BxTxKhxH, segment_ids_BxT))
    # The masks depend on nothing that changes from layer to layer. Under a scan over layers, JAX would therefore
    # compute them once, for all pairs, and keep them: T x T / 2 bytes per row and head. So they are made to depend on
    # the queries.
    _, segments, pairs = jax.lax.optimization_barrier((jax.lax.stop_gradient(q), segments, _Pairs.of(q.shape[0])))
    out = _attention(q.reshape(*q.shape[:3], kv_heads, -1, size), k, v, segments, pairs)
    return jnp.moveaxis(out, 0, 1).reshape(batch, -1, heads, size)[:, :length]


def _to_blocks(x: Array, block: int) -> Array:
    """[B, T, ...] to [n, B, b, ...]. What fills the last block lies after every real position, which cannot see it."""
    x = jnp.pad(x, ((0, 0), (0, -x.shape[1] % block)) + ((0, 0),) * (x.ndim - 2))
    return jnp.moveaxis(x.reshape(x.shape[0], -1, block, *x.shape[2:]), 1, 0)


@jax.custom_vjp
def _attention(q: Array, k: Array, v: Array, segments: Array, pairs: _Pairs) -> Array:
    """[n, B, b, Kh, R, H] queries, [n, B, b, Kh, H] keys and values, [n, B, b] ids to [n, B, b, Kh, R, H] fp32."""
    return _forward(q, k, v, segments, pairs)[0]


def _forward(q: Array, k: Array, v: Array, segments: Array, pairs: _Pairs) -> tuple[Array, _Saved]:
    blocks, batch, length, kv_heads, repeats, size = q.shape
    per_query = (batch, kv_heads, repeats, length)

    def step(carry: tuple[Array, ...], pair: _Pairs) -> tuple[tuple[Array, ...], None]:
        out, log_norm, top, total, acc = carry
        i, j = pair
        scores = _scores(q, k, segments, i, j)
        first = j == 0
        top = jnp.where(first, MASKED, top)
        new_top = jnp.maximum(top, jnp.max(scores, axis=-1))
        weights = jnp.exp(scores - new_top[..., None])
        kept = jnp.where(first, 0.0, jnp.exp(top - new_top))
        total = total * kept + jnp.sum(weights, axis=-1)
        acc = acc * kept[..., None] + _einsum("bgrtk,bkgh->bgrth", weights.astype(v.dtype), v[j])
        # Written at every pair; the last one of a row, the diagonal, leaves the result.
        out = out.at[i].set(jnp.transpose(acc / total[..., None], (0, 3, 1, 2, 4)))
        return (out, log_norm.at[i].set(new_top + jnp.log(total)), new_top, total, acc), None

    start = (
        jnp.zeros(q.shape, jnp.float32),
        jnp.zeros((blocks, *per_query), jnp.float32),
        jnp.full(per_query, MASKED),
        jnp.zeros(per_query),
        jnp.zeros((*per_query, size)),
    )
    (out, log_norm, *_), _ = jax.lax.scan(step, start, pairs)
    return out, _Saved(q, k, v, segments, pairs, out, log_norm)


def _backward(saved: _Saved, d_out: Array) -> tuple[Any, ...]:
    q, k, v, segments, pairs, out, log_norm = saved
    inner = jnp.einsum("nbtgrh,nbtgrh->nbgrt", out, d_out)
    d_out = d_out.astype(v.dtype)

    def step(carry: tuple[Array, ...], pair: _Pairs) -> tuple[tuple[Array, ...], None]:
        d_q, d_k, d_v = carry
        i, j = pair
        weights = jnp.exp(_scores(q, k, segments, i, j) - log_norm[i][..., None])
        d_weights = _einsum("btgrh,bkgh->bgrtk", d_out[i], v[j])
        d_scores = (weights * (d_weights - inner[i][..., None])).astype(q.dtype)
        d_q = d_q.at[i].add(_einsum("bgrtk,bkgh->btgrh", d_scores, k[j]))
        d_k = d_k.at[j].add(_einsum("bgrtk,btgrh->bkgh", d_scores, q[i]))
        d_v = d_v.at[j].add(_einsum("bgrtk,btgrh->bkgh", weights.astype(v.dtype), d_out[i]))
        return (d_q, d_k, d_v), None

    start = tuple(jnp.zeros(x.shape, jnp.float32) for x in (q, k, v))
    (d_q, d_k, d_v), _ = jax.lax.scan(step, start, pairs)
    no_gradients = jax.tree.map(lambda x: np.zeros(x.shape, jax.dtypes.float0), (segments, pairs))
    return d_q.astype(q.dtype), d_k.astype(k.dtype), d_v.astype(v.dtype), *no_gradients


_attention.defvjp(_forward, _backward)


def _scores(q: Array, k: Array, segments: Array, i: Array, j: Array) -> Array:
    """Masked scores of query block i and key block j, [B, Kh, R, b, b] fp32."""
    length = q.shape[2]
    within = jnp.arange(length)
    causal = (i * length + within)[:, None] >= (j * length + within)[None, :]
    same = segments[i][:, :, None] == segments[j][:, None, :]
    scores = _einsum("btgrh,bkgh->bgrtk", q[i], k[j])
    return jnp.where((causal & same)[:, None, None], scores, MASKED)
