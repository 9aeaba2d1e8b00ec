"""New weights for the replicas: one jitted step from wherever the trainer has them to a copy on each device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from whale_jax.qwen3_5.params import by_layer


@dataclass(frozen=True)
class Served:
    """Parameters that belong to an engine alone: on its device, in its dtypes and in the form that is served there
    (`serves_by_layer`). It need not copy them."""

    params: Any


def serves_by_layer(device: Any) -> bool:
    """Whether an engine on this device runs its steps unrolled, with parameters by layer: see `params.by_layer`."""
    return device.platform == "cpu"


class WeightSwap:
    """Copies a tree of parameters onto every one of some devices, in the dtypes and the form being served.

    Where the trainer's arrays are divided over those very devices, one jitted step gathers and converts them; arrays
    elsewhere travel to the devices first. Beside its argument it makes the copies and nothing else.

    Arrays that are divided over the devices of several processes are gathered on all devices of their mesh, these among
    them: every process takes that step at the same time, with arrays of the same mesh.
    """

    def __init__(self, devices: Sequence[Any], *, form: Callable[[Any], Any] | None = None) -> None:
        """Compiles nothing yet.

        Args:
          devices: of the replicas, one each.
          form: what makes the tree that is served of a copy of the one given; default: as the devices serve a model.
        """
        self._devices = tuple(devices)
        served_by_layer = all(map(serves_by_layer, devices))
        self._form = form or (by_layer if served_by_layer else _same)
        self._everywhere = NamedSharding(Mesh(np.array(self._devices), ("replica",)), PartitionSpec())

    def __call__(self, params: Any, dtypes: Any = None) -> list[Served]:
        """One copy per device, in their order.

        Args:
          params: host or device arrays, however divided; stacked.
          dtypes: a tree of dtypes; default: those of `params`.
        """
        leaves, structure = jax.tree.flatten(params)
        wanted = jax.tree.leaves(dtypes) if dtypes is not None else [leaf.dtype for leaf in leaves]
        everywhere = self._everywhere
        if shared := [
            leaf.sharding for leaf in leaves if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable
        ]:
            assert isinstance(shared[0], NamedSharding)
            everywhere = NamedSharding(shared[0].mesh, PartitionSpec())
        else:
            leaves = [self._within_reach(leaf) for leaf in leaves]
        entering = jax.tree.unflatten(structure, leaves)
        copies = _step_to(everywhere, self._form)(entering, tuple(jnp.dtype(dtype) for dtype in wanted))
        return [Served(jax.tree.map(partial(_part_on, device), copies)) for device in self._devices]

    def _within_reach(self, leaf: Any) -> Any:
        """The array as a program on the devices can take it: as it is divided over them, or a copy of it on them.

        What lies on a single device already gets the sharding that all others have, so that one program serves all.
        """
        if not isinstance(leaf, jax.Array) or leaf.sharding.device_set != set(self._devices):
            return jax.device_put(leaf, self._everywhere)
        if len(self._devices) == 1:
            parts = [leaf.addressable_shards[0].data]
            return jax.make_array_from_single_device_arrays(leaf.shape, self._everywhere, parts)
        return leaf


@lru_cache(maxsize=16)
def _step_to(everywhere: NamedSharding, form: Callable[[Any], Any]) -> Any:
    """The program that copies; swaps to the same devices share it."""

    def copied(params: Any, dtypes: tuple[Any, ...]) -> Any:
        leaves, structure = jax.tree.flatten(params)
        copies = [jnp.array(leaf, dtype, copy=True) for leaf, dtype in zip(leaves, dtypes, strict=True)]
        return form(jax.tree.unflatten(structure, copies))

    return jax.jit(copied, static_argnums=1, out_shardings=everywhere)


def _same(params: Any) -> Any:
    return params


def _part_on(device: Any, leaf: jax.Array) -> jax.Array:
    """The copy on one device as an array that knows of no mesh: programs are traced for one or the other."""
    mine = next(shard.data for shard in leaf.addressable_shards if shard.device == device)
    return jax.make_array_from_single_device_arrays(leaf.shape, SingleDeviceSharding(device), [mine])
