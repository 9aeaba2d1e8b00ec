"""Products with weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.whale_jax.qwen3_5.equations import equations
from whale_jax.qwen3_5.layers import product
from whale_jax.qwen3_5.model import forward


@pytest.mark.parametrize("rows", [(), (5,), (2, 5)], ids=str)
def test_a_product_is_that_of_its_matrices(rows):
    rng = np.random.default_rng(0)
    x, weight = rng.normal(size=(*rows, 3)).astype(np.float32), rng.normal(size=(3, 4)).astype(np.float32)
    np.testing.assert_allclose(product(jnp.asarray(x), jnp.asarray(weight)), x @ weight, rtol=1e-6, atol=1e-6)


def test_no_gradient_of_a_large_weight_contracts_over_two_axes(tiny_config, tiny_params):
    """Over two, XLA copies both operands into another order first, at every layer of every training step."""
    tokens, smallest = jnp.ones((2, 6), jnp.int32), min(tiny_config.hidden_size, tiny_config.intermediate_size)

    def total(params):
        return jnp.sum(forward(tiny_config, params, tokens, tokens))

    found = [
        len(equation.params["dimension_numbers"][0][0])
        for equation in equations(jax.make_jaxpr(jax.grad(total))(tiny_params).jaxpr)
        if equation.primitive.name == "dot_general"
        and equation.outvars[0].aval.ndim == 2
        and min(equation.outvars[0].aval.shape) >= smallest
    ]
    assert found
    assert max(found) == 1
