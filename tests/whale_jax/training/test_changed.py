"""The share of bf16 weights that a swap changes."""

import jax.numpy as jnp
import numpy as np

from whale_jax.training.changed import bf16_matrices, changed_share


def params(step):
    """A matrix of ones whose first row is moved by `step`, and a norm weight, which is served in fp32."""
    return {"embed": jnp.ones((4, 5)).at[0].add(step), "final_norm": jnp.ones(3) + step}


def test_a_step_below_bf16s_resolution_changes_nothing_and_one_above_it_what_it_touches():
    before = bf16_matrices(params(0.0))
    assert [leaf.shape for leaf in before] == [(4, 5)]
    assert changed_share(before, bf16_matrices(params(1e-4))) == 0.0
    assert changed_share(before, bf16_matrices(params(0.01))) == np.float64(5 / 20)


def test_weights_that_are_served_in_bf16_are_compared_as_they_are():
    served = {"embed": params(0.0)["embed"].astype(jnp.bfloat16)}
    assert changed_share(bf16_matrices(params(0.0)), bf16_matrices(served)) == 0.0
