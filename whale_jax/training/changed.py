"""How much of the weights a swap really changes: at small learning rates most of bf16 stays as it is."""

from typing import Any

import jax
import jax.numpy as jnp

from whale_jax.qwen3_5.params import Params, is_matrix


@jax.jit
def bf16_matrices(params: Params) -> list[jax.Array]:
    """The matrices as a bf16 engine serves them. Arrays that are bf16 already are not copied."""
    return [leaf.astype(jnp.bfloat16) for path, leaf in jax.tree.leaves_with_path(params) if is_matrix(_name(path))]


def changed_share(before: list[jax.Array], after: list[jax.Array]) -> float:
    """Share of the elements that differ, in [0, 1]. The arrays may be placed differently."""
    before = [jax.device_put(one, other.sharding) for one, other in zip(before, after, strict=True)]
    changed = sum(int(count) for count in jax.device_get(_changed(before, after)))
    return changed / sum(leaf.size for leaf in after)


@jax.jit
def _changed(before: list[jax.Array], after: list[jax.Array]) -> list[jax.Array]:
    return [jnp.sum(one != other, dtype=jnp.uint32) for one, other in zip(before, after, strict=True)]


def _name(path: tuple[Any, ...]) -> str:
    return path[-1].key
