"""AdamW as the settings say."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from whale_jax.training.optimizer import OptimizerSettings, make_optimizer

PARAMS = {"w": jnp.array([1.0, -2.0])}
GRADS = {"w": jnp.array([3.0, 4.0])}  # norm 5


def step(settings, grads=GRADS):
    optimizer = make_optimizer(settings)
    updates, _ = optimizer.update(grads, optimizer.init(PARAMS), PARAMS)
    return np.asarray(optax.apply_updates(PARAMS, updates)["w"])


def test_the_first_step_moves_every_weight_by_the_learning_rate():
    np.testing.assert_allclose(step(OptimizerSettings(learning_rate=0.1)), [0.9, -2.1], rtol=1e-5)


def test_weight_decay_is_decoupled_and_off_by_default():
    decayed = step(OptimizerSettings(learning_rate=0.1, weight_decay=0.5))
    np.testing.assert_allclose(decayed, [0.9 - 0.05, -2.1 + 0.1], rtol=1e-5)
    assert OptimizerSettings().weight_decay == 0


def test_clipping_scales_the_whole_gradient_and_zero_never_clips():
    settings = {"learning_rate": 0.1, "eps": 1.0}  # with a large epsilon the size of the gradient shows
    clipped = step(OptimizerSettings(**settings, clip_norm=1.0))
    np.testing.assert_allclose(clipped, [1 - 0.1 * 0.6 / 1.6, -2 - 0.1 * 0.8 / 1.8], rtol=1e-5)
    unclipped = step(OptimizerSettings(**settings, clip_norm=0.0))
    np.testing.assert_allclose(unclipped, [1 - 0.1 * 3 / 4, -2 - 0.1 * 4 / 5], rtol=1e-5)


def test_values_out_of_range_are_all_named():
    with pytest.raises(ValueError, match=r"learning_rate must be > 0, got 0; b2 must be in \[0, 1\), got 1"):
        OptimizerSettings(learning_rate=0, b2=1)
