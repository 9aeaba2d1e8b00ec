"""The cross-entropy of `loss` on a mesh: rows stay on their chips, the vocabulary is divided over `tensor` and `fsdp`.

Every step gathers one chunk of tokens per chip within an `fsdp` group, and each chip makes the logits of all of them
for its own part of the vocabulary. So no chip ever holds the whole output table, its gradient, or more logits than
`loss` would hold for one chunk.

Letters as in `loss`; a chip holds N / (data x fsdp) tokens and V / (tensor x fsdp) vocabulary entries.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh, PartitionSpec

from whale_jax.qwen3_5.sharding import DATA, FSDP, ROWS, TABLE, TENSOR
from whale_jax.training.loss import TokenSums, Walk, chunk_logits, kept_values, log_normaliser

_VOCABULARY = (TENSOR, FSDP)
_TABLE_SPEC = PartitionSpec(*TABLE["embed"])
_ROW_SPEC = PartitionSpec(ROWS)


def sum_nll_sharded(
    hidden_NxD: Array, unembed_weight_VxD: Array, targets_N: Array, weights_N: Array, *, chunk: int, mesh: Mesh
) -> TokenSums:
    """`loss.sum_nll` on a mesh: the same sums and gradients up to rounding.

    Args:
        hidden_NxD, targets_N, weights_N: divided over `data` and `fsdp`.
        unembed_weight_VxD: divided over `tensor` and `fsdp` as the sharding table says.
        chunk: tokens of one chip whose logits exist at once.
    """
    if chunk < 1:
        raise ValueError(f"sum_nll_sharded: chunk must be >= 1, got {chunk}")
    weights_N = lax.stop_gradient(weights_N.astype(jnp.float32))
    return _sum_nll(hidden_NxD, unembed_weight_VxD, targets_N, weights_N, chunk, mesh)


@partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _sum_nll(hidden_NxD, unembed_weight_VxD, targets_N, weights_N, chunk, mesh):
    sums, _ = _forward(hidden_NxD, unembed_weight_VxD, targets_N, weights_N, chunk, mesh)
    return sums


def _forward(hidden_NxD, unembed_weight_VxD, targets_N, weights_N, chunk, mesh):
    """The loss and, in the same walk, d nll / d hidden and d nll / d unembed."""

    def local(hidden_NxD, weight_VxD, targets_N, weights_N):
        head = _Head.of(weight_VxD.astype(hidden_NxD.dtype))
        walk, count = _walk(weights_N, chunk)

        def body(i, carry):
            nll, correct, d_hidden_MxD, d_weight_VxD = carry
            h, y, w = (_gather(t) for t in walk.chunk(i, hidden_NxD, targets_N, weights_N))
            logits = chunk_logits(h, head.weight)
            lse = _log_normaliser(logits)
            target, right = head.at_target(logits, y)
            d_logits = jnp.exp(logits - lse[:, None]) - (head.ids == y[:, None])
            d_logits = (d_logits * w[:, None]).astype(h.dtype)
            d_h = lax.psum(jnp.dot(d_logits, head.weight, preferred_element_type=jnp.float32), TENSOR)
            d_h = lax.psum_scatter(d_h, FSDP, scatter_dimension=0, tiled=True)
            d_weight_VxD += jnp.dot(d_logits.T, h, preferred_element_type=jnp.float32)
            d_hidden_MxD = lax.dynamic_update_slice(d_hidden_MxD, d_h.astype(h.dtype), (i * walk.size, 0))
            return nll + jnp.sum(w * (lse - target)), correct + jnp.sum(w * right), d_hidden_MxD, d_weight_VxD

        start = (
            jnp.float32(0),
            jnp.float32(0),
            jnp.zeros((walk.order_M.shape[0], hidden_NxD.shape[1]), hidden_NxD.dtype),
            jnp.zeros(head.weight.shape, jnp.float32),
        )
        nll, correct, d_hidden_MxD, d_weight = lax.fori_loop(0, count, body, start)
        # The sums of a chunk are already those of its fsdp group.
        sums = TokenSums(lax.psum(nll, DATA), lax.psum(correct, DATA), lax.psum(jnp.sum(weights_N), ROWS))
        return sums, walk.restore(d_hidden_MxD), lax.psum(head.stored(d_weight), DATA).astype(weight_VxD.dtype)

    sums, d_hidden_NxD, d_weight_VxD = jax.shard_map(
        local,
        mesh=mesh,
        in_specs=(_ROW_SPEC, _TABLE_SPEC, _ROW_SPEC, _ROW_SPEC),
        out_specs=(PartitionSpec(), _ROW_SPEC, _TABLE_SPEC),
        check_vma=False,  # what is equal on all chips of a group cannot be told from the types of a loop's carry
    )(hidden_NxD, unembed_weight_VxD, targets_N, weights_N)
    return sums, (d_hidden_NxD, d_weight_VxD)


def _backward(chunk, mesh, residual, cotangent: TokenSums):
    del chunk, mesh
    d_hidden_NxD, d_weight_VxD = residual
    tokens = d_hidden_NxD.shape[:1]
    return (
        (cotangent.nll * d_hidden_NxD).astype(d_hidden_NxD.dtype),
        (cotangent.nll * d_weight_VxD).astype(d_weight_VxD.dtype),
        np.zeros(tokens, jax.dtypes.float0),
        jnp.zeros(tokens, jnp.float32),
    )


_sum_nll.defvjp(_forward, _backward)


def sampled_logprobs_sharded(
    hidden_NxD: Array,
    unembed_weight_VxD: Array,
    targets_N: Array,
    weights_N: Array,
    *,
    temperature: float,
    top_k: int,
    top_p: float,
    chunk: int,
    mesh: Mesh,
) -> Array:
    """`loss.sampled_logprobs` on a mesh, arrays divided as for `sum_nll_sharded`: fp32 [N], not differentiable."""
    hidden_NxD, unembed_weight_VxD = lax.stop_gradient((hidden_NxD, unembed_weight_VxD))
    vocabulary = unembed_weight_VxD.shape[0]

    def local(hidden_NxD, weight_VxD, targets_N, weights_N):
        head = _Head.of(weight_VxD.astype(hidden_NxD.dtype))
        walk, count = _walk(weights_N, chunk)

        def body(i, logprobs_M):
            h, y = (_gather(t) for t in walk.chunk(i, hidden_NxD, targets_N))
            logits = chunk_logits(h, head.weight) / temperature
            if top_k >= vocabulary and top_p >= 1:
                normaliser = _log_normaliser(logits)
            else:
                values, _ = lax.top_k(logits, min(top_k, logits.shape[-1]))
                values = lax.all_gather(values, _VOCABULARY, axis=1, tiled=True)
                values, _ = lax.top_k(values, min(top_k, vocabulary))
                normaliser = log_normaliser(kept_values(values, top_p))
            target, _ = head.at_target(logits, y)
            mine = target - normaliser
            mine = lax.dynamic_slice(mine, (lax.axis_index(FSDP) * walk.size,), (walk.size,))
            return lax.dynamic_update_slice(logprobs_M, mine, (i * walk.size,))

        logprobs_M = lax.fori_loop(0, count, body, jnp.zeros(walk.order_M.shape, jnp.float32))
        return jnp.where(weights_N != 0, walk.restore(logprobs_M), 0.0)

    return jax.shard_map(
        local,
        mesh=mesh,
        in_specs=(_ROW_SPEC, _TABLE_SPEC, _ROW_SPEC, _ROW_SPEC),
        out_specs=_ROW_SPEC,
        check_vma=False,
    )(hidden_NxD, unembed_weight_VxD, targets_N, weights_N)


def _walk(weights_N: Array, chunk: int) -> tuple[Walk, Array]:
    """This chip's tokens in chunks, and the number of steps that all chips make together."""
    walk = Walk.over(weights_N, min(chunk, weights_N.shape[0]))
    return walk, lax.pmax(walk.count, ROWS)


def _gather(x_Cx: Array) -> Array:
    """The chunks of all chips of an `fsdp` group, one after the other."""
    return lax.all_gather(x_Cx, FSDP, axis=0, tiled=True)


def _log_normaliser(logits: Array) -> Array:
    """log sum exp over all parts of the vocabulary."""
    top = lax.pmax(jnp.max(logits, axis=-1), _VOCABULARY)
    return top + jnp.log(lax.psum(jnp.sum(jnp.exp(logits - top[:, None]), axis=-1), _VOCABULARY))


class _Head(NamedTuple):
    """This chip's part of the output table, and the ids of its entries."""

    weight: Array
    ids: Array

    @classmethod
    def of(cls, stored: Array) -> "_Head":
        """From the storage layout (columns over `fsdp`) to whole rows of fewer entries."""
        weight = lax.all_to_all(stored, FSDP, split_axis=0, concat_axis=1, tiled=True)
        part = lax.axis_index(TENSOR) * lax.axis_size(FSDP) + lax.axis_index(FSDP)
        return cls(weight, part * weight.shape[0] + jnp.arange(weight.shape[0]))

    def stored(self, array: Array) -> Array:
        """Back to the storage layout."""
        return lax.all_to_all(array, FSDP, split_axis=1, concat_axis=0, tiled=True)

    def at_target(self, logits: Array, targets: Array) -> tuple[Array, Array]:
        """The target's logit, and 1.0 where it is the arg-max (of equal ones the first), from all parts."""
        target = lax.psum(jnp.sum(jnp.where(self.ids == targets[:, None], logits, 0.0), axis=-1), _VOCABULARY)
        best = jnp.max(logits, axis=-1)
        here = best == lax.pmax(best, _VOCABULARY)
        first = jnp.where(here, self.ids[jnp.argmax(logits, axis=-1)], jnp.iinfo(jnp.int32).max)
        return target, (lax.pmin(first, _VOCABULARY) == targets).astype(jnp.float32)
