"""Where every parameter, activation and cache entry lives on a mesh of chips.

Axes:

    data     copies of the parameters; rows of a batch are divided over them
    fsdp     parameters, gradients and optimizer state are divided; so are the rows of a batch. A layer's matrices are
             gathered just before use, inside the scan over layers
    tensor   heads, feed-forward features and vocabulary are divided; the rows are not

An axis that does not divide what it must divide is a `ShardingError` that says which.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from whale_jax.qwen3_5.cache import Cache
from whale_jax.qwen3_5.config import Qwen35Config
from whale_jax.qwen3_5.params import Params, is_matrix, param_shapes

DATA, FSDP, TENSOR = AXES = ("data", "fsdp", "tensor")

ROWS = (DATA, FSDP)
"""The axes that divide the rows of a batch."""

TABLE: Mapping[str, tuple[Any, ...]] = {
    # name: an axis per dimension of the unstacked parameter, as in `params`; stacking dimensions are never divided
    "embed": (TENSOR, FSDP),  # [V, D]
    "lm_head": (TENSOR, FSDP),  # [V, D]
    "gate": (FSDP, TENSOR),  # [D, F]
    "up": (FSDP, TENSOR),  # [D, F]
    "down": (TENSOR, FSDP),  # [F, D]
    "q": (FSDP, TENSOR),  # [D, N 2 H]
    "k": (FSDP, TENSOR),  # [D, Kh H]
    "v": (FSDP, TENSOR),  # [D, Kh H]
    "o": (TENSOR, FSDP),  # [N H, D]
    "qkv": (FSDP, TENSOR),  # [D, Q]
    "z": (FSDP, TENSOR),  # [D, Hv Dv]
    "b": (FSDP, TENSOR),  # [D, Hv]
    "a": (FSDP, TENSOR),  # [D, Hv]
    "conv": (None, (FSDP, TENSOR)),  # [W + 1, Q]
    "out": (TENSOR, FSDP),  # [Hv Dv, D]
    # Vectors, less than 1 MB each with all their layers: every chip holds them.
    **dict.fromkeys(("input_norm", "post_norm", "final_norm", "q_norm", "k_norm", "norm"), (None,)),
    **dict.fromkeys(("a_log", "dt_bias"), (None,)),
}


class ShardingError(ValueError):
    """A mesh that does not divide the model or the batch."""


def make_mesh(data: int, fsdp: int, tensor: int, devices: Any = None) -> Mesh:
    """A mesh of data x fsdp x tensor chips, the compiler placing what the program does not.

    Args:
        devices: as many as the product says, described or present ones; default: the first ones present.

    Raises:
        ShardingError: a size is not positive, or the number of devices is another.
    """
    sizes = (data, fsdp, tensor)
    if min(sizes) < 1:
        raise ShardingError(f"mesh sizes must be >= 1, got {_written(dict(zip(AXES, sizes, strict=True)))}")
    count = data * fsdp * tensor
    devices = jax.devices()[:count] if devices is None else list(devices)
    if len(devices) != count:
        raise ShardingError(
            f"a mesh of {_written(dict(zip(AXES, sizes, strict=True)))} needs {count} devices, got {len(devices)}"
        )
    # Auto on purpose: with jax.make_mesh's explicit axes every operation would have to say its sharding.
    return Mesh(np.array(devices).reshape(sizes), AXES, axis_types=(AxisType.Auto,) * len(AXES))


def param_specs(config: Qwen35Config) -> dict[str, Any]:
    """The `PartitionSpec` of every parameter, in the structure of `Params`."""

    def spec(path: tuple[Any, ...], shape: tuple[int, ...]) -> PartitionSpec:
        axes = TABLE[path[-1].key]
        return PartitionSpec(*(None,) * (len(shape) - len(axes)), *axes)

    return jax.tree.map_with_path(spec, param_shapes(config), is_leaf=lambda node: isinstance(node, tuple))


CACHE_TABLE: Mapping[str, tuple[Any, ...]] = {
    "k": (TENSOR, ROWS, None, None),  # [Kh, G P, Z, H]
    "v": (TENSOR, ROWS, None, None),  # [Kh, G P, Z, H]
    "conv": (None, None, ROWS, None, TENSOR),  # [G, L, B, W, Q]
    "state": (None, None, ROWS, TENSOR, None, None),  # [G, L, B, Hv, Dk, Dv]
    "length": (ROWS,),  # [B]
    "pages": (ROWS, None),  # [B, n]
}
"""Where a serving cache lives: slots and their pages over `data` and `fsdp`, heads over `tensor`."""


def check(config: Qwen35Config, mesh: Mesh, *, rows: int | None = None) -> None:
    """Every axis divides what it must divide.

    Args:
        rows: rows of a batch (or slots), if known.

    Raises:
        ShardingError: lists every axis and dimension that do not fit; also when the mesh has other axes.
    """
    if mesh.axis_names != AXES:
        raise ShardingError(f"the mesh must have the axes {AXES}, got {mesh.axis_names}")
    problems = []
    shapes, _ = jax.tree.flatten_with_path(param_shapes(config), is_leaf=lambda node: isinstance(node, tuple))
    for path, shape in shapes:
        axes = TABLE[path[-1].key]
        for size, axis in zip(shape[-len(axes) :], axes, strict=True):
            if axis is not None and size % _size(mesh, axis):
                name = ".".join(step.key for step in path)
                problems.append(f"{_written_axis(mesh, axis)} does not divide a dimension of {name} {shape}: {size}")
    heads = {
        "query heads": config.num_heads,
        "key/value heads": config.num_kv_heads,
        "linear key heads": config.linear_key_heads,
        "linear value heads": config.linear_value_heads,
    }
    for name, count in heads.items():
        if count % mesh.shape[TENSOR]:
            problems.append(f"{_written_axis(mesh, TENSOR)} does not divide the {name}: {count}")
    if config.vocab_size % _size(mesh, (TENSOR, FSDP)):
        problems.append(f"{_written_axis(mesh, (TENSOR, FSDP))} does not divide the vocabulary: {config.vocab_size}")
    if rows is not None and rows % _size(mesh, ROWS):
        problems.append(f"{_written_axis(mesh, ROWS)} does not divide the rows of a batch: {rows}")
    if problems:
        raise ShardingError("; ".join(dict.fromkeys(problems)))


@dataclass(frozen=True)
class Placement:
    """A model placed on a mesh: what the training pass needs to keep its arrays where the table says.

    Raises:
        ShardingError: the mesh does not divide the model.
    """

    config: Qwen35Config
    mesh: Mesh

    def __post_init__(self) -> None:
        check(self.config, self.mesh)

    def on(self, spec: PartitionSpec) -> NamedSharding:
        """The sharding of `spec` on this mesh."""
        return NamedSharding(self.mesh, spec)

    @property
    def params(self) -> dict[str, Any]:
        """The sharding of every parameter, in the structure of `Params`."""
        return jax.tree.map(self.on, param_specs(self.config))

    @property
    def cache(self) -> Any:
        """The sharding of every array of a `Cache`, in its structure."""
        shardings: Any = {name: self.on(PartitionSpec(*axes)) for name, axes in CACHE_TABLE.items()}
        return Cache(**shardings)

    @property
    def row_shards(self) -> int:
        """Parts that the rows of a batch are divided into."""
        return _size(self.mesh, ROWS)

    def keep_params(self, params: Params) -> Params:
        """Inside a jitted function: holds parameters, or a tree like them, to the table."""
        return jax.tree.map(lax.with_sharding_constraint, params, self.params)

    def put_params(self, params: Params) -> Params:
        """A copy in fp32 where the table says; each process brings the parts of its own devices.

        Args:
            params: whole in every process: host arrays, or arrays on its own devices.
        """
        return jax.tree.map(lambda leaf, sharding: put(np.asarray(leaf, np.float32), sharding), params, self.params)

    def gather_layer(self, layer: dict[str, Array], dtype: DTypeLike) -> dict[str, Array]:
        """Inside `over_rows`: the whole of one layer's parameters, matrices in the compute dtype, for this chip's rows.

        What travels is in the compute dtype; the gradient's sum over chips is made in fp32, and each chip gets its own
        part of it, at each layer, so neither all weights nor all gradients ever exist on a chip.
        """
        whole = {}
        for name, leaf in layer.items():
            axes = TABLE[name]
            kept = dtype if is_matrix(name) else jnp.float32
            divided = [axis for axis, entry in enumerate(axes) if entry == FSDP or FSDP in (entry or ())]
            whole[name] = _gather(leaf, divided[0], jnp.dtype(kept)) if divided else leaf.astype(kept)
        return whole

    def over_rows(self, function: Callable[..., Array], layers: Params, *arrays_BxT: Array) -> Array:
        """`function(layers, *arrays)` on every chip, with its own rows; layers come as parts, for `gather_layer`.

        Only `data` and `fsdp` are by hand: each chip runs the program of one device and nothing is exchanged but
        parameters and their gradients. `tensor` is left to the compiler.

        Args:
            layers: a part of `Params`.
            arrays_BxT: [B, T, ...], divided over rows.

        Returns:
            [B, T, ...], divided over rows.
        """
        specs = jax.tree.map_with_path(self._by_hand, layers)
        rows = PartitionSpec(ROWS)
        return jax.shard_map(
            function,
            mesh=self.mesh,
            in_specs=(specs, *(rows,) * len(arrays_BxT)),
            out_specs=rows,
            axis_names=set(AXES) if self.mesh.shape[TENSOR] == 1 else set(ROWS),
            check_vma=False,
        )(layers, *arrays_BxT)

    def _by_hand(self, path: tuple[Any, ...], leaf: Array) -> PartitionSpec:
        """A parameter's spec without `tensor`."""
        axes = (FSDP if entry == FSDP or FSDP in (entry or ()) else None for entry in TABLE[path[-1].key])
        return PartitionSpec(*(None,) * (leaf.ndim - len(TABLE[path[-1].key])), *axes)

    def lookup(self, table_VxD: Array, tokens_BxT: Array, dtype: DTypeLike) -> Array:
        """`table[tokens]` in `dtype`, [B, T, D], with no chip ever holding the table.

        Each chip looks up its own columns (and its own part of the vocabulary) for the rows of its whole `fsdp` group;
        one exchange turns columns of all rows into whole rows.
        """

        def local(table: Array, tokens: Array) -> Array:
            tokens = lax.all_gather(tokens, FSDP, axis=0, tiled=True)
            index = tokens - lax.axis_index(TENSOR) * table.shape[0]
            mine = (index >= 0) & (index < table.shape[0])
            found = jnp.where(mine[..., None], table[jnp.where(mine, index, 0)], 0).astype(dtype)
            found = lax.psum(found, TENSOR)
            return lax.all_to_all(found, FSDP, split_axis=0, concat_axis=2, tiled=True)

        return jax.shard_map(
            local,
            mesh=self.mesh,
            in_specs=(PartitionSpec(*TABLE["embed"]), PartitionSpec(ROWS)),
            out_specs=PartitionSpec(ROWS),
        )(table_VxD, tokens_BxT)


def over_heads(function: Callable[..., Any], in_specs: Any, out_specs: Any) -> Callable[..., Any]:
    """`function` on every chip of the `tensor` axis with its own heads, where the context has such an axis.

    For what the compiler cannot divide by itself: kernels.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or TENSOR not in mesh.axis_names or mesh.shape[TENSOR] == 1 or TENSOR in mesh.manual_axes:
        return function
    return jax.shard_map(function, in_specs=in_specs, out_specs=out_specs, axis_names={TENSOR}, check_vma=False)


def put(array: np.ndarray, sharding: NamedSharding) -> Array:
    """A host array, the same in every process, where a sharding says. No process asks another for anything.

    Every part is copied: on a CPU an array would otherwise share its memory with the next device's.
    """
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index].copy())


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _gather(part: Array, axis: int, dtype: jnp.dtype) -> Array:
    """All parts of an `fsdp` group along `axis`, in `dtype`."""
    return lax.all_gather(part.astype(dtype), FSDP, axis=axis, tiled=True)


def _gather_forward(part: Array, axis: int, dtype: jnp.dtype) -> tuple[Array, None]:
    return _gather(part, axis, dtype), None


def _gather_backward(axis: int, dtype: jnp.dtype, residual: None, gradient: Array) -> tuple[Array]:
    del dtype, residual
    return (lax.psum_scatter(gradient.astype(jnp.float32), FSDP, scatter_dimension=axis, tiled=True),)


_gather.defvjp(_gather_forward, _gather_backward)


def _size(mesh: Mesh, axis: str | tuple[str, ...]) -> int:
    return int(np.prod([mesh.shape[name] for name in (axis if isinstance(axis, tuple) else (axis,))]))


def _written_axis(mesh: Mesh, axis: str | tuple[str, ...]) -> str:
    names = axis if isinstance(axis, tuple) else (axis,)
    return " x ".join(f"{name} ({mesh.shape[name]})" for name in names)


def _written(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {size}" for name, size in sizes.items())
