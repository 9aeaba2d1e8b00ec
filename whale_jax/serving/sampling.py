"""Keyed sampling of one token per row.

A row's token depends on its own logits, controls and position alone: the random number is threefry folded with the
token's absolute position in the session, so it is the same in any row, batch and step.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

MAX_STOP_IDS = 8
"""Stop ids of one request, the engine's own included."""


class Controls(NamedTuple):
    """How each of B rows samples."""

    key_Bx2: jax.Array | np.ndarray  # uint32, threefry key data
    temperature_B: jax.Array | np.ndarray  # float32, 0 = greedy
    top_p_B: jax.Array | np.ndarray  # float32 in (0, 1]
    top_k_B: jax.Array | np.ndarray  # int32 in 1..max_top_k
    stop_BxM: jax.Array | np.ndarray  # int32 ids that end a reply; -1 where a row has fewer
    stop_from_B: jax.Array | np.ndarray  # int32, the first position at which a stop id may be sampled


class Sampled(NamedTuple):
    """One token per row and its log-probabilities."""

    token_B: jax.Array  # int32
    logprob_B: jax.Array  # float32, under the distribution sampled from
    model_logprob_B: jax.Array  # float32, under softmax(logits) over the whole vocabulary


def uniform(key_Bx2: jax.Array | np.ndarray, position_B: jax.Array) -> jax.Array:
    """One float32 in [0, 1) per row, a function of (key, position) alone."""

    def one(key_2: jax.Array | np.ndarray, position: jax.Array) -> jax.Array:
        key = jax.random.wrap_key_data(jnp.asarray(key_2), impl="threefry2x32")
        return jax.random.uniform(jax.random.fold_in(key, position), dtype=jnp.float32)

    return jax.vmap(one)(key_Bx2, position_B)


def sample(
    logits_BxV: jax.Array,
    position_B: jax.Array,
    controls: Controls,
    *,
    max_top_k: int,
    uniform_B: jax.Array | None = None,
) -> Sampled:
    """Samples a token per row from its top-k, top-p filtered distribution.

    Stop ids are left out before `stop_from_B`. Then comes top-k; top-p then keeps the fewest of the most probable
    tokens whose probability (after temperature and top-k) reaches top_p. The vocabulary is never sorted: `lax.top_k`
    finds `max_top_k` candidates.

    Args:
      logits_BxV: float32.
      position_B: int32, absolute position in the session of the token to sample.
      controls: per-row settings.
      max_top_k: static bound on `controls.top_k_B`.
      uniform_B: `uniform(controls.key_Bx2, position_B)` where the caller has it.

    Returns:
      Tokens and log-probabilities. Logits that are not finite give a `model_logprob_B` that is not finite.
    """
    logits_BxV = logits_BxV.astype(jnp.float32)
    log_mass_B = jax.nn.logsumexp(logits_BxV, axis=-1)
    allowed_BxV = _without_early_stops(logits_BxV, position_B, controls)
    top_BxK, ids_BxK = jax.lax.top_k(allowed_BxV, min(max_top_k, logits_BxV.shape[-1]))
    rank_K = jnp.arange(top_BxK.shape[-1])
    greedy_B = controls.temperature_B <= 0
    temperature_B = jnp.where(greedy_B, 1.0, controls.temperature_B)

    # Not top_BxK[:, :1]: XLA's CPU backend makes a full sort of a top-k whose result is sliced again.
    scaled_BxK = (top_BxK - jnp.max(top_BxK, axis=-1, keepdims=True)) / temperature_B[:, None]
    weight_BxK = jnp.where(rank_K < controls.top_k_B[:, None], jnp.exp(scaled_BxK), 0.0)
    through_BxK = jnp.cumsum(weight_BxK, axis=-1)
    before_BxK = through_BxK - weight_BxK
    kept_BxK = (before_BxK < controls.top_p_B[:, None] * through_BxK[:, -1:]) & (weight_BxK > 0)
    kept_BxK = kept_BxK | (rank_K == 0)
    mass_B = jnp.max(jnp.where(kept_BxK, through_BxK, 0.0), axis=-1)

    threshold_B = (uniform(controls.key_Bx2, position_B) if uniform_B is None else uniform_B) * mass_B
    passed_BxK = kept_BxK & (through_BxK <= threshold_B[:, None])
    last_kept_B = jnp.sum(kept_BxK, axis=-1) - 1
    choice_B = jnp.minimum(jnp.sum(passed_BxK, axis=-1), last_kept_B)
    choice_B = jnp.where(greedy_B, 0, choice_B)

    def chosen(values_BxK: jax.Array) -> jax.Array:
        return jnp.take_along_axis(values_BxK, choice_B[:, None], axis=-1)[:, 0]

    logprob_B = jnp.where(greedy_B, 0.0, chosen(scaled_BxK) - jnp.log(mass_B))
    return Sampled(chosen(ids_BxK).astype(jnp.int32), logprob_B, chosen(top_BxK) - log_mass_B)


def is_stop(token_B: jax.Array, controls: Controls) -> jax.Array:
    """Whether each row's token is one of its stop ids."""
    return jnp.any(token_B[:, None] == controls.stop_BxM, axis=-1)


def _without_early_stops(logits_BxV: jax.Array, position_B: jax.Array, controls: Controls) -> jax.Array:
    early_Bx1 = (position_B < controls.stop_from_B)[:, None]
    # A few columns of each row, in place, rather than a mask as large as the logits. -1 stands for no id.
    id_BxM = jnp.where(early_Bx1 & (controls.stop_BxM >= 0), controls.stop_BxM, logits_BxV.shape[-1])
    row_Bx1 = jnp.arange(logits_BxV.shape[0])[:, None]
    return logits_BxV.at[row_Bx1, id_BxM].set(-jnp.inf, mode="drop")
