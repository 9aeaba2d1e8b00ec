"""Gated DeltaNet: the linear-attention layer of Qwen3.5 (PAPER section 7).

Projections; a causal convolution over q, k and v; the delta rule (`delta_rule`); a gated norm; the output projection.
Convolution, gates, norms, state and the rule itself are fp32 whatever the compute dtype.

A row longer than `BLOCK` is walked in blocks of that many positions, and the backward pass computes each block anew
from its part of the layer's input, and the window and state before it. So what the layer needs inside (projections,
fp32 q, k and v, the state before every chunk, the triangular systems) exists for one block at a time, however long the
row is.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec

from whale_jax.qwen3_5.config import Qwen35Config
from whale_jax.qwen3_5.delta_rule import DeltaRule, RecurrentRule, chunked_delta_rule, recurrent_delta_rule
from whale_jax.qwen3_5.layers import gated_rms_norm, l2_norm, product
from whale_jax.qwen3_5.sharding import TENSOR, over_heads

BLOCK = 1024
"""Positions of a long row handled together."""

_KERNEL_LANES = 128
"""The TPU kernel works on head sizes that are multiples of this."""

_PARAMETERS = ("qkv", "z", "a", "b", "a_log", "dt_bias", "conv", "norm", "out")


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
    if x_BxTxD.shape[1] > BLOCK:
        y, new_state = _in_blocks(config, params, x_BxTxD, rows, window_BxWxQ, state, rule)
        if rows.count_B is None:
            return y, window_BxWxQ, new_state
        return y, _last_inputs(config, params, x_BxTxD, rows.count_B, window_BxWxQ), new_state
    taps = _visible_taps(rows.reset_BxT, config.conv_window)
    y, padded, new_state = _layer(config, params, x_BxTxD, rows, taps, window_BxWxQ, state, rule)
    if rows.count_B is None:
        return y, window_BxWxQ, new_state
    take = rows.count_B[:, None] + jnp.arange(config.conv_window)
    return y, jnp.take_along_axis(padded, take[..., None], axis=1).astype(window_BxWxQ.dtype), new_state


def _layer(
    config: Qwen35Config,
    params: dict[str, Array],
    x_BxTxD: Array,
    rows: Rows,
    visible_taps: Iterable[Array | None],
    window_BxWxQ: Array,
    state: Array,
    rule: DeltaRule,
) -> tuple[Array, Array, Array]:
    """The layer over positions that are handled together: output, the window followed by the conv inputs, state."""
    mixed_BxTxQ = product(x_BxTxD, params["qkv"])
    padded = jnp.concatenate([window_BxWxQ.astype(mixed_BxTxQ.dtype), mixed_BxTxQ], axis=1)
    q, k, v = _split_heads(config, _causal_conv(padded, params["conv"], visible_taps))
    g, beta = _valid_gates(params, x_BxTxD, rows)
    o, state = rule(q, k, v, g, beta, rows.reset_BxT, state)
    return product(_gated(config, params, product(x_BxTxD, params["z"]), o), params["out"]), padded, state


def _in_blocks(
    config: Qwen35Config,
    params: dict[str, Array],
    x_BxTxD: Array,
    rows: Rows,
    window_BxWxQ: Array,
    state: Array,
    rule: DeltaRule,
) -> tuple[Array, Array]:
    """The layer over a long row: output and the state after its last position."""
    batch, length, _ = x_BxTxD.shape
    blocks, size = -(-length // BLOCK), config.conv_window
    # They enter in fp32, so that the gradients of all blocks add up in fp32.
    entering = {name: params[name].astype(jnp.float32) for name in _PARAMETERS}

    def split(x: Array) -> Array:
        """[B, T, ...] to [blocks, B, BLOCK, ...]; what fills the last block changes no state."""
        x = jnp.pad(x, ((0, 0), (0, blocks * BLOCK - length)) + ((0, 0),) * (x.ndim - 2))
        return jnp.moveaxis(x.reshape(batch, blocks, BLOCK, *x.shape[2:]), 1, 0)

    def block(carry: tuple[Array, Array], inputs: tuple[Array, ...]) -> tuple[tuple[Array, Array], Array]:
        window, state = carry
        x, visible, valid, reset = inputs
        own = {name: leaf.astype(params[name].dtype) for name, leaf in entering.items()}
        taps = (visible[..., tap] for tap in range(size))
        y, padded, state = _layer(config, own, x, Rows(valid, reset, None), taps, window, state, rule)
        return (padded[:, -size:], state), y

    visible = jnp.stack(list(_visible_taps(rows.reset_BxT, size)), axis=-1)
    inputs = (split(x_BxTxD), split(visible), split(rows.valid_BxT), split(rows.reset_BxT))
    carry = (window_BxWxQ.astype(x_BxTxD.dtype), state)
    (_, state), y = jax.lax.scan(jax.checkpoint(block, prevent_cse=False), carry, inputs)
    return jnp.moveaxis(y, 0, 1).reshape(batch, blocks * BLOCK, -1)[:, :length], state


def _last_inputs(
    config: Qwen35Config, params: dict[str, Array], x_BxTxD: Array, count_B: Array, window_BxWxQ: Array
) -> Array:
    """The window after each row's last valid position; that before it fills in where a row has fewer than W."""
    size = config.conv_window
    place = count_B[:, None] + jnp.arange(size) - size
    inputs = jnp.take_along_axis(x_BxTxD, jnp.maximum(place, 0)[..., None], axis=1) @ params["qkv"]
    before = jnp.take_along_axis(window_BxWxQ, jnp.minimum(place + size, size - 1)[..., None], axis=1)
    return jnp.where((place >= 0)[..., None], inputs.astype(window_BxWxQ.dtype), before)


def delta_net_step(
    config: Qwen35Config,
    params: dict[str, Array],
    x_BxD: Array,
    window_BxWxQ: Array,
    state: Array,
    *,
    rule: RecurrentRule = recurrent_delta_rule,
) -> tuple[Array, Array, Array]:
    """The whole layer for one position per row. Returns output [B, D], window and state.

    Args:
        state: what `rule` takes for it.
        rule: one position of the delta rule.
    """
    mixed_BxQ = x_BxD @ params["qkv"]
    padded = jnp.concatenate([window_BxWxQ.astype(mixed_BxQ.dtype), mixed_BxQ[:, None]], axis=1)
    q, k, v = _split_heads(config, _causal_conv(padded, params["conv"], [None] * config.conv_window))
    g, beta = _gates(params, x_BxD[:, None])
    o, state = rule(q[:, 0], k[:, 0], v[:, 0], g[:, 0], beta[:, 0], state)
    y = _gated(config, params, x_BxD @ params["z"], o) @ params["out"]
    return y, padded[:, 1:].astype(window_BxWxQ.dtype), state


def recurrent_rule_at(layer: Array, active_B: Array) -> RecurrentRule:
    """One position of the delta rule on the states [Y, B, Hv, Dk, Dv] of Y layers, of which one changes in place.

    The state of a row that is not active stays as it is, bit for bit.
    """

    def plain(q: Array, k: Array, v: Array, g: Array, beta: Array, states: Array) -> tuple[Array, Array]:
        before = jax.lax.dynamic_index_in_dim(states, layer, keepdims=False)
        o, after = recurrent_delta_rule(q, k, v, g, beta, before)
        kept = jnp.where(active_B[:, None, None, None], after, before)
        return o, jax.lax.dynamic_update_index_in_dim(states, kept, layer, 0)

    def kernel(q: Array, k: Array, v: Array, g: Array, beta: Array, states: Array) -> tuple[Array, Array]:
        from whale_jax.qwen3_5.recurrent_kernel import recurrent_step  # Pallas needs a second to import

        repeats = v.shape[1] // k.shape[1]
        q, k = (jnp.repeat(t, repeats, axis=1) for t in (q, k))
        heads, whole, of_states = PartitionSpec(None, TENSOR), PartitionSpec(), PartitionSpec(None, None, TENSOR)
        step = over_heads(recurrent_step, (*(heads,) * 5, whole, of_states, whole), (heads, of_states))
        return step(q, k, v, jnp.exp(g), beta, active_B, states, layer)

    def rule(q: Array, k: Array, v: Array, g: Array, beta: Array, states: Array) -> tuple[Array, Array]:
        if states.shape[-1] % _KERNEL_LANES or states.shape[-2] % _KERNEL_LANES:
            return plain(q, k, v, g, beta, states)
        return jax.lax.platform_dependent(q, k, v, g, beta, states, tpu=kernel, default=plain)

    return rule


def _visible_taps(reset_BxT: Array, window: int) -> Iterator[Array]:
    """For each tap, nearest first, whether it looks into the same sequence: none began since."""
    inside_BxT = jnp.ones_like(reset_BxT)
    for back in range(window):
        inside_BxT = inside_BxT & ~_shift_right(reset_BxT, back)
        yield inside_BxT


def _causal_conv(padded: Array, kernel_WxQ: Array, visible_taps: Iterable[Array | None]) -> Array:
    """Depthwise causal convolution and silu. `padded` is the carried window followed by the rows: [B, W + T, Q].

    A tap that is None is visible everywhere.
    """
    taps = kernel_WxQ.shape[0]
    length = padded.shape[1] - taps + 1
    total = padded[:, taps - 1 :] * kernel_WxQ[-1]
    for back, visible_BxT in enumerate(visible_taps, 1):
        earlier = padded[:, taps - 1 - back : taps - 1 - back + length]
        if visible_BxT is not None:
            earlier = jnp.where(visible_BxT[..., None], earlier, 0)
        total = total + earlier * kernel_WxQ[taps - 1 - back]
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


def _gated(config: Qwen35Config, params: dict[str, Array], z: Array, o: Array) -> Array:
    """The output norm of `o` [..., Hv, Dv], gated by z [..., Hv Dv]: like z."""
    y = gated_rms_norm(o, z.reshape(o.shape), params["norm"], config.rms_eps)
    return y.reshape(z.shape).astype(z.dtype)
