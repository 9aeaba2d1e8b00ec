"""Gated DeltaNet: the linear-attention layer of Qwen3.5 (PAPER section 7).

Projections; a causal convolution over q, k and v; the delta rule (`delta_rule`); a gated norm; the output projection.
Convolution, gates, norms, state and the rule itself are fp32 whatever the compute dtype.

Between the projections, a row longer than `BLOCK` is walked in blocks of that many positions, and the backward pass
computes each block anew from its inputs and the state before it. So what the rule needs inside (fp32 q, k, v, the state
before every chunk, the triangular systems) exists for one block at a time, however long the row is.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from whale_jax.qwen3_5.config import Qwen35Config
from whale_jax.qwen3_5.delta_rule import DeltaRule, chunked_delta_rule, recurrent_delta_rule
from whale_jax.qwen3_5.layers import gated_rms_norm, l2_norm

BLOCK = 1024
"""Positions of a long row handled together."""


class Rows(NamedTuple):
    """What the layer must know about the positions of a batch of rows."""

    valid_BxT: Array
    """False at padding, which must change nothing."""
    reset_BxT: Array
    """True at the first position of a sequence: nothing is carried into it."""
    count_B: Array | None
    """Valid leading positions of each row when a cache is advanced; None in training, where nothing is carried out."""


def delta_net(
    config: Qwen35Config,
    params: dict[str, Array],
    x_BxTxD: Array,
    rows: Rows,
    window_BxWxQ: Array,
    state: Array,
    *,
    rule: DeltaRule = chunked_delta_rule,
) -> tuple[Array, Array, Array]:
    """The whole layer over several positions.

    Args:
        x_BxTxD: the normed input.
        window_BxWxQ: the conv inputs just before the rows.
        state: [B, Hv, Dk, Dv] fp32, the state just before the rows.
        rule: what computes the delta rule.

    Returns:
        Output [B, T, D], and the window and the state after each row's last valid position.
    """
    mixed_BxTxQ = x_BxTxD @ params["qkv"]
    padded = jnp.concatenate([window_BxWxQ.astype(mixed_BxTxQ.dtype), mixed_BxTxQ], axis=1)
    if x_BxTxD.shape[1] > BLOCK:
        mixed, new_state = _mix_in_blocks(config, params, x_BxTxD, padded, rows, state, rule)
    else:
        convolved = _causal_conv(padded, params["conv"], _visible_taps(rows.reset_BxT, config.conv_window))
        q, k, v = _split_heads(config, convolved)
        g, beta = _valid_gates(params, x_BxTxD, rows)
        o, new_state = rule(q, k, v, g, beta, rows.reset_BxT, state)
        mixed = _gated(config, params, x_BxTxD @ params["z"], o)
    y = mixed @ params["out"]
    if rows.count_B is None:
        return y, window_BxWxQ, new_state
    take = rows.count_B[:, None] + jnp.arange(config.conv_window)
    return y, jnp.take_along_axis(padded, take[..., None], axis=1).astype(window_BxWxQ.dtype), new_state


def delta_net_step(
    config: Qwen35Config, params: dict[str, Array], x_BxD: Array, window_BxWxQ: Array, state: Array
) -> tuple[Array, Array, Array]:
    """The whole layer for one position per row. Returns output [B, D], window and state."""
    mixed_BxQ = x_BxD @ params["qkv"]
    padded = jnp.concatenate([window_BxWxQ.astype(mixed_BxQ.dtype), mixed_BxQ[:, None]], axis=1)
    convolved = jax.nn.silu(jnp.sum(padded * params["conv"], axis=1))
    q, k, v = _split_heads(config, convolved[:, None])
    g, beta = _gates(params, x_BxD[:, None])
    o, state = recurrent_delta_rule(q[:, 0], k[:, 0], v[:, 0], g[:, 0], beta[:, 0], state)
    x_Bx1xD, o = x_BxD[:, None], o[:, None]
    y = _gated(config, params, x_Bx1xD @ params["z"], o) @ params["out"]
    return y[:, 0], padded[:, 1:].astype(window_BxWxQ.dtype), state


def _mix_in_blocks(
    config: Qwen35Config,
    params: dict[str, Array],
    x_BxTxD: Array,
    padded: Array,
    rows: Rows,
    state: Array,
    rule: DeltaRule,
) -> tuple[Array, Array]:
    """What lies between the projections, for a long row. Returns [B, T, Hv Dv] in the compute dtype, and the state."""
    batch, length, _ = x_BxTxD.shape
    blocks, window = -(-length // BLOCK), config.conv_window

    def split(x: Array) -> Array:
        """[B, T, ...] to [blocks, B, BLOCK, ...]; what fills the last block changes no state."""
        x = jnp.pad(x, ((0, 0), (0, blocks * BLOCK - length)) + ((0, 0),) * (x.ndim - 2))
        return jnp.moveaxis(x.reshape(batch, blocks, BLOCK, *x.shape[2:]), 1, 0)

    def block(state: Array, inputs: tuple[Array, ...]) -> tuple[Array, Array]:
        before, here, visible, g, beta, reset, z = inputs
        taps = (visible[..., tap] for tap in range(window))
        convolved = _causal_conv(jnp.concatenate([before, here], axis=1), params["conv"], taps)
        o, state = rule(*_split_heads(config, convolved), g, beta, reset, state)
        return state, _gated(config, params, z, o)

    visible = jnp.stack(list(_visible_taps(rows.reset_BxT, window)), axis=-1)
    g, beta = _valid_gates(params, x_BxTxD, rows)
    here = split(padded[:, window:])
    before = jnp.concatenate([padded[None, :, :window], here[:-1, :, -window:]])
    inputs = (before, here, split(visible), split(g), split(beta), split(rows.reset_BxT), split(x_BxTxD @ params["z"]))
    state, mixed = jax.lax.scan(jax.checkpoint(block, prevent_cse=False), state, inputs)
    return jnp.moveaxis(mixed, 0, 1).reshape(batch, blocks * BLOCK, -1)[:, :length], state


def _visible_taps(reset_BxT: Array, window: int) -> Iterator[Array]:
    """For each tap, nearest first, whether it looks into the same sequence: none began since."""
    inside_BxT = jnp.ones_like(reset_BxT)
    for back in range(window):
        inside_BxT = inside_BxT & ~_shift_right(reset_BxT, back)
        yield inside_BxT


def _causal_conv(padded: Array, kernel_WxQ: Array, visible_taps: Iterable[Array]) -> Array:
    """Depthwise causal convolution and silu. `padded` is the carried window followed by the rows: [B, W + T, Q]."""
    taps = kernel_WxQ.shape[0]
    length = padded.shape[1] - taps + 1
    total = padded[:, taps - 1 :] * kernel_WxQ[-1]
    for back, visible_BxT in enumerate(visible_taps, 1):
        earlier = padded[:, taps - 1 - back : taps - 1 - back + length]
        total = total + jnp.where(visible_BxT[..., None], earlier, 0) * kernel_WxQ[taps - 1 - back]
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


def _gates(params: dict[str, Array], x_BxTxD: Array) -> tuple[Array, Array]:
    """g (log decay, <= 0) and beta (write strength in 0..1), both [B, T, Hv] in fp32."""
    a = jnp.matmul(x_BxTxD, params["a"], preferred_element_type=jnp.float32)
    rate = jnp.exp(params["a_log"].astype(jnp.float32))
    g = -rate * jax.nn.softplus(a + params["dt_bias"].astype(jnp.float32))
    return g, jax.nn.sigmoid(jnp.matmul(x_BxTxD, params["b"], preferred_element_type=jnp.float32))


def _valid_gates(params: dict[str, Array], x_BxTxD: Array, rows: Rows) -> tuple[Array, Array]:
    """`_gates`, both 0 at padding, which then neither decays the state nor writes to it."""
    g, beta = _gates(params, x_BxTxD)
    return jnp.where(rows.valid_BxT[..., None], g, 0.0), jnp.where(rows.valid_BxT[..., None], beta, 0.0)


def _gated(config: Qwen35Config, params: dict[str, Array], z_BxTxZ: Array, o: Array) -> Array:
    """The output norm of `o` [B, T, Hv, Dv], gated by z: [B, T, Hv Dv] in z's dtype."""
    y = gated_rms_norm(o, z_BxTxZ.reshape(o.shape), params["norm"], config.rms_eps)
    return y.reshape(z_BxTxZ.shape).astype(z_BxTxZ.dtype)
