"""The parameters of a Qwen3.5 text model: a plain nested dict of arrays, and a Flax NNX module that holds the same.

    embed [V, D]    final_norm [D]    lm_head [V, D] (only if untied)
    linear          the three linear layers of every group, each leaf with two leading axes [G, L, ...]
      input_norm [D]  qkv [D, Q]  z [D, Hv Dv]  b [D, Hv]  a [D, Hv]  conv [W + 1, Q]  a_log [Hv]  dt_bias [Hv]
      norm [Dv]  out [Hv Dv, D]  post_norm [D]  gate [D, F]  up [D, F]  down [F, D]
    full            the full-attention layer of every group, leading axis [G, ...]
      input_norm [D]  q [D, N 2 H]  k [D, Kh H]  v [D, Kh H]  q_norm [H]  k_norm [H]  o [N H, D]
      post_norm [D]  gate [D, F]  up [D, F]  down [F, D]

Matrices map inputs (rows) to outputs (columns). The stacking over groups is what `jax.lax.scan` runs over, so tracing
and code do not grow with depth. All functions of this package take the plain dict, because a jitted call flattens it at
C++ speed; the module's graph is split and merged only where a module is wanted.

*By layer* (`by_layer`), `linear` and `full` are tuples instead, of one dict per layer in order, without leading axes,
and `unembed` [D, V] is there in place of `lm_head`. The two serving passes take either form: stacked, they loop over
layers; by layer, they are unrolled.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import DTypeLike

from whale_jax.qwen3_5.config import LINEAR_PER_GROUP, Qwen35Config

Params = dict[str, Any]
"""See the module docstring."""


def param_shapes(config: Qwen35Config) -> dict[str, Any]:
    """The shape of every parameter, in the structure of `Params`."""
    c = config
    hidden, ffn = c.hidden_size, c.intermediate_size
    query_size, kv_size = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    around = {
        "input_norm": (hidden,),
        "post_norm": (hidden,),
        "gate": (hidden, ffn),
        "up": (hidden, ffn),
        "down": (ffn, hidden),
    }
    linear = around | {
        "qkv": (hidden, c.conv_channels),
        "z": (hidden, c.value_size),
        "b": (hidden, c.linear_value_heads),
        "a": (hidden, c.linear_value_heads),
        "conv": (c.conv_kernel, c.conv_channels),
        "a_log": (c.linear_value_heads,),
        "dt_bias": (c.linear_value_heads,),
        "norm": (c.linear_value_dim,),
        "out": (c.value_size, hidden),
    }
    full = around | {
        "q": (hidden, 2 * query_size),
        "k": (hidden, kv_size),
        "v": (hidden, kv_size),
        "q_norm": (c.head_dim,),
        "k_norm": (c.head_dim,),
        "o": (query_size, hidden),
    }
    shapes: dict[str, Any] = {
        "embed": (c.vocab_size, hidden),
        "final_norm": (hidden,),
        "linear": {name: (c.num_groups, LINEAR_PER_GROUP, *shape) for name, shape in linear.items()},
        "full": {name: (c.num_groups, *shape) for name, shape in full.items()},
    }
    return shapes if c.tie_embeddings else shapes | {"lm_head": (c.vocab_size, hidden)}


_MATRICES = frozenset(
    ["embed", "lm_head", "unembed", "qkv", "z", "b", "a", "out", "q", "k", "v", "o", "gate", "up", "down"]
)


def is_matrix(name: str) -> bool:
    """Whether a parameter enters a matrix product: its dtype may be the compute dtype's."""
    return name in _MATRICES


def cast_params(params: Params, dtype: DTypeLike) -> Params:
    """Parameters in a compute dtype: what enters a matrix product is cast, everything else is kept in fp32.

    Norm weights, the convolution's taps and the decay parameters (`a_log`, `dt_bias`) are used in fp32 whatever the
    compute dtype. They are a few thousand numbers per layer, and rounding them to bf16 would change the decay of the
    state and lose small updates.
    """

    def cast(path: tuple[Any, ...], leaf: Any) -> Array:
        return jnp.asarray(leaf).astype(dtype if is_matrix(path[-1].key) else jnp.float32)

    return jax.tree.map_with_path(cast, params)


def by_layer(params: Params) -> Params:
    """Stacked parameters with every layer's own arrays apart: what a CPU serves from.

    XLA's CPU backend copies a layer out of its stack before every product that uses it, and in decoding that takes as
    long as the products. For few rows, its product with a transposed table takes twice as long as with a plain one.
    """
    linear = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), params["linear"])
    layers = {
        name: tuple({key: leaf[index] for key, leaf in stack.items()} for index in range(len(stack["gate"])))
        for name, stack in (("linear", linear), ("full", params["full"]))
    }
    table = params.get("lm_head", params["embed"])
    return {"embed": params["embed"], "final_norm": params["final_norm"], "unembed": table.T, **layers}


def is_by_layer(params: Params) -> bool:
    """Whether parameters are in the form that `by_layer` gives."""
    return isinstance(params["full"], tuple)


def abstract_params(config: Qwen35Config, dtype: DTypeLike = jnp.float32) -> Any:
    """Every parameter as a `jax.ShapeDtypeStruct`, in the structure of `Params`."""
    return jax.tree.map(
        lambda shape: jax.ShapeDtypeStruct(shape, dtype),
        param_shapes(config),
        is_leaf=lambda node: isinstance(node, tuple),
    )


def init_params(config: Qwen35Config, key: Array, dtype: DTypeLike = jnp.float32) -> Params:
    """Random parameters as the reference initialises them: small matrices, identity norms, decay rates in 0.01..16."""
    shapes = param_shapes(config)
    leaves, structure = jax.tree.flatten_with_path(shapes, is_leaf=lambda node: isinstance(node, tuple))
    keys = jax.random.split(key, len(leaves))
    arrays = [_initial(path[-1].key, shape, k, dtype) for (path, shape), k in zip(leaves, keys, strict=True)]
    return jax.tree.unflatten(structure, arrays)


def _initial(name: str, shape: tuple[int, ...], key: Array, dtype: DTypeLike) -> Array:
    if name in ("input_norm", "post_norm", "final_norm", "q_norm", "k_norm"):
        return jnp.zeros(shape, dtype)
    if name in ("norm", "dt_bias"):
        return jnp.ones(shape, dtype)
    if name == "a_log":
        return jnp.log(jax.random.uniform(key, shape, minval=0.01, maxval=16.0)).astype(dtype)
    if name == "conv":  # the reference leaves torch's default here: uniform within 1 / sqrt(kernel)
        bound = shape[-2] ** -0.5
        return jax.random.uniform(key, shape, minval=-bound, maxval=bound).astype(dtype)
    return (0.02 * jax.random.normal(key, shape)).astype(dtype)


class Qwen35(nnx.Module):
    """A Qwen3.5 text model as an NNX module: a holder of `Params` with the forward pass attached."""

    def __init__(self, config: Qwen35Config, params: Params) -> None:
        self.config = config
        self.params = nnx.data(jax.tree.map(nnx.Param, params))

    def as_params(self) -> Params:
        """The plain nested dict that the functions of this package take; the arrays are shared, not copied."""
        return jax.tree.map(lambda leaf: leaf[...], self.params, is_leaf=lambda node: isinstance(node, nnx.Param))
