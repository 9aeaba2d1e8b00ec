"""The small layers: products with weights, norms and rotary positions."""

import jax
import jax.numpy as jnp
from jax import Array

from whale_jax.qwen3_5.config import Qwen35Config


def product(x: Array, weight_DxF: Array) -> Array:
    """x [..., D] @ weight, as a product of two matrices: [..., F].

    With several axes of rows, the gradient of the weight would contract over all of them, and XLA copies both operands
    into another order first. On a CPU those copies were a fifth of a training step.
    """
    return (x.reshape(-1, x.shape[-1]) @ weight_DxF).reshape(*x.shape[:-1], -1)


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """x / rms(x) * (1 + weight) over the last axis, in fp32, returned in x's dtype.

    The weight is kept as the checkpoint has it: 1 + w stored in bf16 would round small w away.
    """
    x32 = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + eps)
    return (x32 * scale * (1.0 + weight.astype(jnp.float32))).astype(x.dtype)


def gated_rms_norm(x: Array, gate: Array, weight: Array, eps: float) -> Array:
    """x / rms(x) * weight * silu(gate) over the last axis, in fp32: the DeltaNet output norm (no `1 +` here)."""
    x32 = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + eps)
    return x32 * scale * weight.astype(jnp.float32) * jax.nn.silu(gate.astype(jnp.float32))


def l2_norm(x: Array) -> Array:
    """x / |x| over the last axis in fp32; finite with finite gradients at x = 0, which padding produces."""
    x32 = x.astype(jnp.float32)
    return x32 * jax.lax.rsqrt(jnp.sum(x32 * x32, axis=-1, keepdims=True) + 1e-6)


def rotary_angles(config: Qwen35Config, position_BxT: Array) -> tuple[Array, Array]:
    """cos and sin, [B, T, rotary_dim / 2] in fp32. For text, Qwen3.5's three-dimensional RoPE is the plain one."""
    exponents = jnp.arange(0, config.rotary_dim, 2, dtype=jnp.float32) / config.rotary_dim
    angles = position_BxT[..., None].astype(jnp.float32) / config.rope_theta**exponents
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x_BxTxNxH: Array, cos: Array, sin: Array) -> Array:
    """Turns the leading features of each head by its position's angles (feature i pairs with i + rotary_dim / 2).

    In fp32: angles in bf16 would be off by up to 0.4 %, and neighbouring positions would share them.
    """
    half = cos.shape[-1]
    first, second, rest = jnp.split(x_BxTxNxH, [half, 2 * half], axis=-1)
    first, second = first.astype(jnp.float32), second.astype(jnp.float32)
    cos, sin = (t[:, :, None, :] for t in (cos, sin))
    turned = (first * cos - second * sin, second * cos + first * sin)
    return jnp.concatenate([*(t.astype(x_BxTxNxH.dtype) for t in turned), rest], axis=-1)
