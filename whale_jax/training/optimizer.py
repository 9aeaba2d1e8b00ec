"""The optimizer of the weight phase.

The paper states a constant learning rate of 1e-7 without warm-up (1e-6 for SearchQA in one report). Betas, epsilon,
weight decay and clipping are open in the paper; the defaults here are the customary ones of language-model fine-tuning,
and weight decay is off, because a run at such a learning rate is meant to change the weights by its gradients alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding, PartitionSpec


class OptimizerName(StrEnum):
    """Which update rule; all take the same learning rate and decoupled weight decay."""

    ADAMW = "adamw"
    """Two moments in fp32: 8 bytes of state per parameter."""
    LION = "lion"
    """The sign of one moment in bf16 (Chen et al. 2023): 2 bytes per parameter."""
    ADAFACTOR = "adafactor"
    """Second moments as a row and a column per matrix, no first moment (Shazeer and Stern 2018): about 0 bytes."""

    @property
    def state_bytes(self) -> int:
        """Of the optimizer's state, per parameter."""
        return {OptimizerName.ADAMW: 8, OptimizerName.LION: 2, OptimizerName.ADAFACTOR: 0}[self]


@dataclass(frozen=True)
class OptimizerSettings:
    """An optimizer with a constant learning rate.

    Attributes:
        learning_rate: step size > 0 (PAPER section 3: 1e-7).
        b1: adamw, lion: decay of the first moment, in [0, 1) (open in the paper).
        b2: adamw, lion: decay of the second moment (lion: of what the moment keeps), in [0, 1) (open in the paper).
        eps: adamw: > 0, added to the root of the second moment (open in the paper).
        weight_decay: decoupled decay per step, times the learning rate, on every parameter; >= 0 (open in the paper).
        clip_norm: global gradient norm above which the gradient is scaled down; 0 never does (open in the paper).
        name: the update rule (the paper: adamw).

    Raises:
        ValueError: a value is out of range.
    """

    learning_rate: float = 1e-7
    b1: float = 0.9
    b2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip_norm: float = 1.0
    name: OptimizerName = OptimizerName.ADAMW

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
    """Clip by the global norm, then the rule. Its state is carried across cycles (open in the paper)."""
    rule = _rule(settings)
    return optax.chain(optax.clip_by_global_norm(settings.clip_norm), rule) if settings.clip_norm else rule


def _rule(settings: OptimizerSettings) -> optax.GradientTransformation:
    match settings.name:
        case OptimizerName.ADAMW:
            return optax.adamw(
                settings.learning_rate,
                b1=settings.b1,
                b2=settings.b2,
                eps=settings.eps,
                weight_decay=settings.weight_decay,
            )
        case OptimizerName.LION:
            return optax.chain(
                optax.scale_by_lion(b1=settings.b1, b2=settings.b2, mu_dtype="bfloat16"),
                # Signs are exact in bf16; the learning rate and the decay are not.
                optax.stateless(lambda signs, params: jax.tree.map(lambda sign: sign.astype(jnp.float32), signs)),
                optax.add_decayed_weights(settings.weight_decay),
                optax.scale_by_learning_rate(settings.learning_rate),
            )
        case OptimizerName.ADAFACTOR:
            # Not optax.adafactor: there the step is multiplied by the size of the parameter, and the decay is not by
            # the learning rate, so --learning_rate and --weight_decay would mean something else than for the others.
            return optax.chain(
                optax.scale_by_factored_rms(),
                optax.clip_by_block_rms(1.0),
                optax.add_decayed_weights(settings.weight_decay),
                optax.scale_by_learning_rate(settings.learning_rate),
            )


def like_params(
    opt_state: optax.OptState,
    params: Any,
    function: Callable[[Any, Any, Any], Any],
    of_params: Any,
    of_others: Any,
) -> optax.OptState:
    """Maps `function` over an optimizer's state and something known per parameter, such as its sharding.

    Args:
        params: the parameters, or their shapes: every part of the state that has their structure is one value each.
        function: (leaf of the state, its parameter or None, what is known of it).
        of_params: a tree like the parameters; each moment of a parameter meets that parameter's entry.
        of_others: what the rest of the state (counters) meets.
    """
    structure = jax.tree.structure(params)

    def per_parameter(node: Any) -> bool:
        return jax.tree.structure(node) == structure

    def mapped(node: Any) -> Any:
        if per_parameter(node):
            return jax.tree.map(function, node, params, of_params)
        return function(node, None, of_others)

    return jax.tree.map(mapped, opt_state, is_leaf=per_parameter)


def state_sharding(leaf: Any, parameter: Any, sharding: NamedSharding) -> NamedSharding:
    """How a part of the optimizer's state is divided, given its parameter and that one's sharding.

    What has the parameter's shape is divided like it; a factored moment, which lacks one of its dimensions, like the
    dimensions that it has; anything else is on every chip.
    """
    if parameter is None or leaf.shape == parameter.shape:
        return sharding
    axes = tuple(sharding.spec) + (None,) * (len(parameter.shape) - len(sharding.spec))
    for missing in range(len(parameter.shape)):
        if leaf.shape == parameter.shape[:missing] + parameter.shape[missing + 1 :]:
            return NamedSharding(sharding.mesh, PartitionSpec(*axes[:missing], *axes[missing + 1 :]))
    return NamedSharding(sharding.mesh, PartitionSpec())
