"""The one table between `Params` and a Hugging Face checkpoint: names, places and transforms, for both directions.

The text model's tensors are named `model.language_model.*` (composite checkpoints) or `model.*` (text-only ones), plus
`lm_head.weight` when the embeddings are not tied.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from whale_jax.qwen3_5.config import FULL_ATTENTION_INTERVAL, LINEAR_PER_GROUP, Qwen35Config
from whale_jax.qwen3_5.params import param_shapes


@dataclass(frozen=True)
class Transform:
    """How an array of the checkpoint becomes ours, and back. Both directions are exact."""

    in_: Callable[[np.ndarray], np.ndarray]
    out: Callable[[np.ndarray], np.ndarray]


SAME = Transform(lambda x: x, lambda x: x)
_TRANSPOSE = Transform(lambda x: x.T, lambda x: x.T)  # torch keeps [out, in]
_CONV = Transform(lambda x: x[:, 0].T, lambda x: x.T[:, None])  # torch keeps [channels, 1, taps]

_TABLE: dict[tuple[str, ...], tuple[str, Transform]] = {
    ("embed",): ("embed_tokens.weight", SAME),
    ("final_norm",): ("norm.weight", SAME),
    ("lm_head",): ("lm_head.weight", SAME),
    **{
        (kind, ours): (theirs, transform)
        for kind in ("linear", "full")
        for ours, theirs, transform in (
            ("input_norm", "input_layernorm.weight", SAME),
            ("post_norm", "post_attention_layernorm.weight", SAME),
            ("gate", "mlp.gate_proj.weight", _TRANSPOSE),
            ("up", "mlp.up_proj.weight", _TRANSPOSE),
            ("down", "mlp.down_proj.weight", _TRANSPOSE),
        )
    },
    ("linear", "qkv"): ("linear_attn.in_proj_qkv.weight", _TRANSPOSE),
    ("linear", "z"): ("linear_attn.in_proj_z.weight", _TRANSPOSE),
    ("linear", "b"): ("linear_attn.in_proj_b.weight", _TRANSPOSE),
    ("linear", "a"): ("linear_attn.in_proj_a.weight", _TRANSPOSE),
    ("linear", "conv"): ("linear_attn.conv1d.weight", _CONV),
    ("linear", "a_log"): ("linear_attn.A_log", SAME),
    ("linear", "dt_bias"): ("linear_attn.dt_bias", SAME),
    ("linear", "norm"): ("linear_attn.norm.weight", SAME),
    ("linear", "out"): ("linear_attn.out_proj.weight", _TRANSPOSE),
    ("full", "q"): ("self_attn.q_proj.weight", _TRANSPOSE),
    ("full", "k"): ("self_attn.k_proj.weight", _TRANSPOSE),
    ("full", "v"): ("self_attn.v_proj.weight", _TRANSPOSE),
    ("full", "q_norm"): ("self_attn.q_norm.weight", SAME),
    ("full", "k_norm"): ("self_attn.k_norm.weight", SAME),
    ("full", "o"): ("self_attn.o_proj.weight", _TRANSPOSE),
}
"""Path in `Params` to name in the checkpoint (after the prefix of model or layer) and transform, both ways."""


@dataclass(frozen=True)
class Slot:
    """The place of one checkpoint tensor in `Params`: `params[path][index]`."""

    path: tuple[str, ...]
    index: tuple[int, ...]
    shape: tuple[int, ...]
    """Shape in `Params`, without the stacking axes."""
    transform: Transform


def slots(config: Qwen35Config, prefix: str) -> Iterator[tuple[str, Slot]]:
    """Every tensor of the text model, by its name in a checkpoint whose text names start with `prefix`."""
    for path, shape in leaves(param_shapes(config)):
        theirs, transform = _TABLE[path]
        if path == ("lm_head",):
            yield theirs, Slot(path, (), shape, transform)
        elif len(path) == 1:
            yield prefix + theirs, Slot(path, (), shape, transform)
        elif path[0] == "full":
            for group in range(config.num_groups):
                layer = FULL_ATTENTION_INTERVAL * group + LINEAR_PER_GROUP
                yield f"{prefix}layers.{layer}.{theirs}", Slot(path, (group,), shape[1:], transform)
        else:
            for group, inner in np.ndindex(config.num_groups, LINEAR_PER_GROUP):
                layer = FULL_ATTENTION_INTERVAL * group + inner
                yield f"{prefix}layers.{layer}.{theirs}", Slot(path, (group, inner), shape[2:], transform)


def leaves(tree: dict[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The leaves of a tree like `Params`, two levels deep at most, by path."""
    for name, node in tree.items():
        if isinstance(node, dict):
            yield from (((name, inner), leaf) for inner, leaf in node.items())
        else:
            yield (name,), node


def get_leaf(params: dict[str, Any], path: tuple[str, ...]) -> Any:
    """The leaf at a path."""
    for name in path:
        params = params[name]
    return params
