"""Keyed sampling: the right distribution, the right log-probabilities, a function of the row alone."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from whale_jax.serving.driver import Sampling
from whale_jax.serving.sampling import Controls, is_stop, sample

VOCAB = 50
MAX_TOP_K = 20


def controls(
    rows: int,
    *,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 20,
    stop_ids: tuple[int, ...] = (),
    stop_from: int = 0,
) -> Controls:
    return Controls(
        np.stack([np.full(rows, 7), np.arange(rows)], axis=1).astype(np.uint32),
        np.full(rows, temperature, np.float32),
        np.full(rows, top_p, np.float32),
        np.full(rows, top_k, np.int32),
        np.tile(np.array([*stop_ids, *(-1,) * (4 - len(stop_ids))], np.int32), (rows, 1)),
        np.full(rows, stop_from, np.int32),
    )


def exact(
    logits_V: np.ndarray, *, temperature: float, top_p: float, top_k: int, left_out: tuple[int, ...] = ()
) -> np.ndarray:
    """The distribution that should be sampled from, by sorting, in float64."""
    logits_V = logits_V.copy()
    logits_V[list(left_out)] = -np.inf
    order = np.argsort(-logits_V, kind="stable")[:top_k]
    weight = np.exp((logits_V[order].astype(np.float64) - logits_V.max()) / temperature)
    weight /= weight.sum()
    kept = np.cumsum(weight) - weight < top_p
    probability_V = np.zeros(len(logits_V))
    probability_V[order[kept]] = weight[kept] / weight[kept].sum()
    return probability_V


@pytest.fixture(scope="module")
def logits_V() -> np.ndarray:
    return np.random.default_rng(0).normal(scale=2.0, size=VOCAB).astype(np.float32)


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 1.0, "top_p": 1.0, "top_k": 20},
        {"temperature": 0.7, "top_p": 1.0, "top_k": 5},
        {"temperature": 1.3, "top_p": 0.8, "top_k": 20},
        {"temperature": 1.0, "top_p": 0.05, "top_k": 20},
    ],
)
def test_empirical_distribution_and_log_probabilities(logits_V: np.ndarray, settings: dict) -> None:
    rows = 20_000
    out = sample(jnp.tile(logits_V, (rows, 1)), jnp.arange(rows), controls(rows, **settings), max_top_k=MAX_TOP_K)
    probability_V = exact(logits_V, **settings)
    tokens = np.asarray(out.token_B)
    np.testing.assert_allclose(np.bincount(tokens, minlength=VOCAB) / rows, probability_V, atol=0.015)
    assert (probability_V[tokens] > 0).all()
    np.testing.assert_allclose(out.logprob_B, np.log(probability_V[tokens]), atol=1e-5)
    np.testing.assert_allclose(out.model_logprob_B, jax.nn.log_softmax(logits_V)[tokens], atol=1e-5)


def test_stop_ids_are_left_out_before_their_first_position(logits_V: np.ndarray) -> None:
    """Before, the distribution is that of the other tokens; from there on, the whole one; the model's own always."""
    rows, first = 20_000, 10_000
    stop_ids = tuple(np.argsort(-logits_V)[[0, 3]].tolist())
    settings = controls(rows, stop_ids=stop_ids, stop_from=first)
    out = sample(jnp.tile(logits_V, (rows, 1)), jnp.arange(rows), settings, max_top_k=MAX_TOP_K)
    tokens, logprobs = np.asarray(out.token_B), np.asarray(out.logprob_B)
    for part, left_out in ((slice(0, first), stop_ids), (slice(first, rows), ())):
        probability_V = exact(logits_V, temperature=1.0, top_p=1.0, top_k=20, left_out=left_out)
        share_V = np.bincount(tokens[part], minlength=VOCAB) / first
        np.testing.assert_allclose(share_V, probability_V, atol=0.02)
        assert (probability_V[tokens[part]] > 0).all()
        np.testing.assert_allclose(logprobs[part], np.log(probability_V[tokens[part]]), atol=1e-5)
    np.testing.assert_allclose(out.model_logprob_B, jax.nn.log_softmax(logits_V)[tokens], atol=1e-5)


def test_stop_ids_of_each_row() -> None:
    settings = controls(3, stop_ids=(4, 7))
    assert is_stop(jnp.array([4, 7, 4]), settings).tolist() == [True] * 3
    assert is_stop(jnp.array([5, 0, 8]), settings).tolist() == [False] * 3


def test_temperature_zero_is_greedy_and_certain(logits_V: np.ndarray) -> None:
    out = sample(jnp.tile(logits_V, (4, 1)), jnp.arange(4), controls(4, temperature=0.0), max_top_k=MAX_TOP_K)
    assert out.token_B.tolist() == [int(logits_V.argmax())] * 4
    assert out.logprob_B.tolist() == [0.0] * 4
    assert float(out.model_logprob_B[0]) == pytest.approx(float(jax.nn.log_softmax(logits_V).max()), abs=1e-5)


def test_tokens_are_a_function_of_key_and_position(logits_V: np.ndarray) -> None:
    rows = 64
    logits = jnp.tile(logits_V, (rows, 1))
    settings = controls(rows)
    first = sample(logits, jnp.arange(rows), settings, max_top_k=MAX_TOP_K)
    back_to_front = Controls(*(field[::-1] for field in settings))
    again = sample(logits, jnp.arange(rows)[::-1], back_to_front, max_top_k=MAX_TOP_K)
    assert first.token_B.tolist() == again.token_B[::-1].tolist()
    assert first.logprob_B.tolist() == again.logprob_B[::-1].tolist()
    elsewhere = sample(logits, jnp.arange(rows) + 1, settings, max_top_k=MAX_TOP_K)
    assert first.token_B.tolist() != elsewhere.token_B.tolist()


def test_ties_go_to_the_lower_id_and_equal_logits_share_the_mass() -> None:
    logits = jnp.zeros((1000, 4))
    out = sample(logits, jnp.arange(1000), controls(1000, top_k=2), max_top_k=MAX_TOP_K)
    assert set(out.token_B.tolist()) == {0, 1}
    np.testing.assert_allclose(out.logprob_B, np.log(0.5), atol=1e-6)


def test_the_vocabulary_is_not_sorted() -> None:
    lowered = jax.jit(sample, static_argnames="max_top_k").lower(
        jnp.zeros((4, 1000)), jnp.arange(4), controls(4), max_top_k=MAX_TOP_K
    )
    assert " sort(" not in str(lowered.compile().as_text())


def test_numbers_that_are_not_finite_show_in_the_log_probability() -> None:
    out = sample(jnp.full((1, VOCAB), jnp.nan), jnp.zeros(1, jnp.int32), controls(1), max_top_k=MAX_TOP_K)
    assert not np.isfinite(out.model_logprob_B).any()


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_k": 0},
        {"min_tokens": -1},
        {"stop_strings": ("",)},
    ],
)
def test_settings_out_of_range_are_refused(bad: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        Sampling(**bad)
