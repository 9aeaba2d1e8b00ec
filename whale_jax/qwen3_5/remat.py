"""What the backward pass of training recomputes instead of keeping.

Per position of a row, with D the hidden size and F the feed-forward size, a layer keeps about

    NONE    everything it computed: some 10 D + 5 F numbers, and the inner arrays of the delta rule
    DOTS    the results of its products with weight matrices; the rest is recomputed
    LAYER   its input: D numbers; the layer is run again
    GROUP   a quarter of that: the input of each group of four; its layers are run twice more

What long rows compute anew block by block (`deltanet`, `blockwise`, `feed_forward`) they do under every policy.

Executed work of the layers over 6 x parameters: 1 for NONE and (almost) DOTS, 4/3 for LAYER, 5/3 for GROUP.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Any

import jax

Function = Callable[..., Any]


class Remat(StrEnum):
    """How much is recomputed; see the module."""

    NONE = "none"
    DOTS = "dots"
    LAYER = "layer"
    GROUP = "group"

    @classmethod
    def of(cls, value: "Remat | str | bool") -> "Remat":
        """The policy meant by a setting: a name, or a bool (True is LAYER, False is NONE).

        Raises:
            ValueError: no policy has that name.
        """
        if isinstance(value, bool):
            return cls.LAYER if value else cls.NONE
        try:
            return cls(value)
        except ValueError:
            raise ValueError(f"remat must be one of {', '.join(cls)}, got {value!r}") from None


def checkpoint_layer(policy: Remat) -> Callable[[Function], Function]:
    """The decorator of one layer."""
    if policy is Remat.NONE:
        return lambda function: function
    if policy is Remat.DOTS:

        def keep_dots(function: Function) -> Function:
            # Products with a batch dimension are those of attention and the delta rule: large, and cheap to redo.
            return jax.checkpoint(function, policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable)

        return keep_dots
    return jax.checkpoint


def checkpoint_group(policy: Remat) -> Callable[[Function], Function]:
    """The decorator of a group of four layers, around that of its layers."""
    return jax.checkpoint if policy is Remat.GROUP else lambda function: function
