"""Cross-entropy over a large vocabulary without ever holding all logits.

The vocabulary of Qwen3.5 has 248,320 entries, so the logits of one packed row would be gigabytes. Everything here walks
the tokens in chunks: at most `chunk` x V fp32 logits exist at a time, in the forward and in the backward pass.

Letters: N tokens, D hidden size, V vocabulary, C chunk of tokens, K kept logits.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


class TokenSums(NamedTuple):
    """Sums over the tokens of one call; add them up over calls and divide once, by the global weight.

    Attributes:
        nll: weighted sum of negative log-likelihoods in nats, fp32 scalar. The only field with a gradient.
        correct: weighted count of tokens whose target is the arg-max, fp32 scalar.
        weight: sum of the weights, fp32 scalar.
    """

    nll: jax.Array
    correct: jax.Array
    weight: jax.Array


def sum_nll(
    hidden_NxD: jax.Array,
    unembed_weight_VxD: jax.Array,
    targets_N: jax.Array,
    weights_N: jax.Array,
    *,
    chunk: int,
) -> TokenSums:
    """Weighted sum of -log softmax(hidden @ unembed.T)[target] over the tokens.

    Tokens of weight 0 cost nothing: only the others are walked. The gradients are made in the same walk that makes the
    loss, so that logits are computed once, not again in the backward pass. Products run in the dtype of `hidden_NxD`
    and accumulate in fp32; softmax and sums are fp32.

    Args:
        hidden_NxD: hidden states after the final norm.
        unembed_weight_VxD: output embedding (the input embedding where tied).
        targets_N: int32 target ids; any valid id where the weight is 0.
        weights_N: fp32 weights >= 0, constants: no gradient flows to them.
        chunk: tokens whose logits exist at once.

    Returns:
        `TokenSums`; all zero, with zero gradients, when no weight is positive.
    """
    if chunk < 1:
        raise ValueError(f"sum_nll: chunk must be >= 1, got {chunk}")
    if hidden_NxD.shape[0] == 0:
        raise ValueError("sum_nll: no tokens (N = 0)")
    weights_N = lax.stop_gradient(weights_N.astype(jnp.float32))
    return _sum_nll(hidden_NxD, unembed_weight_VxD, targets_N, weights_N, min(chunk, hidden_NxD.shape[0]))


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def _sum_nll(hidden_NxD, unembed_weight_VxD, targets_N, weights_N, chunk):
    """The loss without gradients (evaluation)."""
    walk = Walk.over(weights_N, chunk)

    def body(i, sums: TokenSums) -> TokenSums:
        h_CxD, y_C, w_C = walk.chunk(i, hidden_NxD, targets_N, weights_N)
        logits_CxV = chunk_logits(h_CxD, unembed_weight_VxD)
        return _add(sums, _chunk_sums(logits_CxV, log_normaliser(logits_CxV), y_C, w_C))

    return lax.fori_loop(0, walk.count, body, _no_sums())


def _sum_nll_forward(hidden_NxD, unembed_weight_VxD, targets_N, weights_N, chunk):
    """The loss and, in the same walk, d nll / d hidden and d nll / d unembed."""
    walk = Walk.over(weights_N, chunk)
    weight_VxD = unembed_weight_VxD.astype(hidden_NxD.dtype)

    def body(i, carry):
        sums, d_hidden_MxD, d_weight_VxD = carry
        h_CxD, y_C, w_C = walk.chunk(i, hidden_NxD, targets_N, weights_N)
        logits_CxV = chunk_logits(h_CxD, unembed_weight_VxD)
        lse_C = log_normaliser(logits_CxV)
        d_logits_CxV = jnp.exp(logits_CxV - lse_C[:, None])
        d_logits_CxV = d_logits_CxV - (jnp.arange(logits_CxV.shape[1]) == y_C[:, None])
        d_logits_CxV = (d_logits_CxV * w_C[:, None]).astype(h_CxD.dtype)
        d_h_CxD = jnp.dot(d_logits_CxV, weight_VxD, preferred_element_type=jnp.float32)
        d_weight_VxD += jnp.dot(d_logits_CxV.T, h_CxD, preferred_element_type=jnp.float32)
        d_hidden_MxD = lax.dynamic_update_slice(d_hidden_MxD, d_h_CxD.astype(hidden_NxD.dtype), (i * chunk, 0))
        return _add(sums, _chunk_sums(logits_CxV, lse_C, y_C, w_C)), d_hidden_MxD, d_weight_VxD

    start = (
        _no_sums(),
        jnp.zeros((walk.order_M.shape[0], hidden_NxD.shape[1]), hidden_NxD.dtype),
        jnp.zeros(unembed_weight_VxD.shape, jnp.float32),
    )
    sums, d_hidden_MxD, d_weight_VxD = lax.fori_loop(0, walk.count, body, start)
    return sums, (walk.restore(d_hidden_MxD), d_weight_VxD.astype(unembed_weight_VxD.dtype), targets_N.shape)


def _sum_nll_backward(chunk, residual, cotangent: TokenSums):
    del chunk
    d_hidden_NxD, d_weight_VxD, shape = residual
    g = cotangent.nll
    no_gradient = np.zeros(shape, jax.dtypes.float0)
    return (
        (g * d_hidden_NxD).astype(d_hidden_NxD.dtype),
        (g * d_weight_VxD).astype(d_weight_VxD.dtype),
        no_gradient,
        jnp.zeros(shape, jnp.float32),
    )


_sum_nll.defvjp(_sum_nll_forward, _sum_nll_backward)


class Walk(NamedTuple):
    """The tokens that carry a weight, in their order, in chunks of C.

    Attributes:
        order_M: token index per place, M = N rounded up to whole chunks; N marks the empty places after the last one.
        place_N: the place of each token; those without a weight have empty places.
        count: number of chunks that hold a token with a weight; a traced int32.
        size: C.
    """

    order_M: jax.Array
    place_N: jax.Array
    count: jax.Array
    size: int

    @classmethod
    def over(cls, weights_N: jax.Array, size: int) -> "Walk":
        tokens = weights_N.shape[0]
        order_N = jnp.argsort(weights_N == 0, stable=True).astype(jnp.int32)
        place_N = jnp.zeros(tokens, jnp.int32).at[order_N].set(jnp.arange(tokens, dtype=jnp.int32))
        weighted = jnp.sum(weights_N != 0, dtype=jnp.int32)
        order_M = jnp.pad(order_N, (0, -tokens % size))
        order_M = jnp.where(jnp.arange(order_M.shape[0]) < weighted, order_M, tokens)
        count = (weighted + size - 1) // size
        return cls(order_M, place_N, count, size)

    def chunk(self, i: jax.Array, *arrays_Nx: jax.Array) -> tuple[jax.Array, ...]:
        """The rows of chunk `i` of each array; zeros in empty places."""
        index_C = lax.dynamic_slice(self.order_M, (i * self.size,), (self.size,))
        return tuple(array.at[index_C].get(mode="fill", fill_value=0) for array in arrays_Nx)

    def restore(self, array_Mx: jax.Array) -> jax.Array:
        """From walking order back to token order."""
        return array_Mx[self.place_N]


def chunk_logits(hidden_CxD: jax.Array, unembed_weight_VxD: jax.Array) -> jax.Array:
    """fp32 logits [C, V]; the product runs in the dtype of `hidden_CxD`."""
    weight_VxD = unembed_weight_VxD.astype(hidden_CxD.dtype)
    return lax.dot_general(hidden_CxD, weight_VxD, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)


def log_normaliser(logits_CxV: jax.Array) -> jax.Array:
    """log sum exp over the last axis."""
    return jax.nn.logsumexp(logits_CxV, axis=-1)


def _chunk_sums(logits_CxV: jax.Array, lse_C: jax.Array, targets_C: jax.Array, weights_C: jax.Array) -> TokenSums:
    target_logit_C = jnp.take_along_axis(logits_CxV, targets_C[:, None], axis=1)[:, 0]
    correct_C = (jnp.argmax(logits_CxV, axis=-1) == targets_C).astype(jnp.float32)
    return TokenSums(
        nll=jnp.sum(weights_C * (lse_C - target_logit_C)),
        correct=jnp.sum(weights_C * correct_C),
        weight=jnp.sum(weights_C),
    )


def _no_sums() -> TokenSums:
    return TokenSums(jnp.float32(0), jnp.float32(0), jnp.float32(0))


def _add(a: TokenSums, b: TokenSums) -> TokenSums:
    return TokenSums(a.nll + b.nll, a.correct + b.correct, a.weight + b.weight)


def sampled_logprobs(
    hidden_NxD: jax.Array,
    unembed_weight_VxD: jax.Array,
    targets_N: jax.Array,
    weights_N: jax.Array,
    *,
    temperature: float,
    top_k: int,
    top_p: float,
    chunk: int,
) -> jax.Array:
    """Log-probabilities of the targets under the distribution they were sampled from: tempered, cut, renormalised.

    A target just outside the kept set (its rank may differ between two engines by rounding) is scored against the kept
    set's normaliser, so the result is finite and close to what the other engine says.

    Args:
        hidden_NxD, unembed_weight_VxD, targets_N, weights_N, chunk: as for `sum_nll`.
        temperature: > 0.
        top_k: most likely tokens kept, >= 1.
        top_p: of those, the smallest set that holds this share of their probability.

    Returns:
        fp32 [N]; 0 where the weight is 0. Not differentiable.
    """
    size = min(chunk, hidden_NxD.shape[0])
    walk = Walk.over(weights_N, size)

    def body(i, logprobs_M):
        h_CxD, y_C = walk.chunk(i, hidden_NxD, targets_N)
        logits_CxV = chunk_logits(h_CxD, unembed_weight_VxD) / temperature
        normaliser_C = _kept_log_normaliser(logits_CxV, top_k, top_p)
        target_logit_C = jnp.take_along_axis(logits_CxV, y_C[:, None], axis=1)[:, 0]
        return lax.dynamic_update_slice(logprobs_M, target_logit_C - normaliser_C, (i * size,))

    logprobs_M = lax.fori_loop(0, walk.count, body, jnp.zeros(walk.order_M.shape, jnp.float32))
    return jnp.where(weights_N != 0, walk.restore(logprobs_M), 0.0)


def _kept_log_normaliser(logits_CxV: jax.Array, top_k: int, top_p: float) -> jax.Array:
    vocab = logits_CxV.shape[-1]
    if top_k >= vocab and top_p >= 1:
        return log_normaliser(logits_CxV)
    values_CxK, _ = lax.top_k(logits_CxV, min(top_k, vocab))
    return log_normaliser(kept_values(values_CxK, top_p))


def kept_values(values_CxK: jax.Array, top_p: float) -> jax.Array:
    """Logits in falling order, -inf from the first on before which `top_p` of their probability lies."""
    if top_p >= 1:
        return values_CxK
    probs_CxK = jax.nn.softmax(values_CxK, axis=-1)
    before_CxK = jnp.cumsum(probs_CxK, axis=-1) - probs_CxK
    return jnp.where(before_CxK < top_p, values_CxK, -jnp.inf)
