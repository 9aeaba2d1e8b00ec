"""The feed-forward part of a layer: down(silu(gate(x)) * up(x)).

Its inner arrays are F / D times as wide as a layer's input. Over a long row they are the largest of the whole training
step, so rows of more than `LONGEST_AT_ONCE` positions are walked in blocks of tokens, forward and backward; the
backward pass keeps the input alone and makes the inner arrays of each block anew.

Letters beyond those of `config`: n blocks of C tokens.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from whale_jax.qwen3_5.layers import product

LONGEST_AT_ONCE = 1024
"""Positions of a row whose inner arrays may exist together."""

BLOCK = 4096
"""Tokens of a block: enough rows for a matrix unit, few enough for 100 MB of inner arrays at F = 6,144 in bf16."""

_dot = partial(jnp.matmul, preferred_element_type=jnp.float32)


def feed_forward(params: dict[str, Array], x: Array) -> Array:
    """SwiGLU of [..., D], in x's dtype.

    Args:
        params: `gate` and `up` [D, F], `down` [F, D].
        x: a long row is known by its axis -2.
    """
    if x.ndim < 3 or x.shape[-2] <= LONGEST_AT_ONCE:
        return _swiglu(_Weights(params["gate"], params["up"], params["down"]), x)
    flat = x.reshape(-1, x.shape[-1])
    tokens = flat.shape[0]
    blocks = jnp.pad(flat, ((0, -tokens % BLOCK), (0, 0))).reshape(-1, BLOCK, x.shape[-1])
    y = _in_blocks(_Weights(params["gate"], params["up"], params["down"]), blocks)
    return y.reshape(-1, x.shape[-1])[:tokens].reshape(x.shape)


class _Weights(NamedTuple):
    gate: Array
    up: Array
    down: Array


def _swiglu(weights: _Weights, x: Array) -> Array:
    return product(jax.nn.silu(product(x, weights.gate)) * product(x, weights.up), weights.down)


@jax.custom_vjp
def _in_blocks(weights: _Weights, x_nxCxD: Array) -> Array:
    return jax.lax.map(partial(_swiglu, weights), x_nxCxD)


def _forward(weights: _Weights, x_nxCxD: Array) -> tuple[Array, tuple[_Weights, Array]]:
    return _in_blocks(weights, x_nxCxD), (weights, x_nxCxD)


def _backward(saved: tuple[_Weights, Array], d_y_nxCxD: Array) -> tuple[_Weights, Array]:
    """The weights' gradients add up over blocks in fp32."""
    weights, x_nxCxD = saved

    def block(sums: _Weights, inputs: tuple[Array, Array]) -> tuple[_Weights, Array]:
        x, d_y = inputs
        gate, up = x @ weights.gate, x @ weights.up
        activated, d_activate = jax.vjp(jax.nn.silu, gate)
        d_inner = d_y @ weights.down.T
        d_up = d_inner * activated
        (d_gate,) = d_activate(d_inner * up)
        added = _Weights(_dot(x.T, d_gate), _dot(x.T, d_up), _dot((activated * up).T, d_y))
        d_x = _dot(d_gate, weights.gate.T) + _dot(d_up, weights.up.T)
        return _Weights(*map(jnp.add, sums, added)), d_x.astype(x.dtype)

    start = _Weights(*(jnp.zeros(weight.shape, jnp.float32) for weight in weights))
    sums, d_x_nxCxD = jax.lax.scan(block, start, (x_nxCxD, d_y_nxCxD))
    return _Weights(*(total.astype(weight.dtype) for total, weight in zip(sums, weights, strict=True))), d_x_nxCxD


_in_blocks.defvjp(_forward, _backward)
