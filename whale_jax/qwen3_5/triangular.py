"""(I + A) X = R for many small strictly lower triangular A, by the inverse of I + A.

On a TPU the inverse is built row by row, for all systems at once, with the systems along the vector lanes: a matrix
unit of 128 x 128 has no use for products of 16 x 16, and its compiler takes half a minute for them.

Elsewhere it is built by doubling, with matrix products alone: the inverses of two neighbouring diagonal blocks give
that of the block twice as large,

    [[P, 0], [C, Q]]^-1 = [[P^-1, 0], [-Q^-1 C P^-1, Q^-1]],

which multiplies only true inverses of diagonal blocks. (The closed form prod (I + A^(2^i)) takes powers of A, whose
entries can overflow or cancel although the inverse itself is harmless.) The gradient needs no differentiation through
either.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jax.lax import Precision

_BASE = 16
"""Blocks up to this size are doubled as masked dense products (small matrices: fewer, larger operations win)."""


def _matmul(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, precision=Precision.HIGHEST)


@jax.custom_vjp
def solve_unit_lower(a: Array, r: Array) -> Array:
    """X with (I + A) X = R.

    Args:
        a: [..., c, c] fp32, zero on and above the diagonal; c a power of two.
        r: [..., c, m] fp32.

    Returns:
        [..., c, m] fp32.
    """
    return _matmul(unit_lower_inverse(a), r)


def _solve_fwd(a: Array, r: Array) -> tuple[Array, tuple[Array, Array]]:
    inverse = unit_lower_inverse(a)
    x = _matmul(inverse, r)
    return x, (inverse, x)


def _solve_bwd(saved: tuple[Array, Array], dx: Array) -> tuple[Array, Array]:
    inverse, x = saved
    dr = _matmul(jnp.swapaxes(inverse, -1, -2), dx)
    return -jnp.tril(_matmul(dr, jnp.swapaxes(x, -1, -2)), -1), dr


solve_unit_lower.defvjp(_solve_fwd, _solve_bwd)


def unit_lower_inverse(a: Array) -> Array:
    """(I + A)^-1 for strictly lower triangular A [..., c, c], c a power of two.

    Raises:
        ValueError: c is not a power of two.
    """
    size = a.shape[-1]
    if size & (size - 1):
        raise ValueError(f"the size of the triangular system must be a power of two, got {size}")
    return jax.lax.platform_dependent(a, tpu=inverse_by_rows, default=inverse_by_doubling)


def inverse_by_rows(a: Array) -> Array:
    """`unit_lower_inverse` by forward substitution: row i is e_i minus the earlier rows as A's row i weighs them."""
    size = a.shape[-1]
    lanes = jnp.moveaxis(a.reshape(-1, size, size), 0, -1)
    identity = jnp.eye(size, dtype=a.dtype)

    def add_row(i: Array, inverse: Array) -> Array:
        weights = jax.lax.dynamic_index_in_dim(lanes, i, 0, keepdims=False)
        row = identity[i][:, None] - jnp.sum(weights[:, None] * inverse, axis=0)
        return jax.lax.dynamic_update_index_in_dim(inverse, row, i, 0)

    inverse = jax.lax.fori_loop(0, size, add_row, jnp.zeros_like(lanes))
    return jnp.moveaxis(inverse, -1, 0).reshape(a.shape)


def inverse_by_doubling(a: Array) -> Array:
    """`unit_lower_inverse` from the inverses of diagonal blocks."""
    size = a.shape[-1]
    base = min(size, _BASE)
    diagonal = [a[..., i : i + base, i : i + base] for i in range(0, size, base)]
    blocks = list(_invert_dense(jnp.stack(diagonal)))
    while len(blocks) > 1:
        step = blocks[0].shape[-1]
        blocks = [
            _join(blocks[i], blocks[i + 1], a[..., (i + 1) * step : (i + 2) * step, i * step : (i + 1) * step])
            for i in range(0, len(blocks), 2)
        ]
    return blocks[0]


def _join(first: Array, second: Array, corner: Array) -> Array:
    lower = -_matmul(second, _matmul(corner, first))
    top = jnp.concatenate([first, jnp.zeros_like(first)], axis=-1)
    return jnp.concatenate([top, jnp.concatenate([lower, second], axis=-1)], axis=-2)


def _invert_dense(a: Array) -> Array:
    """The same doubling on whole small matrices: at each level only the corners of that level are let through."""
    size = a.shape[-1]
    row, column = jnp.arange(size)[:, None], jnp.arange(size)[None, :]
    inverse = jnp.eye(size, dtype=a.dtype) - jnp.where((row // 2 == column // 2) & (row > column), a, 0.0)
    step = 2
    while step < size:
        corner = (row // (2 * step) == column // (2 * step)) & (row // step > column // step)
        inverse = inverse - _matmul(inverse, _matmul(jnp.where(corner, a, 0.0), inverse))
        step *= 2
    return inverse
