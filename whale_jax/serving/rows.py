"""Rows of the model's cache: gathered for an extend step, and moved to host memory and back.

Rows are cut out and put back by slices, each a plain copy of memory, rather than by gather and scatter.
Letters: R rows, C chunk, S max_len, G layer groups, B slots.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from whale_jax.qwen3_5.model import Cache

_BATCH_AXIS = {"k": 1, "v": 1, "conv": 2, "state": 2, "length": 0}
_LENGTH_AXIS = 3  # of k and v


class RowState(NamedTuple):
    """One sequence's state. In host memory k and v hold `length` positions, on the device max_len."""

    k: Any  # [G,Kh,S,H]
    v: Any  # [G,Kh,S,H]
    conv: Any  # [G,3,W,C]
    state: Any  # [G,3,Hv,Dk,Dv] float32
    length: Any  # int32 scalar


def read_row(cache: Cache, slot: jax.Array) -> RowState:
    """The state in one slot, k and v in full."""
    return RowState(
        **{
            name: jax.lax.dynamic_index_in_dim(getattr(cache, name), slot, axis, keepdims=False)
            for name, axis in _BATCH_AXIS.items()
        }
    )


def write_row(cache: Cache, slot: jax.Array, state: RowState) -> Cache:
    """The cache with one slot replaced."""
    return cache._replace(
        **{
            name: jax.lax.dynamic_update_index_in_dim(getattr(cache, name), getattr(state, name), slot, axis)
            for name, axis in _BATCH_AXIS.items()
        }
    )


def rows_of(cache: Cache, slot_R: jax.Array, fresh_R: jax.Array) -> Cache:
    """A cache of R rows, copies of the given slots; fresh ones start empty.

    Keys and values of a fresh row are left as they are: no position at or past `length` is ever attended to.
    """
    count = slot_R.shape[0]

    def copy_row(i: jax.Array, rows: Cache) -> Cache:
        return rows._replace(
            **{
                name: _set(name, getattr(rows, name), i, _get(name, getattr(cache, name), slot_R[i]))
                for name in _BATCH_AXIS
            }
        )

    def empty(name: str) -> jax.Array:
        array = getattr(cache, name)
        axis = _BATCH_AXIS[name]
        return jnp.zeros((*array.shape[:axis], count, *array.shape[axis + 1 :]), array.dtype)

    rows = jax.lax.fori_loop(0, count, copy_row, Cache(**{name: empty(name) for name in _BATCH_AXIS}))

    def emptied(name: str) -> jax.Array:
        array = getattr(rows, name)
        shape = [1] * array.ndim
        shape[_BATCH_AXIS[name]] = -1
        return jnp.where(fresh_R.reshape(shape), jnp.zeros((), array.dtype), array)

    return rows._replace(conv=emptied("conv"), state=emptied("state"), length=emptied("length"))


def update_rows(cache: Cache, slot_R: jax.Array, start_R: jax.Array, rows: Cache, chunk: int) -> Cache:
    """The cache with R slots replaced by rows that grew by at most `chunk` from `start_R`.

    Only the chunk of k and v that an extend step can have written is copied back. Slots must be distinct.
    """

    def copy_row(i: jax.Array, cache: Cache) -> Cache:
        fields = {}
        for name in _BATCH_AXIS:
            array, row = getattr(cache, name), _get(name, getattr(rows, name), i)
            if name in ("k", "v"):
                # Both slices are clamped alike near the end of the row, so positions always correspond.
                row = jax.lax.dynamic_slice_in_dim(row, start_R[i], chunk, _LENGTH_AXIS)
                fields[name] = jax.lax.dynamic_update_slice(array, row, (0, slot_R[i], 0, start_R[i], 0))
            else:
                fields[name] = _set(name, array, slot_R[i], row)
        return cache._replace(**fields)

    return jax.lax.fori_loop(0, slot_R.shape[0], copy_row, cache)


def _get(name: str, array: jax.Array, index: jax.Array) -> jax.Array:
    return jax.lax.dynamic_slice_in_dim(array, index, 1, _BATCH_AXIS[name])


def _set(name: str, array: jax.Array, index: jax.Array, row: jax.Array) -> jax.Array:
    return jax.lax.dynamic_update_slice_in_dim(array, row, index, _BATCH_AXIS[name])


def trimmed(state: RowState) -> RowState:
    """A host copy of a state that keeps only the positions in use."""
    length = int(state.length)
    return state._replace(k=state.k[:, :, :length].copy(), v=state.v[:, :, :length].copy())


def padded(state: RowState, max_len: int) -> RowState:
    """A trimmed state with k and v filled up with zeros to `max_len` positions."""

    def pad(array: np.ndarray) -> np.ndarray:
        groups, heads, length, size = array.shape
        out = np.zeros((groups, heads, max_len, size), array.dtype)
        out[:, :, :length] = array
        return out

    return state._replace(k=pad(state.k), v=pad(state.v))


def empty_row(cache: Cache) -> RowState:
    """The host state of a sequence without tokens."""

    def zeros(name: str) -> np.ndarray:
        array = getattr(cache, name)
        shape = list(array.shape)
        del shape[_BATCH_AXIS[name]]
        if name in ("k", "v"):
            shape[_LENGTH_AXIS - 1] = 0
        return np.zeros(shape, array.dtype)

    return RowState(**{name: zeros(name) for name in _BATCH_AXIS})
