"""Gated DeltaNet: the linear-attention layer of Qwen3.5 (PAPER section 7).

Per value head the state S is a Dk x Dv matrix, and one position does

    S <- exp(g) S;    S <- S + k (beta (v - S^T k))^T;    o = S^T q

`recurrent_delta_rule` is that, one position at a time, for decoding. `chunked_delta_rule` does c positions with matrix
products (the WY form of Yang et al., "Gated Delta Networks"): inside a chunk the corrections u of all positions satisfy
the unit lower triangular system (I + A) u = beta (v - exp(G) S^T k), with A_ij = beta_i (k_i . k_j) exp(G_i - G_j) for
j < i and G the running sum of g.

Gates, norms, state and the triangular system are fp32 whatever the compute dtype.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.lax import Precision

from whale_jax.qwen3_5.blockwise import scan_positions
from whale_jax.qwen3_5.config import Qwen35Config
from whale_jax.qwen3_5.layers import gated_rms_norm, l2_norm
from whale_jax.qwen3_5.triangular import solve_unit_lower

CHUNK = 32
"""Positions per chunk; see `chunked_delta_rule`."""

POSITION_BLOCK = 2048
"""Longer rows are trained on by blocks of this many positions, a multiple of the chunk; rows that are not whole blocks
are taken whole."""

_einsum = partial(jnp.einsum, precision=Precision.HIGHEST, preferred_element_type=jnp.float32)


class Rows(NamedTuple):
    """What the layer must know about the positions of a batch of rows."""

    valid_BxT: Array
    """False at padding, which must change nothing."""
    reset_BxT: Array
    """True at the first position of a sequence: nothing is carried into it."""
    count_B: Array | None
    """Valid leading positions of each row when a cache is advanced; None in training, where nothing is carried out."""


def delta_net(
    config: Qwen35Config, params: dict[str, Array], x_BxTxD: Array, rows: Rows, window_BxWxQ: Array, state: Array
) -> tuple[Array, Array, Array]:
    """The whole layer over several positions.

    Args:
        x_BxTxD: the normed input.
        window_BxWxQ: the conv inputs just before the rows.
        state: [B, Hv, Dk, Dv] fp32, the state just before the rows.

    Returns:
        Output [B, T, D], and the window and the state after each row's last valid position.
    """
    mixed_BxTxQ = x_BxTxD @ params["qkv"]
    length = x_BxTxD.shape[1]
    if rows.count_B is None and length > POSITION_BLOCK and length % POSITION_BLOCK == 0:
        z, a, b = (x_BxTxD @ params[name] for name in ("z", "a", "b"))
        y, new_state = _by_blocks(config, params, (mixed_BxTxQ, z, a, b), rows, window_BxWxQ, state)
        return y @ params["out"], window_BxWxQ, new_state
    padded = jnp.concatenate([window_BxWxQ.astype(mixed_BxTxQ.dtype), mixed_BxTxQ], axis=1)
    y, new_state = _mix(config, params, padded, lambda name: x_BxTxD @ params[name], rows, state)
    y = y @ params["out"]
    if rows.count_B is None:
        return y, window_BxWxQ, new_state
    take = rows.count_B[:, None] + jnp.arange(config.conv_window)
    return y, jnp.take_along_axis(padded, take[..., None], axis=1).astype(window_BxWxQ.dtype), new_state


def _mix(
    config: Qwen35Config,
    params: dict[str, Array],
    padded: Array,
    project: Callable[[str], Array],
    rows: Rows,
    state: Array,
) -> tuple[Array, Array]:
    """What lies between the projections into and out of the layer.

    Args:
        padded: the window and the conv inputs, [B, W + T, Q].
        project: the input through the matrix of that name (z, a, b), [B, T, ...].

    Returns:
        [B, T, Hv Dv] in the projections' dtype, and the state after the last position.
    """
    q, k, v = _split_heads(config, _causal_conv(padded, params["conv"], rows.reset_BxT))
    g, beta = _gates(params, project)
    g = jnp.where(rows.valid_BxT[..., None], g, 0.0)
    beta = jnp.where(rows.valid_BxT[..., None], beta, 0.0)
    o, state = chunked_delta_rule(q, k, v, g, beta, rows.reset_BxT, state)
    return _normed(config, params, project("z"), o), state


def _by_blocks(
    config: Qwen35Config,
    params: dict[str, Array],
    projected: tuple[Array, Array, Array, Array],
    rows: Rows,
    window_BxWxQ: Array,
    state: Array,
) -> tuple[Array, Array]:
    """`_mix` over a long row: its fp32 intermediates, many times the size of the activations, exist for one block.

    Args:
        projected: the input through the matrices qkv, z, a and b.
    """
    dtype = projected[0].dtype
    # In fp32 on the way in, so that the gradients of all blocks add up in fp32.
    small = {name: params[name].astype(jnp.float32) for name in ("conv", "norm", "a_log", "dt_bias")}

    def block(carry: tuple[Array, Array], inputs: tuple[Array, ...]) -> tuple[tuple[Array, Array], Array]:
        window, state = carry
        mixed, z, a, b, valid, reset = inputs
        own = {**small, "conv": small["conv"].astype(dtype), "norm": small["norm"].astype(dtype)}
        padded = jnp.concatenate([window, mixed], axis=1)
        given = {"z": z, "a": a, "b": b}
        y, state = _mix(config, own, padded, given.__getitem__, Rows(valid, reset, None), state)
        # A conv input before a later sequence's start must not be seen from the next block.
        last = reset[:, reset.shape[1] - config.conv_window :].astype(jnp.int32)
        later = jnp.flip(jnp.cumsum(jnp.flip(last, 1), axis=1), 1) - last
        window = jnp.where((later == 0)[..., None], padded[:, padded.shape[1] - config.conv_window :], 0)
        return (window, state), y

    carry = (window_BxWxQ.astype(dtype), state)
    inputs = (*projected, rows.valid_BxT, rows.reset_BxT)
    (_, state), y = scan_positions(block, carry, inputs, block=POSITION_BLOCK)
    return y, state


def delta_net_step(
    config: Qwen35Config, params: dict[str, Array], x_BxD: Array, window_BxWxQ: Array, state: Array
) -> tuple[Array, Array, Array]:
    """The whole layer for one position per row. Returns output [B, D], window and state."""
    mixed_BxQ = x_BxD @ params["qkv"]
    padded = jnp.concatenate([window_BxWxQ.astype(mixed_BxQ.dtype), mixed_BxQ[:, None]], axis=1)
    convolved = jax.nn.silu(jnp.sum(padded * params["conv"], axis=1))
    q, k, v = _split_heads(config, convolved[:, None])
    x_Bx1xD = x_BxD[:, None]
    g, beta = _gates(params, lambda name: x_Bx1xD @ params[name])
    o, state = recurrent_delta_rule(q[:, 0], k[:, 0], v[:, 0], g[:, 0], beta[:, 0], state)
    x_Bx1xD, o = x_BxD[:, None], o[:, None]
    y = _normed(config, params, x_Bx1xD @ params["z"], o) @ params["out"]
    return y[:, 0], padded[:, 1:].astype(window_BxWxQ.dtype), state


def _causal_conv(padded: Array, kernel_WxQ: Array, reset_BxT: Array) -> Array:
    """Depthwise causal convolution and silu. `padded` is the carried window followed by the rows: [B, W + T, Q]."""
    length, taps = reset_BxT.shape[1], kernel_WxQ.shape[0]
    total = padded[:, taps - 1 :] * kernel_WxQ[-1]
    inside_BxT = jnp.ones_like(reset_BxT)
    for back in range(1, taps):
        # A tap `back` positions earlier counts while no sequence began since.
        inside_BxT = inside_BxT & ~_shift_right(reset_BxT, back - 1)
        earlier = padded[:, taps - 1 - back : taps - 1 - back + length]
        total = total + jnp.where(inside_BxT[..., None], earlier, 0) * kernel_WxQ[taps - 1 - back]
    return jax.nn.silu(total)


def _shift_right(flags_BxT: Array, by: int) -> Array:
    return jnp.pad(flags_BxT, ((0, 0), (by, 0)))[:, : flags_BxT.shape[1]]


def _split_heads(config: Qwen35Config, x_BxTxQ: Array) -> tuple[Array, Array, Array]:
    """q, k [B, T, Hk, Dk] (fp32, unit length, q scaled) and v [B, T, Hv, Dv] in fp32."""
    batch, length, _ = x_BxTxQ.shape
    q, k, v = jnp.split(x_BxTxQ, [config.key_size, 2 * config.key_size], axis=-1)
    q = l2_norm(q.reshape(batch, length, config.linear_key_heads, config.linear_key_dim))
    k = l2_norm(k.reshape(batch, length, config.linear_key_heads, config.linear_key_dim))
    v = v.reshape(batch, length, config.linear_value_heads, config.linear_value_dim)
    return q * config.linear_key_dim**-0.5, k, v.astype(jnp.float32)


def _gates(params: dict[str, Array], project: Callable[[str], Array]) -> tuple[Array, Array]:
    """g (log decay, <= 0) and beta (write strength in 0..1), both [B, T, Hv] in fp32. `project` as for `_mix`."""
    a = project("a").astype(jnp.float32)
    rate = jnp.exp(params["a_log"].astype(jnp.float32))
    g = -rate * jax.nn.softplus(a + params["dt_bias"].astype(jnp.float32))
    return g, jax.nn.sigmoid(project("b").astype(jnp.float32))


def _normed(config: Qwen35Config, params: dict[str, Array], z: Array, o: Array) -> Array:
    """The gated output norm: [B, T, Hv Dv] in z's dtype."""
    y = gated_rms_norm(o, z.reshape(o.shape), params["norm"], config.rms_eps)
    return y.reshape(z.shape).astype(z.dtype)


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
    q: Array, k: Array, v: Array, g: Array, beta: Array, reset_BxT: Array, state: Array, chunk: int = CHUNK
) -> tuple[Array, Array]:
    """Several positions, by chunks; equals the recurrence up to rounding.

    Args:
        q, k: [B, T, Hk, Dk] fp32. v: [B, T, Hv, Dv] fp32. g, beta: [B, T, Hv] fp32; both 0 where a position must change
            nothing.
        reset_BxT: True where a sequence begins: the state is zero before it.
        state: [B, Hv, Dk, Dv] fp32, the state before the first position.
        chunk: a power of two. On CPUs at Dk = 32 a chunk of 32 is fastest; at 128 the field uses 64.

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
    solved = solve_unit_lower(system, jnp.concatenate([v, k * from_start], axis=-1) * beta[..., None])
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
