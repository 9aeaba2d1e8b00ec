"""The delta rule: chunks against the recurrence, and the triangular solver against numpy."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from whale_jax.bench.delta_rule import triangular_solve
from whale_jax.qwen3_5.delta_rule import chunked_delta_rule, recurrent_delta_rule
from whale_jax.qwen3_5.deltanet import Rows, delta_net
from whale_jax.qwen3_5.layers import l2_norm
from whale_jax.qwen3_5.params import is_matrix
from whale_jax.qwen3_5.triangular import (
    inverse_by_doubling,
    inverse_by_rows,
    solve_unit_lower,
    unit_lower_inverse,
)

BATCH, LENGTH, KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM = 2, 70, 2, 4, 8, 6


def random_inputs(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)

    def unit(*shape: int) -> np.ndarray:
        x = rng.normal(size=shape)
        return x / np.linalg.norm(x, axis=-1, keepdims=True)

    inputs = {
        "q": unit(BATCH, LENGTH, KEY_HEADS, KEY_DIM),
        "k": unit(BATCH, LENGTH, KEY_HEADS, KEY_DIM),
        "v": rng.normal(size=(BATCH, LENGTH, VALUE_HEADS, VALUE_DIM)),
        "g": -np.exp(rng.normal(size=(BATCH, LENGTH, VALUE_HEADS)) - 1),
        "beta": rng.uniform(size=(BATCH, LENGTH, VALUE_HEADS)),
        "state": rng.normal(size=(BATCH, VALUE_HEADS, KEY_DIM, VALUE_DIM)),
    }
    return {name: array.astype(np.float32) for name, array in inputs.items()}


NO_RESET = jnp.zeros((BATCH, LENGTH), bool)
quick_jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
chunked = quick_jit(chunked_delta_rule, static_argnames="chunk")


def recurrence(q, k, v, g, beta, reset, state):
    def step(state, inputs):
        *inputs, reset = inputs
        state = jnp.where(reset[:, None, None, None], 0.0, state)
        o, state = recurrent_delta_rule(*inputs, state)
        return state, o

    inputs = tuple(jnp.swapaxes(x, 0, 1) for x in (q, k, v, g, beta, reset))
    state, o = jax.lax.scan(step, state, inputs)
    return jnp.swapaxes(o, 0, 1), state


by_recurrence = quick_jit(recurrence)


def assert_same(inputs: dict[str, np.ndarray], reset: jax.Array, chunk: int = 16) -> None:
    state = inputs["state"]
    rest = [inputs[name] for name in ("q", "k", "v", "g", "beta")]
    o, end = chunked(*rest, reset, state, chunk=chunk)
    expected_o, expected_end = by_recurrence(*rest, reset, state)
    for ours, theirs in ((o, expected_o), (end, expected_end)):
        scale = float(jnp.max(jnp.abs(theirs)))
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * max(scale, 1e-3))


@pytest.mark.parametrize("chunk", [4, 16, 64])
def test_chunked_equals_recurrent(chunk):
    assert_same(random_inputs(), NO_RESET, chunk)


EXTREMES = {
    "keeps everything": {"g": 0.0},
    "forgets everything": {"g": -1e4},
    "decays by 1e-30 per step": {"g": -69.0},
    "never writes": {"beta": 0.0},
    "overwrites": {"beta": 1.0},
    "overwrites one key without decay": {"beta": 1.0, "g": 0.0, "k": 1 / np.sqrt(KEY_DIM)},
    "zero keys": {"k": 0.0},
    "zero queries": {"q": 0.0},
}


@pytest.mark.parametrize("change", EXTREMES.values(), ids=EXTREMES)
def test_extreme_gates_and_keys(change):
    inputs = random_inputs()
    assert_same(inputs | {name: np.full_like(inputs[name], value) for name, value in change.items()}, NO_RESET)


@pytest.mark.parametrize("steps", [[-1e4, -0.3, -1e-3, 0.0], [-160.0, -20.0, -0.05]], ids=["extreme", "as trained"])
def test_weak_decay_after_strong_decay_in_one_chunk(steps):
    """One running sum of g would be off by its own rounding: 1e-3 after a step of -1e4, 4e-5 after one of -160."""
    rng = np.random.default_rng(7)
    inputs = random_inputs(6)
    rare = rng.uniform(size=inputs["g"].shape) < 0.1
    inputs["g"] = np.where(rare, rng.choice(steps, inputs["g"].shape), -1e-2).astype(np.float32)
    assert_same(inputs, NO_RESET, chunk=64)


def test_equal_keys_at_full_strength_where_a_closed_form_overflows():
    """A chunk of 64 equal keys without decay: the powers of its matrix pass 1e17, and cancel to 1 and -1."""
    inputs = random_inputs(4) | {"g": np.zeros((BATCH, LENGTH, VALUE_HEADS), np.float32)}
    inputs["k"] = np.broadcast_to(inputs["k"][:, :1], inputs["k"].shape).copy()
    inputs["beta"] = np.ones_like(inputs["beta"])
    assert_same(inputs, NO_RESET, chunk=64)


@pytest.mark.parametrize("starts", [[0], [1], [15, 16, 17], [1, 2, 3, 4, 5], list(range(LENGTH)), [69]])
def test_state_restarts_wherever_a_sequence_begins(starts):
    reset = NO_RESET.at[0, jnp.asarray(starts)].set(True)
    assert_same(random_inputs(1), reset)


def test_any_solver_may_take_the_place_of_the_doubling():
    inputs = random_inputs(5)
    arguments = [inputs[name] for name in ("q", "k", "v", "g", "beta")]
    solve = partial(chunked_delta_rule, chunk=16, solve=triangular_solve)
    ours = quick_jit(solve)(*arguments, NO_RESET, inputs["state"])
    theirs = chunked(*arguments, NO_RESET, inputs["state"], chunk=16)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_the_layer_takes_any_rule(tiny_config, tiny_params):
    """The seam for a kernel: the layer uses what it is given, with fp32 inputs whatever the compute dtype."""
    seen = []

    def rule(q, k, v, g, beta, reset, state):
        seen.extend(x.dtype for x in (q, k, v, g, beta, state))
        return jnp.zeros_like(v), state + 1

    layer = {name: np.asarray(leaf)[0, 0] for name, leaf in tiny_params["linear"].items()}
    layer = {name: leaf.astype(jnp.bfloat16) if is_matrix(name) else leaf for name, leaf in layer.items()}
    x = np.ones((1, 3, tiny_config.hidden_size), jnp.bfloat16)
    valid = np.ones((1, 3), bool)
    window = np.zeros((1, tiny_config.conv_window, tiny_config.conv_channels), jnp.bfloat16)
    state = np.zeros((1, tiny_config.linear_value_heads, tiny_config.linear_key_dim, tiny_config.linear_value_dim))
    state = state.astype(np.float32)
    rows = Rows(valid, ~valid, None)
    y, _, after = quick_jit(partial(delta_net, tiny_config, rule=rule))(layer, x, rows, window, state)
    assert set(seen) == {jnp.dtype(jnp.float32)}
    assert (y.dtype, float(jnp.abs(y).max()), float(after.min())) == (jnp.bfloat16, 0.0, 1.0)


def test_positions_that_must_not_count_leave_the_state_alone():
    inputs = random_inputs()
    silent = {name: array.copy() for name, array in inputs.items()}
    silent["g"][:, 40:] = silent["beta"][:, 40:] = 0.0
    names = ("q", "k", "v", "g", "beta")
    _, after_all = chunked(*(silent[n] for n in names), NO_RESET, inputs["state"], chunk=16)
    _, after_40 = chunked(*(inputs[n][:, :40] for n in names), NO_RESET[:, :40], inputs["state"], chunk=16)
    np.testing.assert_allclose(after_all, after_40, atol=1e-6)


@pytest.mark.parametrize("strong", [False, True])
def test_gradient_equals_that_of_the_recurrence(strong):
    inputs = random_inputs(2)
    if strong:
        inputs["g"][:, ::5] = -40.0
    reset = NO_RESET.at[1, 20].set(True)
    names = list(inputs)

    def total(function, *values):
        named = dict(zip(names, values, strict=True))
        o, end = function(*(named[n] for n in ("q", "k", "v", "g", "beta")), reset, named["state"])
        return jnp.sum(jnp.sin(o)) + jnp.sum(jnp.cos(end))

    arguments = tuple(range(len(names)))
    ours = quick_jit(jax.grad(lambda *v: total(lambda *a: chunked_delta_rule(*a, chunk=16), *v), arguments))
    theirs = quick_jit(jax.grad(lambda *v: total(recurrence, *v), arguments))
    for name, mine, reference in zip(names, ours(*inputs.values()), theirs(*inputs.values()), strict=True):
        np.testing.assert_allclose(mine, reference, rtol=1e-4, atol=2e-5, err_msg=name)


def test_gradient_is_finite_at_zero_keys_and_queries():
    def total(x):
        inputs = random_inputs()
        unit = l2_norm(x)
        o, _ = chunked_delta_rule(
            unit, unit, *(inputs[n] for n in ("v", "g", "beta")), NO_RESET, inputs["state"], chunk=16
        )
        return jnp.sum(o * o)

    gradient = quick_jit(jax.grad(total))(jnp.zeros((BATCH, LENGTH, KEY_HEADS, KEY_DIM)))
    assert bool(jnp.all(jnp.isfinite(gradient)))


@pytest.mark.parametrize("size", [1, 2, 4, 16, 32, 128])
def test_triangular_solver(size):
    rng = np.random.default_rng(size)
    a = np.tril(rng.normal(size=(3, size, size)), -1).astype(np.float32) / np.sqrt(size)
    r = rng.normal(size=(3, size, 5)).astype(np.float32)
    expected = np.linalg.solve(np.eye(size) + a.astype(np.float64), r.astype(np.float64))
    np.testing.assert_allclose(solve_unit_lower(a, r), expected, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("shape", [(1, 1), (3, 8, 8), (2, 3, 32, 32)])
def test_the_inverse_of_tpus_is_that_of_other_devices(shape):
    a = np.tril(np.random.default_rng(0).normal(size=shape), -1).astype(np.float32) / np.sqrt(shape[-1])
    exact = np.linalg.inv(np.eye(shape[-1]) + a.astype(np.float64))
    for inverse in (inverse_by_rows, inverse_by_doubling):
        np.testing.assert_allclose(inverse(jnp.asarray(a)), exact, rtol=1e-5, atol=1e-5)


def test_each_platform_has_its_own_inverse():
    """Lowered for both; only the one by rows has a loop and no product of matrices."""
    traced = jax.jit(unit_lower_inverse).trace(jax.ShapeDtypeStruct((4, 32, 32), jnp.float32))
    for platform, products in (("tpu", False), ("cpu", True)):
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        assert ("dot_general" in text) == products
        assert ("stablehlo.while" in text) != products


@pytest.mark.parametrize("unit_lower_inverse", [inverse_by_rows, inverse_by_doubling])
def test_triangular_inverse_where_powers_of_the_matrix_overflow(unit_lower_inverse):
    """Equal keys written at full strength: powers of A reach 1e17 and cancel, the inverse holds only 1 and -1."""
    size = 64
    a = np.tril(np.ones((size, size), np.float32), -1)
    assert np.abs(np.linalg.matrix_power(a, 32)).max() > 1e17
    expected = np.eye(size) - np.eye(size, k=-1)
    np.testing.assert_array_equal(unit_lower_inverse(jnp.asarray(a)), expected)


def test_triangular_sizes_must_be_powers_of_two():
    with pytest.raises(ValueError, match="power of two"):
        unit_lower_inverse(jnp.zeros((12, 12)))
