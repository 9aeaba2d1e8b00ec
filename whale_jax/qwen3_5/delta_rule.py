"""The gated delta rule: one position at a time, and many by chunks (Yang et al., "Gated Delta Networks").

Per value head the state S is a Dk x Dv matrix, and one position does

    S <- exp(g) S;    S <- S + k (beta (v - S^T k))^T;    o = S^T q

`recurrent_delta_rule` is that, for decoding. `chunked_delta_rule` does c positions with matrix products (the WY form):
inside a chunk the corrections u of all positions satisfy the unit lower triangular system
(I + A) u = beta (v - exp(G) S^T k), with A_ij = beta_i (k_i . k_j) exp(G_i - G_j) for j < i and G the running sum of g.

Everything here is fp32, the products included, whatever the compute dtype of the model.
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol

import jax
import jax.numpy as jnp
from jax import Array
from jax.lax import Precision

from whale_jax.qwen3_5.triangular import solve_unit_lower

CHUNK = 32
"""Positions per chunk of `chunked_delta_rule`."""

_FORGOTTEN = -128.0
"""A decay rate as good as minus infinity: exp of it is 0 in fp32."""

_einsum = partial(jnp.einsum, precision=Precision.HIGHEST, preferred_element_type=jnp.float32)


class DeltaRule(Protocol):
    """Several positions of the rule; what a kernel for some hardware has to offer to take the place of the chunks.

    Args:
        q, k: [B, T, Hk, Dk] fp32. v: [B, T, Hv, Dv] fp32. g, beta: [B, T, Hv] fp32; both 0 where a position must change
            nothing.
        reset_BxT: True where a sequence begins: the state is zero before it.
        state: [B, Hv, Dk, Dv] fp32, the state before the first position.

    Returns:
        o [B, T, Hv, Dv] and the state after position T - 1. Differentiable in all but `reset_BxT`.
    """

    def __call__(
        self, q: Array, k: Array, v: Array, g: Array, beta: Array, reset_BxT: Array, state: Array, /
    ) -> tuple[Array, Array]: ...


class RecurrentRule(Protocol):
    """One position of the rule, as `recurrent_delta_rule`; `state` may be more than that of one layer."""

    def __call__(self, q: Array, k: Array, v: Array, g: Array, beta: Array, state: Array, /) -> tuple[Array, Array]: ...


def recurrent_delta_rule(
    q_BxHkxDk: Array, k_BxHkxDk: Array, v_BxHvxDv: Array, g_BxHv: Array, beta_BxHv: Array, state: Array
) -> tuple[Array, Array]:
    """One position. All fp32; state is [B, Hv, Dk, Dv]. Returns o [B, Hv, Dv] and the new state."""
    repeats = v_BxHvxDv.shape[1] // k_BxHkxDk.shape[1]
    q, k = (jnp.repeat(t, repeats, axis=1) for t in (q_BxHkxDk, k_BxHkxDk))
    # Both reads in one pass over the old state: of the new one, S^T q is exp(g) S^T q + (k . q) u.
    read_k, read_q = jnp.moveaxis(_einsum("bhck,bhkv->bhcv", jnp.stack([k, q], axis=2), state), 2, 0)
    decay = jnp.exp(g_BxHv)[..., None]
    u = beta_BxHv[..., None] * (v_BxHvxDv - decay * read_k)
    o = decay * read_q + jnp.sum(q * k, axis=-1, keepdims=True) * u
    return o, state * decay[..., None] + k[..., None] * u[..., None, :]


def chunked_delta_rule(
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    beta: Array,
    reset_BxT: Array,
    state: Array,
    *,
    chunk: int = CHUNK,
    solve: Callable[[Array, Array], Array] = solve_unit_lower,
) -> tuple[Array, Array]:
    """Several positions, by chunks; equals the recurrence up to rounding.

    Args:
        q, k: [B, T, Hk, Dk] fp32. v: [B, T, Hv, Dv] fp32. g, beta: [B, T, Hv] fp32; both 0 where a position must change
            nothing.
        reset_BxT: True where a sequence begins: the state is zero before it.
        state: [B, Hv, Dk, Dv] fp32, the state before the first position.
        chunk: positions handled together, a power of two.
        solve: (A, R) to X with (I + A) X = R for strictly lower triangular A.

    Returns:
        o [B, T, Hv, Dv] and the state after position T - 1.
    """
    length, key_heads, value_heads = q.shape[1], k.shape[2], v.shape[2]
    repeats = value_heads // key_heads
    pad = -length % chunk
    q, k, v, g, beta = (_to_chunks(t, pad, chunk) for t in (q, k, v, g, beta))
    segment = jnp.cumsum(_to_chunks(reset_BxT[..., None], pad, chunk).astype(jnp.int32), axis=-1)  # [n, B, 1, c]
    lower = jnp.tril(jnp.ones((chunk, chunk), bool))
    strictly_lower = jnp.tril(jnp.ones((chunk, chunk), bool), -1)
    coarse, fine = _running_sums(g)
    between = (coarse[..., :, None] - coarse[..., None, :]) + (fine[..., :, None] - fine[..., None, :])
    together = (segment[..., :, None] == segment[..., None, :]) & lower
    # Masked before exp: above the diagonal the difference is positive and could overflow.
    decay = jnp.exp(jnp.where(together, between, -jnp.inf))
    kk, qk = (
        jnp.repeat(_einsum("nbhik,nbhjk->nbhij", t, k), repeats, axis=2)
        if repeats > 1
        else _einsum("nbhik,nbhjk->nbhij", t, k)
        for t in (k, q)
    )
    if repeats > 1:
        q, k = (jnp.repeat(t, repeats, axis=2) for t in (q, k))
    system = jnp.where(strictly_lower, kk * decay * beta[..., None], 0.0)
    # How much of the incoming state a position sees, and how much of a position the outgoing state.
    from_start = jnp.where(segment == 0, jnp.exp(coarse + fine), 0.0)[..., None]
    left = (coarse[..., -1:] - coarse) + (fine[..., -1:] - fine)
    to_end = jnp.where(segment == segment[..., -1:], jnp.exp(left), 0.0)[..., None]
    solved = solve(system, jnp.concatenate([v, k * from_start], axis=-1) * beta[..., None])
    u_v, u_k = jnp.split(solved, [v.shape[-1]], axis=-1)

    def step(state: Array, inputs: tuple[Array, ...]) -> tuple[Array, tuple[Array, Array]]:
        u_v, u_k, k_end, kept = inputs
        u = u_v - _einsum("bhik,bhkv->bhiv", u_k, state)
        return state * kept + _einsum("bhik,bhiv->bhkv", k_end, u), (u, state)

    state, (u, before) = jax.lax.scan(step, state, (u_v, u_k, k * to_end, from_start[..., -1:, :]))
    o = _einsum("nbhik,nbhkv->nbhiv", q * from_start, before) + _einsum("nbhij,nbhjv->nbhiv", qk * decay, u)
    chunks, batch = o.shape[:2]
    o = jnp.transpose(o, (1, 0, 3, 2, 4)).reshape(batch, chunks * chunk, value_heads, -1)
    return o[:, :length], state


def _running_sums(g: Array) -> tuple[Array, Array]:
    """The running sum of g [..., c] along a chunk, in two parts whose differences are right to fp32's precision.

    In one part, a large step spoils all differences after it: behind g = -100 the sum's spacing is 8e-6, and the decay
    between two later positions is off by that. Here the first part is exact: it sums multiples of 1/512 to at most
    128 c in absolute value, which fp32 holds up to c = 256. The second sums remainders of at most 1/1024.
    """
    g = jnp.maximum(g, _FORGOTTEN)
    coarse = jax.lax.stop_gradient(jnp.round(g * 512) / 512)
    lower = jnp.tril(jnp.ones((g.shape[-1],) * 2, jnp.float32))
    return _einsum("nbhj,ij->nbhi", coarse, lower), _einsum("nbhj,ij->nbhi", g - coarse, lower)


def _to_chunks(x: Array, pad: int, chunk: int) -> Array:
    """[B, T, H, ...] to [n, B, H, c, ...], padded with zeros to whole chunks."""
    x = jnp.pad(x, ((0, 0), (0, pad)) + ((0, 0),) * (x.ndim - 2))
    x = x.reshape(x.shape[0], -1, chunk, *x.shape[2:])
    return jnp.moveaxis(x, (1, 3, 2), (0, 2, 3))
