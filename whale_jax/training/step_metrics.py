"""What is said of a training step: its figures, or where it went wrong."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from whale_jax.qwen3_5.params import Params
from whale_jax.training.fingerprint import named_leaves
from whale_jax.training.packing import Batch

_NAMED = 5
"""How many parameters a message names."""


@dataclass(frozen=True)
class Mismatch:
    """|trainer - sampler| log-probability of the sampled tokens, in nats, under the sampling distribution.

    Only where the weights are those that sampled does it measure numerics: at the first mini-batch after rollouts.
    """

    mean: float
    p99: float
    max: float


@dataclass(frozen=True)
class StepMetrics:
    """One optimizer step.

    Attributes:
        loss: mean negative log-likelihood per sampled token in nats, before the step.
        accuracy: share of sampled tokens that are the arg-max.
        grad_norm: global norm of the gradient of `loss`, before clipping.
        tokens: sampled tokens in the mini-batch.
        mismatch: None when no log-probability of the sampler is known.
    """

    loss: float
    accuracy: float
    grad_norm: float
    tokens: int
    mismatch: Mismatch | None


def diagnosis(params: Params, grads: Params, batches: Sequence[Batch], logprobs: Sequence[np.ndarray] | None) -> str:
    """Where it went wrong: parameters, gradients by parameter, and log-probabilities (if known) by micro-batch."""
    parts = []
    broken = [name for name, leaf in named_leaves(params).items() if not jnp.isfinite(leaf).all()]
    if broken:
        parts.append(f"not finite before the step: {', '.join(broken[:_NAMED])}")
    norms = {name: float(jnp.linalg.norm(leaf.astype(jnp.float32))) for name, leaf in named_leaves(grads).items()}
    worst = sorted(norms, key=lambda name: (np.isfinite(norms[name]), -norms[name]))[:_NAMED]
    parts.append("largest gradients (of the sum): " + ", ".join(f"{name} {norms[name]:.3g}" for name in worst))
    odd = [
        index
        for index, (batch, ours) in enumerate(zip(batches, logprobs or (), strict=logprobs is not None))
        if not np.isfinite(ours[batch.weights > 0]).all()
    ]
    if odd:
        parts.append(f"log-probabilities not finite in micro-batches {odd[:_NAMED]} of {len(batches)}")
    return "; ".join(parts)


def mismatch(batches: Sequence[Batch], logprobs: Sequence[np.ndarray]) -> Mismatch | None:
    """Compares on sampled tokens alone, those whose sampler log-probability is unknown (NaN) left out."""
    difference = np.concatenate(
        [
            np.abs(ours.astype(np.float64) - batch.sampler_logprobs)[batch.weights > 0]
            for batch, ours in zip(batches, logprobs, strict=True)
        ]
    )
    difference = difference[~np.isnan(difference)]
    if not difference.size:
        return None
    return Mismatch(float(difference.mean()), float(np.quantile(difference, 0.99)), float(difference.max()))
