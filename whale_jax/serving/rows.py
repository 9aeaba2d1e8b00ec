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
_LENGTH_AXIS = 2  # of k and v


class RowState(NamedTuple):
    """One sequence's state. In host memory k and v hold `length` positions, on the device max_len."""

    k: Any  # [G,S,Kh,H]
    v: Any  # [G,S,Kh,H]
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

    def take(name: str) -> jax.Array:
        axis = _BATCH_AXIS[name]
        array = getattr(cache, name)
        rows = [jax.lax.dynamic_slice_in_dim(array, slot_R[i], 1, axis) for i in range(slot_R.shape[0])]
        return jnp.concatenate(rows, axis)

    def emptied(name: str) -> jax.Array:
        array = take(name)
        shape = [1] * array.ndim
        shape[_BATCH_AXIS[name]] = -1
        return jnp.where(fresh_R.reshape(shape), jnp.zeros((), array.dtype), array)

    fields = {name: take(name) for name in ("k", "v")} | {name: emptied(name) for name in ("conv", "state", "length")}
    return cache._replace(**fields)


def update_rows(cache: Cache, slot_R: jax.Array, start_R: jax.Array, rows: Cache, chunk: int) -> Cache:
    """The cache with R slots replaced by rows that grew by at most `chunk` from `start_R`.

    Only the chunk of k and v that an extend step can have written is copied back. Slots must be distinct.
    """
    fields = {name: getattr(cache, name) for name in _BATCH_AXIS}
    for i in range(slot_R.shape[0]):
        for name, axis in _BATCH_AXIS.items():
            row = jax.lax.dynamic_slice_in_dim(getattr(rows, name), i, 1, axis)
            begin: list[Any] = [0] * row.ndim
            begin[axis] = slot_R[i]
            if name in ("k", "v"):
                # Both slices are clamped alike near the end of the row, so positions always correspond.
                row = jax.lax.dynamic_slice_in_dim(row, start_R[i], chunk, _LENGTH_AXIS)
                begin[_LENGTH_AXIS] = start_R[i]
            fields[name] = jax.lax.dynamic_update_slice(fields[name], row, begin)
    return cache._replace(**fields)


def trimmed(state: RowState) -> RowState:
    """A host copy of a state that keeps only the positions in use."""
    length = int(state.length)
    return state._replace(k=state.k[:, :length].copy(), v=state.v[:, :length].copy())


def padded(state: RowState, max_len: int) -> RowState:
    """A trimmed state with k and v filled up with zeros to `max_len` positions."""

    def pad(array: np.ndarray) -> np.ndarray:
        out = np.zeros((array.shape[0], max_len, *array.shape[2:]), array.dtype)
        out[:, : array.shape[1]] = array
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
