"""Names and content hashes of the arrays of a pytree: what checkpoints verify and journals record."""

import hashlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np


def named_leaves(tree: Any) -> dict[str, Any]:
    """The leaves of a pytree by path, for example `params/blocks/norm`, in the tree's own order.

    Raises:
        ValueError: two leaves have the same path.
    """
    leaves = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if name in leaves:
            raise ValueError(f"two leaves of the tree are called {name!r}")
        leaves[name] = leaf
    return leaves


def describe(array: Any) -> dict[str, Any]:
    """dtype, shape and SHA-256 of an array's bytes (C order) as JSON: equal exactly for bit-equal arrays."""
    host = np.ascontiguousarray(jax.device_get(array))
    digest = hashlib.sha256(host.reshape(-1).view(np.uint8).data).hexdigest()
    return {"dtype": str(host.dtype), "shape": list(np.shape(array)), "sha256": digest}


def describe_all(tree: Any) -> dict[str, dict[str, Any]]:
    """`describe` of every leaf, by path."""
    return {name: describe(leaf) for name, leaf in named_leaves(tree).items()}


def fingerprint(tree: Any) -> str:
    """SHA-256 of a pytree's paths, dtypes, shapes and bits, whatever its containers or its order of keys."""
    return combine(describe_all(tree))


def combine(descriptions: Mapping[str, Mapping[str, Any]]) -> str:
    """The fingerprint of a tree from its descriptions."""
    lines = [
        f"{name} {item['dtype']} {'x'.join(map(str, item['shape']))} {item['sha256']}"
        for name, item in sorted(descriptions.items())
    ]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
