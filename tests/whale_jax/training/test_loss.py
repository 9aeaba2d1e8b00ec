"""The chunked loss equals the naive one, in value and gradient, for any chunk and any mask."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from whale_jax.training.loss import sum_nll

N, D, V = 37, 8, 23


def naive(hidden, weight, targets, weights):
    logp = jax.nn.log_softmax(hidden.astype(jnp.float32) @ weight.astype(jnp.float32).T)
    return -jnp.sum(weights * jnp.take_along_axis(logp, targets[:, None], axis=1)[:, 0])


def problem(seed=0, density=0.4):
    rng = np.random.default_rng(seed)
    hidden = jnp.asarray(rng.normal(size=(N, D)), jnp.float32)
    weight = jnp.asarray(rng.normal(size=(V, D)), jnp.float32)
    targets = jnp.asarray(rng.integers(0, V, N), jnp.int32)
    weights = jnp.asarray(rng.random(N) < density, jnp.float32)
    return hidden, weight, targets, weights


@pytest.mark.parametrize("chunk", [1, 16, 64])
@pytest.mark.parametrize("density", [0.3, 1.0])
def test_value_and_gradient_equal_the_naive_loss(chunk, density):
    hidden, weight, targets, weights = problem(density=density)
    weights = weights * 1.7

    def chunked(h, w):
        return 0.5 * sum_nll(h, w, targets, weights, chunk=chunk).nll

    value, grads = jax.jit(jax.value_and_grad(chunked, argnums=(0, 1)))(hidden, weight)
    expected, expected_grads = jax.value_and_grad(lambda h, w: 0.5 * naive(h, w, targets, weights), (0, 1))(
        hidden, weight
    )
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    for got, want in zip(grads, expected_grads, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(chunked(hidden, weight), expected, rtol=1e-5)


def test_counts():
    hidden, weight, targets, weights = problem()
    sums = sum_nll(hidden, weight, targets, weights, chunk=8)
    right = np.argmax(np.asarray(hidden @ weight.T), axis=1) == np.asarray(targets)
    assert float(sums.weight) == float(weights.sum())
    assert float(sums.correct) == float((right * np.asarray(weights)).sum())


def test_no_weighted_token_gives_zero_loss_and_zero_gradient():
    hidden, weight, targets, weights = problem()

    def loss(h, w):
        return sum_nll(h, w, targets, weights * 0, chunk=8).nll

    value, grads = jax.value_and_grad(loss, (0, 1))(hidden, weight)
    assert float(value) == 0.0
    assert all(not np.asarray(g).any() for g in grads)


def test_what_stands_at_unweighted_places_cannot_reach_the_loss():
    hidden, weight, targets, weights = problem()
    poisoned = jnp.where(weights[:, None] > 0, hidden, jnp.nan)
    want = sum_nll(hidden, weight, targets, weights, chunk=5)
    got, grads = jax.value_and_grad(lambda h: sum_nll(h, weight, targets, weights, chunk=8).nll)(poisoned)
    np.testing.assert_allclose(got, want.nll, rtol=1e-5)
    assert np.isfinite(np.asarray(grads)).all()


def test_bf16_products_accumulate_in_fp32():
    hidden, weight, targets, weights = problem()
    low = sum_nll(hidden.astype(jnp.bfloat16), weight, targets, weights, chunk=8).nll
    assert low.dtype == jnp.float32
    np.testing.assert_allclose(low, naive(hidden, weight, targets, weights), rtol=2e-2)


@pytest.mark.parametrize(("chunk", "tokens"), [(0, 4), (4, 0)])
def test_senseless_shapes_are_refused(chunk, tokens):
    hidden, weight, targets, weights = problem()
    with pytest.raises(ValueError, match="sum_nll"):
        sum_nll(hidden[:tokens], weight, targets[:tokens], weights[:tokens], chunk=chunk)
