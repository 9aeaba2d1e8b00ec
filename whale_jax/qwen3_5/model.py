"""Qwen3.5: one forward pass for training, two for serving. All pure functions of (config, parameters, inputs).

Layers repeat linear, linear, linear, full; parameters are stacked over groups of four and scanned (see `params`).
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from whale_jax.qwen3_5.attention import gated_output, packed_attention, project
from whale_jax.qwen3_5.cache import Cache, init_cache
from whale_jax.qwen3_5.config import LINEAR_PER_GROUP, Qwen35Config
from whale_jax.qwen3_5.deltanet import Rows, delta_net, delta_net_step, recurrent_rule_at
from whale_jax.qwen3_5.feed_forward import feed_forward
from whale_jax.qwen3_5.layers import rms_norm, rotary_angles
from whale_jax.qwen3_5.paged import attend_pages, pages_of, write_pages
from whale_jax.qwen3_5.params import Params, Qwen35, cast_params, init_params, is_by_layer
from whale_jax.qwen3_5.remat import Remat, checkpoint_group, checkpoint_layer
from whale_jax.qwen3_5.sharding import Placement

__all__ = [
    "Cache",
    "Params",
    "Qwen35",
    "Remat",
    "cast_params",
    "decode",
    "extend",
    "forward",
    "init_cache",
    "init_params",
    "is_by_layer",
    "unembed",
]


def forward(
    config: Qwen35Config,
    params: Params,
    tokens_BxT: Array,
    segment_ids_BxT: Array,
    *,
    compute_dtype: DTypeLike = jnp.float32,
    remat: Remat | bool = True,
    placement: Placement | None = None,
) -> Array:
    """The training pass over packed rows.

    Args:
        tokens_BxT: int32 ids.
        segment_ids_BxT: int32; 0 is padding, every other value one sequence, whose positions are consecutive. Recurrent
            state, conv window, attention and positions restart where the value changes.
        compute_dtype: of activations and matrix products; gates, norms, softmax and state stay fp32.
        remat: what the backward pass recomputes (`Remat`); True stands for `Remat.LAYER`, False for `Remat.NONE`.
        placement: the mesh that parameters and rows are divided over; None on one device.

    Returns:
        Hidden states after the final norm, [B, T, D] in `compute_dtype`. Those at padding mean nothing.
    """
    policy = Remat.of(remat)

    def whole(layer: dict[str, Array]) -> dict[str, Array]:
        return layer if placement is None else placement.gather_layer(layer, compute_dtype)

    def run(params: Params, x: Array, segment_ids_BxT: Array) -> Array:
        reset = _starts(segment_ids_BxT)
        rows = Rows(valid_BxT=segment_ids_BxT != 0, reset_BxT=reset, count_B=None)
        cos, sin = rotary_angles(config, _positions(reset))
        batch, heads = x.shape[0], (config.linear_value_heads, config.linear_key_dim, config.linear_value_dim)
        window = jnp.zeros((batch, config.conv_window, config.conv_channels), compute_dtype)
        state = jnp.zeros((batch, *heads), jnp.float32)

        @checkpoint_layer(policy)
        def linear_layer(x: Array, layer: dict[str, Array]) -> tuple[Array, None]:
            layer = whole(layer)
            normed = rms_norm(x, layer["input_norm"], config.rms_eps)
            mixed, _, _ = delta_net(config, layer, normed, rows, window, state)
            return _add_feed_forward(config, layer, x + mixed), None

        @checkpoint_layer(policy)
        def full_layer(x: Array, layer: dict[str, Array]) -> Array:
            layer = whole(layer)
            q, k, v, gate = project(config, layer, rms_norm(x, layer["input_norm"], config.rms_eps), cos, sin)
            mixed = gated_output(layer, packed_attention(q, k, v, segment_ids_BxT), gate)
            return _add_feed_forward(config, layer, x + mixed)

        @checkpoint_group(policy)
        def group(x: Array, layers: dict[str, dict[str, Array]]) -> tuple[Array, None]:
            x, _ = jax.lax.scan(linear_layer, x, layers["linear"])
            return full_layer(x, layers["full"]), None

        x, _ = jax.lax.scan(group, x, {"linear": params["linear"], "full": params["full"]})
        return rms_norm(x, params["final_norm"], config.rms_eps)

    layers = {name: params[name] for name in ("linear", "full", "final_norm")}
    # The table is not cast before it is looked up: its gradient adds up as many positions as hold a token, in fp32.
    if placement is None:
        return run(
            cast_params(layers, compute_dtype), params["embed"][tokens_BxT].astype(compute_dtype), segment_ids_BxT
        )
    x = placement.lookup(params["embed"], tokens_BxT, compute_dtype)
    return placement.over_rows(run, layers, x, segment_ids_BxT)


def unembed(config: Qwen35Config, params: Params, hidden: Array) -> Array:
    """Logits [..., V] in fp32 of hidden states [..., D]. The caller decides for how many positions at a time."""
    if is_by_layer(params):
        return jnp.matmul(hidden, params["unembed"].astype(hidden.dtype), preferred_element_type=jnp.float32)
    table = params["embed" if config.tie_embeddings else "lm_head"]
    return jnp.einsum("...d,vd->...v", hidden, table.astype(hidden.dtype), preferred_element_type=jnp.float32)


def extend(
    config: Qwen35Config,
    params: Params,
    tokens_BxC: Array,
    count_B: Array,
    cache: Cache,
    *,
    compute_dtype: DTypeLike = jnp.float32,
) -> tuple[Array, Cache]:
    """Row b consumes the first `count_B[b]` of its tokens.

    A row's results depend on its own tokens and state alone, and a row with count 0 keeps its state bit for bit.

    Args:
        tokens_BxC: int32 ids; those at or beyond the count are ignored.
        count_B: int32 in 0..C. The caller sees to it that the row has pages for length + count positions.

    Returns:
        Hidden states after the final norm [B, C, D] (meaningless at or beyond the count), and the cache.
    """
    params = cast_params(params, compute_dtype)
    offset = jnp.arange(tokens_BxC.shape[1])
    valid = offset < count_B[:, None]
    rows = Rows(valid_BxT=valid, reset_BxT=jnp.zeros_like(valid), count_B=count_B)
    position = cache.length[:, None] + offset
    cos, sin = rotary_angles(config, position)
    last = jnp.where(valid, position, 0)
    touched = count_B > 0

    def linear_layer(layer: dict[str, Array], index: Array, x: Array, conv: Array, states: Array) -> _Linear:
        window, state = _at(conv, index), _at(states, index)
        normed = rms_norm(x, layer["input_norm"], config.rms_eps)
        mixed, new_window, new_state = delta_net(config, layer, normed, rows, window, state)
        conv = _put(conv, index, _where_rows(touched, new_window, window))
        states = _put(states, index, _where_rows(touched, new_state, state))
        return _add_feed_forward(config, layer, x + mixed), conv, states

    def attention(layer: dict[str, Array], x: Array, k: Array, v: Array, group: Array) -> tuple[Array, Array, Array]:
        q, new_k, new_v, gate = project(config, layer, x, cos, sin)
        k, v = write_pages(cache, group, k, v, new_k, new_v, count_B, unroll=is_by_layer(params))
        return gated_output(layer, attend_pages(q, k, v, pages_of(cache, group), last), gate), k, v

    hidden, cache = _run_groups(config, params, params["embed"][tokens_BxC], cache, linear_layer, attention)
    return hidden, cache._replace(length=cache.length + count_B)


def decode(
    config: Qwen35Config,
    params: Params,
    tokens_B: Array,
    active_B: Array,
    cache: Cache,
    *,
    compute_dtype: DTypeLike = jnp.float32,
) -> tuple[Array, Cache]:
    """Every active row consumes one token. The same as `extend` by one, in the recurrent form.

    Args:
        tokens_B: int32 ids.
        active_B: bool; an inactive row keeps its state bit for bit.

    Returns:
        Hidden states after the final norm [B, D] (meaningless for inactive rows), and the cache.
    """
    params = cast_params(params, compute_dtype)
    last_Bx1 = jnp.where(active_B, cache.length, 0)[:, None]
    cos, sin = rotary_angles(config, cache.length[None])

    def linear_layer(layer: dict[str, Array], index: Array, x: Array, conv: Array, states: Array) -> _Linear:
        window, rule = _at(conv, index), recurrent_rule_at(index, active_B)
        normed = rms_norm(x, layer["input_norm"], config.rms_eps)
        mixed, new_window, states = delta_net_step(config, layer, normed, window, states, rule=rule)
        conv = _put(conv, index, _where_rows(active_B, new_window, window))
        return _add_feed_forward(config, layer, x + mixed), conv, states

    def attention(layer: dict[str, Array], x: Array, k: Array, v: Array, group: Array) -> tuple[Array, Array, Array]:
        # The rows as positions of one: their products with a matrix are then plain ones.
        *projected, gate = project(config, layer, x[None], cos, sin)
        q, new_k, new_v = (jnp.swapaxes(each, 0, 1) for each in projected)
        k, v = write_pages(cache, group, k, v, new_k, new_v, active_B, unroll=is_by_layer(params))
        return gated_output(layer, attend_pages(q, k, v, pages_of(cache, group), last_Bx1), gate[0]), k, v

    hidden, cache = _run_groups(config, params, params["embed"][tokens_B], cache, linear_layer, attention)
    return hidden, cache._replace(length=cache.length + active_B.astype(jnp.int32))


_Linear = tuple[Array, Array, Array]
"""x, and the conv windows and states of all linear layers."""

_LinearLayer = Callable[[dict[str, Array], Array, Array, Array, Array], _Linear]
"""(parameters, layer index, x, conv windows and states of all linear layers) to the last three."""

_Attention = Callable[[dict[str, Array], Array, Array, Array, Array], tuple[Array, Array, Array]]
"""(parameters, normed x, all k, all v, group index) to (output, all k, all v)."""


def _run_groups(
    config: Qwen35Config,
    params: Params,
    x: Array,
    cache: Cache,
    linear_layer: _LinearLayer,
    attention: _Attention,
) -> tuple[Array, Cache]:
    """Walks the layers with a cache: in loops, or unrolled where parameters and cache are by layer.

    In the loops, what is kept is carried whole and updated in place, and a layer's parameters are looked up where they
    are used: as inputs of nested scans, each would be copied once for its group.
    """
    if is_by_layer(params):
        return _run_layers(config, params, x, cache, linear_layer, attention)
    linear = jax.tree.map(_layers_in_a_row, params["linear"])

    def layer_of(stacked: dict[str, Array], index: Array) -> dict[str, Array]:
        return {name: _at(leaf, index) for name, leaf in stacked.items()}

    def group(number: Array, carry: tuple[Array, ...]) -> tuple[Array, ...]:
        x, k, v, *kept = carry

        def linear_at(offset: Array, carry: _Linear) -> _Linear:
            index = number * LINEAR_PER_GROUP + offset
            return linear_layer(layer_of(linear, index), index, *carry)

        x, *kept = jax.lax.fori_loop(0, LINEAR_PER_GROUP, linear_at, (x, *kept))
        full = layer_of(params["full"], number)
        mixed, k, v = attention(full, rms_norm(x, full["input_norm"], config.rms_eps), k, v, number)
        return _add_feed_forward(config, full, x + mixed), k, v, *kept

    carry = (x, cache.k, cache.v, _layers_in_a_row(cache.conv), _layers_in_a_row(cache.state))
    x, k, v, conv, state = jax.lax.fori_loop(0, config.num_groups, group, carry)
    kept = cache._replace(k=k, v=v, conv=conv.reshape(cache.conv.shape), state=state.reshape(cache.state.shape))
    return rms_norm(x, params["final_norm"], config.rms_eps), kept


def _run_layers(
    config: Qwen35Config,
    params: Params,
    x: Array,
    cache: Cache,
    linear_layer: _LinearLayer,
    attention: _Attention,
) -> tuple[Array, Cache]:
    """`_run_groups` without loops. Each layer is given its own part of the cache, as the only one of its stack."""
    k, v, conv, state, only = cache.k, cache.v, list(cache.conv), list(cache.state), jnp.int32(0)
    for group, full in enumerate(params["full"]):
        for index in range(group * LINEAR_PER_GROUP, (group + 1) * LINEAR_PER_GROUP):
            x, new_conv, new_state = linear_layer(
                params["linear"][index], only, x, conv[index][None], state[index][None]
            )
            conv[index], state[index] = new_conv[0], new_state[0]
        mixed, k, v = attention(full, rms_norm(x, full["input_norm"], config.rms_eps), k, v, jnp.int32(group))
        x = _add_feed_forward(config, full, x + mixed)
    kept = cache._replace(k=k, v=v, conv=tuple(conv), state=tuple(state))
    return rms_norm(x, params["final_norm"], config.rms_eps), kept


def _layers_in_a_row(stacked: Array) -> Array:
    """[G, L, ...] to [G L, ...]."""
    return stacked.reshape(-1, *stacked.shape[2:])


def _at(stacked: Array, index: Array) -> Array:
    return jax.lax.dynamic_index_in_dim(stacked, index, keepdims=False)


def _put(stacked: Array, index: Array, new: Array) -> Array:
    return jax.lax.dynamic_update_index_in_dim(stacked, new, index, 0)


def _add_feed_forward(config: Qwen35Config, layer: dict[str, Array], x: Array) -> Array:
    return x + feed_forward(layer, rms_norm(x, layer["post_norm"], config.rms_eps))


def _where_rows(rows_B: Array, new: Array, old: Array) -> Array:
    return jnp.where(rows_B.reshape(-1, *(1,) * (new.ndim - 1)), new, old)


def _starts(segment_ids_BxT: Array) -> Array:
    """True where a segment begins; the first position begins one."""
    changed = segment_ids_BxT[:, 1:] != segment_ids_BxT[:, :-1]
    return jnp.pad(changed, ((0, 0), (1, 0)), constant_values=True)


def _positions(reset_BxT: Array) -> Array:
    """Distance of each position from the start of its segment."""
    index = jnp.arange(reset_BxT.shape[1])
    return index - jax.lax.cummax(jnp.where(reset_BxT, index, 0), axis=1)
