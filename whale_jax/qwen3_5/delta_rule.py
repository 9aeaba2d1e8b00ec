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


def recurrent_delta_rule(
    q_BxHkxDk: Array, k_BxHkxDk: Array, v_BxHvxDv: Array, g_BxHv: Array, beta_BxHv: Array, state: Array
) -> tuple[Array, Array]:
    """One position. All fp32; state is [B, Hv, Dk, Dv]. Returns o [B, Hv, Dv] and the new state."""
    repeats = v_BxHvxDv.shape[1] // k_BxHkxDk.shape[1]
    q, k = (jnp.repeat(t, repeats, axis=1) for t in (q_BxHkxDk, k_BxHkxDk))
    state = state * jnp.exp(g_BxHv)[..., None, None]
    read = jnp.sum(state * k[..., None], axis=-2)
    state = state + k[..., None] * (beta_BxHv[..., None] * (v_BxHvxDv - read))[..., None, :]
    return jnp.sum(state * q[..., None], axis=-2), state


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
    total = _einsum("nbhj,ij->nbhi", g, lower.astype(jnp.float32))
    together = (segment[..., :, None] == segment[..., None, :]) & lower
    # Masked before exp: above the diagonal the difference is positive and could overflow.
    decay = jnp.exp(jnp.where(together, total[..., :, None] - total[..., None, :], -jnp.inf))
    kk, qk = (
        jnp.repeat(_einsum("nbhik,nbhjk->nbhij", t, k), repeats, axis=2)
        if repeats > 1
        else _einsum("nbhik,nbhjk->nbhij", t, k)
        for t in (k, q)
    )
    if repeats > 1:
        q, k = (jnp.repeat(t, repeats, axis=2) for t in (q, k))
    system = jnp.where(strictly_lower, kk * decay * beta[..., None], 0.0)
    from_start = jnp.where(segment == 0, jnp.exp(total), 0.0)[
        ..., None
    ]  # how much of the incoming state a position sees
    to_end = jnp.where(segment == segment[..., -1:], jnp.exp(total[..., -1:] - total), 0.0)[..., None]
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


def _to_chunks(x: Array, pad: int, chunk: int) -> Array:
    """[B, T, H, ...] to [n, B, H, c, ...], padded with zeros to whole chunks."""
    x = jnp.pad(x, ((0, 0), (0, pad)) + ((0, 0),) * (x.ndim - 2))
    x = x.reshape(x.shape[0], -1, chunk, *x.shape[2:])
    return jnp.moveaxis(x, (1, 3, 2), (0, 2, 3))
