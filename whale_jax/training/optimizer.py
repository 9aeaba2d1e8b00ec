"""The optimizer of the weight phase.

The paper states a constant learning rate of 1e-7 without warm-up (1e-6 for SearchQA in one report). Betas, epsilon,
weight decay and clipping are open in the paper; the defaults here are the customary ones of language-model fine-tuning,
and weight decay is off, because a run at such a learning rate is meant to change the weights by its gradients alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import optax


@dataclass(frozen=True)
class OptimizerSettings:
    """AdamW with a constant learning rate.

    Attributes:
        learning_rate: step size > 0 (PAPER section 3: 1e-7).
        b1: decay of the first moment, in [0, 1) (open in the paper).
        b2: decay of the second moment, in [0, 1) (open in the paper).
        eps: > 0, added to the root of the second moment (open in the paper).
        weight_decay: decoupled decay per step, times the learning rate, on every parameter; >= 0 (open in the paper).
        clip_norm: global gradient norm above which the gradient is scaled down; 0 never does (open in the paper).

    Raises:
        ValueError: a value is out of range.
    """

    learning_rate: float = 1e-7
    b1: float = 0.9
    b2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        ranges = {
            "learning_rate": (self.learning_rate > 0, "> 0"),
            "b1": (0 <= self.b1 < 1, "in [0, 1)"),
            "b2": (0 <= self.b2 < 1, "in [0, 1)"),
            "eps": (self.eps > 0, "> 0"),
            "weight_decay": (self.weight_decay >= 0, ">= 0"),
            "clip_norm": (self.clip_norm >= 0, ">= 0"),
        }
        wrong = [
            f"{name} must be {want}, got {getattr(self, name)}" for name, (good, want) in ranges.items() if not good
        ]
        if wrong:
            raise ValueError("optimizer: " + "; ".join(wrong))


def make_optimizer(settings: OptimizerSettings) -> optax.GradientTransformation:
    """Clip by the global norm, then AdamW. Its state is carried across cycles (open in the paper)."""
    adamw = optax.adamw(
        settings.learning_rate,
        b1=settings.b1,
        b2=settings.b2,
        eps=settings.eps,
        weight_decay=settings.weight_decay,
    )
    return optax.chain(optax.clip_by_global_norm(settings.clip_norm), adamw) if settings.clip_norm else adamw


def like_params(
    optimizer: optax.GradientTransformation,
    opt_state: optax.OptState,
    function: Callable[[Any, Any], Any],
    of_params: Any,
    of_others: Any,
) -> optax.OptState:
    """Maps `function` over an optimizer's state and something known per parameter, such as its sharding.

    Args:
        of_params: a tree like the parameters; each moment of a parameter meets that parameter's entry.
        of_others: what the rest of the state (counters) meets.
    """
    return optax.tree.map_params(
        optimizer, function, opt_state, of_params, transform_non_params=lambda leaf: function(leaf, of_others)
    )
