"""Arrays of a mesh over several processes, on one host and back, part by part and without a device collective.

A part is what one or several devices hold of an array. Every process finds the same parts in the same order, from the
sharding alone.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding

Bounds = tuple[tuple[int, int], ...]
"""Start and stop on every axis."""


def parts(sharding: Sharding, shape: tuple[int, ...]) -> dict[Bounds, list[int]]:
    """The parts of an array, and the processes that hold each, ascending."""
    holders: dict[Bounds, set[int]] = {}
    for device, index in sharding.devices_indices_map(shape).items():
        holders.setdefault(_bounds(index, shape), set()).add(device.process_index)
    return {bounds: sorted(processes) for bounds, processes in holders.items()}


def mine(leaf: jax.Array, process: int, index: tuple[int, ...] = ()) -> Iterator[np.ndarray]:
    """The parts of `leaf[index]` that a process is to bring: those that no process before it holds.

    Args:
        index: of leading axes that are not divided.
    """
    shards = {_bounds(shard.index, leaf.shape): shard for shard in leaf.addressable_shards}
    for bounds, holders in parts(leaf.sharding, leaf.shape).items():
        if holders[0] == process:
            yield np.asarray(np.asarray(shards[bounds].data)[index], order="C")


def collect(leaf: jax.Array, bring: Callable[[int], bytes | bytearray], index: tuple[int, ...] = ()) -> np.ndarray:
    """`leaf[index]` on the host of process 0.

    Args:
        bring: gives the next part that a process sends, in the order of `mine`.
    """
    own = mine(leaf, 0, index)
    out = np.empty(leaf.shape[len(index) :], leaf.dtype)
    for bounds, holders in parts(leaf.sharding, leaf.shape).items():
        rest = bounds[len(index) :]
        if holders[0] == 0:
            part = next(own)
        else:
            part = np.frombuffer(bring(holders[0]), leaf.dtype).reshape([stop - start for start, stop in rest])
        out[tuple(slice(*limits) for limits in rest)] = part
    return out


def spread(array: np.ndarray, sharding: Sharding, give: Callable[[int, memoryview], None]) -> jax.Array:
    """An array that process 0 has, where a sharding says.

    Args:
        give: sends a part to a process, which takes it with `take`.
    """
    for bounds, holders in parts(sharding, array.shape).items():
        part = np.asarray(array[tuple(slice(*limits) for limits in bounds)], order="C")
        for process in holders:
            if process != 0:
                give(process, raw(part))
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index].copy())


def take(like: Any, process: int, receive: Callable[[], bytes | bytearray]) -> jax.Array:
    """The other side of `spread`: an array of the shape, dtype and sharding of `like`."""
    held = {}
    for bounds, holders in parts(like.sharding, like.shape).items():
        if process in holders:
            sizes = [stop - start for start, stop in bounds]
            held[bounds] = np.frombuffer(receive(), like.dtype).reshape(sizes)
    return jax.make_array_from_callback(
        like.shape, like.sharding, lambda index: held[_bounds(index, like.shape)].copy()
    )


def raw(array: np.ndarray) -> memoryview:
    """The bytes of a contiguous array."""
    return array.reshape(-1).view(np.uint8).data


def _bounds(index: Sequence[slice] | None, shape: tuple[int, ...]) -> Bounds:
    assert index is not None
    return tuple(axis.indices(size)[:2] for axis, size in zip(index, shape, strict=True))
