"""Rows of the model's cache: gathered for an extend step, kept beside their slot, and moved to host memory and back.

Rows and pages are cut out and put back by slices, each a plain copy of memory in place, rather than by gather and
scatter. Letters: R rows, G layer groups, P pages, Z positions of a page, M pages moved together.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from whale_jax.qwen3_5.model import Cache

_ROW_AXIS = {"conv": 2, "state": 2, "length": 0}


class RowState(NamedTuple):
    """One sequence's state in host memory, as long as its sequence."""

    k: np.ndarray  # [Kh,G,n,Z,H]
    v: np.ndarray  # [Kh,G,n,Z,H]
    conv: np.ndarray  # [G,L,W,Q]
    state: np.ndarray  # [G,L,Hv,Dk,Dv] float32
    length: int
    hidden: np.ndarray | None = None  # [D]

    @property
    def nbytes(self) -> int:
        arrays = (self.k, self.v, self.conv, self.state, self.hidden)
        return sum(array.nbytes for array in arrays if array is not None)


class Kept(NamedTuple):
    """One sequence's state on the device, beside the slots: its pages are held, and written by nobody."""

    pages: tuple[int, ...]
    conv: jax.Array  # [G,L,W,Q]
    state: jax.Array  # [G,L,Hv,Dk,Dv] float32
    length: int
    hidden: jax.Array | None = None
    """[D] after the final norm at the last position, where the next token may have to be sampled from it."""


@jax.jit
def read_row(cache: Cache, slot: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Conv windows and recurrent states of one slot."""
    return (
        jax.lax.dynamic_index_in_dim(cache.conv, slot, 2, keepdims=False),
        jax.lax.dynamic_index_in_dim(cache.state, slot, 2, keepdims=False),
    )


@partial(jax.jit, donate_argnums=0)
def write_row(cache: Cache, slot: jax.Array, conv: jax.Array, state: jax.Array, length: jax.Array) -> Cache:
    """The cache with one slot's row replaced; its pages are not touched."""
    new = {"conv": conv, "state": state, "length": length}
    return cache._replace(
        **{
            name: jax.lax.dynamic_update_index_in_dim(getattr(cache, name), new[name], slot, axis)
            for name, axis in _ROW_AXIS.items()
        }
    )


@jax.jit
def read_pages(cache: Cache, page_M: jax.Array) -> tuple[jax.Array, jax.Array]:
    """k and v [Kh, G, M, Z, H] of pages, those of an index out of bounds being any."""

    def read(array: jax.Array) -> jax.Array:
        by_group = _by_group(cache, array)
        parts = [jax.lax.dynamic_slice_in_dim(by_group, page, 1, 2) for page in page_M]
        return jnp.concatenate(parts, axis=2)

    return read(cache.k), read(cache.v)


@partial(jax.jit, donate_argnums=0)
def write_pages(cache: Cache, page_M: jax.Array, k: jax.Array, v: jax.Array) -> Cache:
    """The cache with pages replaced; an index out of bounds is left out."""

    def write(array: jax.Array, new: jax.Array) -> jax.Array:
        by_group = _by_group(cache, array)
        for index, page in enumerate(page_M):
            old = jax.lax.dynamic_slice_in_dim(by_group, page, 1, 2)
            part = jnp.where(page < cache.page_count, new[:, :, index : index + 1], old)
            by_group = jax.lax.dynamic_update_slice_in_dim(by_group, part, page, 2)
        return by_group.reshape(array.shape)

    return cache._replace(k=write(cache.k, k), v=write(cache.v, v))


@partial(jax.jit, donate_argnums=0)
def copy_page(cache: Cache, source: jax.Array, target: jax.Array) -> Cache:
    """The cache with one page copied over another."""

    def copy(array: jax.Array) -> jax.Array:
        by_group = _by_group(cache, array)
        part = jax.lax.dynamic_slice_in_dim(by_group, source, 1, 2)
        return jax.lax.dynamic_update_slice_in_dim(by_group, part, target, 2).reshape(array.shape)

    return cache._replace(k=copy(cache.k), v=copy(cache.v))


def rows_of(cache: Cache, slot_R: jax.Array, fresh_R: jax.Array, *, by_layer: bool = False) -> Cache:
    """A cache of R rows, copies of the given slots with the pages of all; fresh ones start empty.

    Args:
      by_layer: conv windows and states are wanted by layer (`Cache.by_layer`).
    """
    if by_layer:
        return _rows_by_layer(cache, slot_R, fresh_R)
    count = slot_R.shape[0]

    def copied(name: str) -> jax.Array:
        array, axis = getattr(cache, name), _ROW_AXIS[name]
        rows = jnp.zeros((*array.shape[:axis], count, *array.shape[axis + 1 :]), array.dtype)

        def copy_row(i: jax.Array, rows: jax.Array) -> jax.Array:
            return _set(name, rows, i, _get(name, array, slot_R[i]))

        rows = jax.lax.fori_loop(0, count, copy_row, rows)
        shape = [1] * array.ndim
        shape[axis] = -1
        return jnp.where(fresh_R.reshape(shape), jnp.zeros((), array.dtype), rows)

    return cache._replace(pages=cache.pages[slot_R], **{name: copied(name) for name in _ROW_AXIS})


def update_rows(cache: Cache, slot_R: jax.Array, rows: Cache) -> Cache:
    """The cache with R slots replaced by rows that `rows_of` gave and a step took forward. Slots must be distinct."""
    if rows.is_by_layer:
        rows = rows.stacked()

    def updated(name: str) -> jax.Array:
        def copy_row(i: jax.Array, array: jax.Array) -> jax.Array:
            return _set(name, array, slot_R[i], _get(name, getattr(rows, name), i))

        return jax.lax.fori_loop(0, slot_R.shape[0], copy_row, getattr(cache, name))

    return cache._replace(k=rows.k, v=rows.v, **{name: updated(name) for name in _ROW_AXIS})


def _rows_by_layer(cache: Cache, slot_R: jax.Array, fresh_R: jax.Array) -> Cache:
    """`rows_of` with one gather per layer, which a CPU makes without anything between."""

    def copied(array: jax.Array) -> tuple[jax.Array, ...]:
        flat = array.reshape(-1, *array.shape[2:])
        fresh = fresh_R.reshape(-1, *(1,) * (flat.ndim - 2))
        rows = (flat.at[layer, slot_R].get(mode="promise_in_bounds") for layer in range(len(flat)))
        return tuple(jnp.where(fresh, jnp.zeros((), array.dtype), row) for row in rows)

    return cache._replace(
        pages=cache.pages[slot_R],
        length=jnp.where(fresh_R, 0, cache.length[slot_R]),
        conv=copied(cache.conv),
        state=copied(cache.state),
    )


def _by_group(cache: Cache, array: jax.Array) -> jax.Array:
    """[Kh, G P, Z, H] to [Kh, G, P, Z, H]."""
    return array.reshape(array.shape[0], -1, cache.page_count, *array.shape[2:])


def _get(name: str, array: jax.Array, index: jax.Array) -> jax.Array:
    return jax.lax.dynamic_slice_in_dim(array, index, 1, _ROW_AXIS[name])


def _set(name: str, array: jax.Array, index: jax.Array, row: Any) -> jax.Array:
    return jax.lax.dynamic_update_slice_in_dim(array, row, index, _ROW_AXIS[name])
