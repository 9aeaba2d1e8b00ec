"""Rows longer than a block: the same numbers as without blocks, and no array that grows with the square of the row."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.whale_jax.qwen3_5.equations import equations
from whale_jax.qwen3_5 import attention, deltanet, feed_forward, model
from whale_jax.qwen3_5.attention import attend
from whale_jax.qwen3_5.blockwise import blockwise_attention
from whale_jax.qwen3_5.config import Qwen35Config
from whale_jax.training.loss import sum_nll

LENGTHS = [7, 16, 1, 3, 18]
WIDTH = 50
"""Five sequences and five positions of padding; neither they nor the row end where a block of 16 ends."""


@pytest.fixture(scope="module")
def segments() -> np.ndarray:
    row = np.repeat(np.arange(1, 6), LENGTHS)
    return np.stack([np.pad(row, (0, WIDTH - len(row))), np.ones(WIDTH)]).astype(np.int32)


@pytest.fixture(scope="module")
def tokens(segments, tiny_config) -> np.ndarray:
    return np.random.default_rng(3).integers(0, tiny_config.vocab_size, segments.shape).astype(np.int32)


def assert_trees_close(ours: Any, theirs: Any, tolerance: float) -> None:
    for (path, a), b in zip(jax.tree.leaves_with_path(ours), jax.tree.leaves(theirs), strict=True):
        scale = max(float(np.abs(b).max()), 1e-3)
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * scale, err_msg=jax.tree_util.keystr(path))


@pytest.mark.parametrize("scale", [1.0, 30.0], ids=["soft", "sharp"])
def test_blockwise_attention_equals_the_whole_square(quick_jit, segments, scale):
    rng = np.random.default_rng(0)
    q, k, v, weight = (
        rng.normal(size=(2, WIDTH, heads, 8)).astype(np.float32) * size
        for heads, size in ((4, scale), (2, 1.0), (2, 1.0), (4, 1.0))
    )

    def by_blocks(q, k, v):
        out = blockwise_attention(q * 8**-0.5, k, v, segments, block=16)
        return jnp.sum(out * weight), out

    def at_once(q, k, v):
        seen = np.tril(np.ones((WIDTH, WIDTH), bool)) & (segments[:, :, None] == segments[:, None, :])
        out = attend(q, k, v, seen)
        return jnp.sum(out * weight), out

    ours, theirs = (quick_jit(jax.value_and_grad(f, (0, 1, 2), has_aux=True))(q, k, v) for f in (by_blocks, at_once))
    assert_trees_close(ours, theirs, 2e-6 * scale)


@pytest.fixture
def small_blocks(monkeypatch) -> None:
    monkeypatch.setattr(attention, "_LONGEST_UNROLLED", 16)
    monkeypatch.setattr(deltanet, "BLOCK", 16)
    monkeypatch.setattr(feed_forward, "LONGEST_AT_ONCE", 16)
    monkeypatch.setattr(feed_forward, "BLOCK", 32)


def layer_results(config, layer, x, rows, window, state):
    def total(layer, x, window, state):
        y, window, state = deltanet.delta_net(config, layer, x, rows, window, state)
        real = jnp.where(rows.valid_BxT[..., None], y, 0)
        return jnp.sum(jnp.sin(real)) + jnp.sum(jnp.cos(state)), (real, window, state)

    return jax.value_and_grad(total, (0, 1, 2, 3), has_aux=True)(layer, x, window, state)


@pytest.mark.parametrize("counts", [None, (37, WIDTH), (2, 0)], ids=["packed", "extension", "short extension"])
def test_delta_net_in_blocks(quick_jit, small_blocks, monkeypatch, tiny_config, tiny_params, segments, counts):
    """Also the state, the window and their gradients, with a state and a window before the row."""
    config, layer = tiny_config, jax.tree.map(lambda leaf: leaf[0, 0], tiny_params["linear"])
    rng = np.random.default_rng(1)
    x = rng.normal(size=(2, WIDTH, config.hidden_size)).astype(np.float32)
    window = rng.normal(size=(2, config.conv_window, config.conv_channels)).astype(np.float32)
    state = rng.normal(size=(2, config.linear_value_heads, config.linear_key_dim, config.linear_value_dim))
    if counts:
        count = np.array(counts)
        valid = np.arange(WIDTH) < count[:, None]
        rows = deltanet.Rows(valid, np.zeros_like(valid), count)
    else:
        reset = np.diff(segments, axis=1, prepend=-1) != 0
        rows = deltanet.Rows(segments > 0, reset, None)
    call = quick_jit(lambda *arrays: layer_results(config, layer, arrays[0], rows, *arrays[1:]))
    ours = call(x, window, state.astype(np.float32))
    monkeypatch.setattr(deltanet, "BLOCK", WIDTH)
    call = quick_jit(lambda *arrays: layer_results(config, layer, arrays[0], rows, *arrays[1:]))
    assert_trees_close(ours, call(x, window, state.astype(np.float32)), 1e-5)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_feed_forward_in_blocks(quick_jit, small_blocks, monkeypatch, tiny_config, tiny_params, dtype):
    """Blocks of 32 of 100 tokens; bf16 is held against fp32."""
    config = tiny_config
    layer = {name: leaf[0].astype(dtype) for name, leaf in tiny_params["full"].items()}
    layer = {name: layer[name] for name in ("gate", "up", "down")}
    rng = np.random.default_rng(2)
    x, weight = (rng.normal(size=(2, WIDTH, config.hidden_size)).astype(dtype) for _ in range(2))

    def total(layer, x):
        y = feed_forward.feed_forward(layer, x)
        return jnp.sum(y.astype(jnp.float32) * weight), y

    gradient = jax.grad(total, (0, 1), has_aux=True)
    ours = quick_jit(gradient)(layer, x)
    assert {leaf.dtype for leaf in jax.tree.leaves(ours)} == {jnp.dtype(dtype)}
    monkeypatch.undo()
    exact = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), (layer, x))
    as_fp32 = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), ours)
    assert_trees_close(as_fp32, quick_jit(gradient)(*exact), 1e-5 if dtype == jnp.float32 else 0.03)


def model_gradient(config, tokens, segments, remat):
    def total(params):
        hidden = model.forward(config, params, tokens, segments, remat=remat)
        return jnp.sum(jnp.where(segments[..., None] > 0, jnp.sin(hidden), 0.0))

    return jax.value_and_grad(total)


@pytest.mark.slow
def test_the_whole_model_in_blocks(quick_jit, small_blocks, monkeypatch, tiny_config, tiny_params, tokens, segments):
    """With everything recomputed, against nothing recomputed and no blocks."""
    ours = quick_jit(model_gradient(tiny_config, tokens, segments, model.Remat.GROUP))(tiny_params)
    monkeypatch.undo()
    theirs = quick_jit(model_gradient(tiny_config, tokens, segments, model.Remat.NONE))(tiny_params)
    assert_trees_close(ours, theirs, 1e-4)


def test_a_remat_policy_recomputes_more_than_the_one_before(tiny_config, tiny_params, tokens, segments):
    """Products in the traced gradient: with weight matrices (two-dimensional right sides) and in all."""
    counts = {}
    for policy in model.Remat:
        program = jax.make_jaxpr(model_gradient(tiny_config, tokens, segments, policy))(tiny_params)
        products = [e for e in equations(program.jaxpr) if e.primitive.name == "dot_general"]
        matrices = [e for e in products if not e.params["dimension_numbers"][1][0]]
        counts[policy] = (len(matrices), len(products))
    assert counts["none"][0] == counts["dots"][0] < counts["layer"][0] < counts["group"][0]
    assert counts["none"][1] < counts["dots"][1] < counts["layer"][1] < counts["group"][1]


def test_the_program_of_a_gradient_is_as_long_for_32_layers_as_for_8(tiny_config, tokens, segments):
    """Layers are scanned, so what is traced and compiled does not grow with depth."""
    sizes = []
    for layers in (8, 32):
        config = dataclasses.replace(tiny_config, num_layers=layers)
        params = jax.eval_shape(lambda key, config=config: model.init_params(config, key), jax.random.key(0))
        program = jax.make_jaxpr(model_gradient(config, tokens, segments, model.Remat.LAYER))(params)
        sizes.append(sum(1 for _ in equations(program.jaxpr)))
    assert sizes[0] == sizes[1]


def test_unknown_remat_policies_are_named():
    with pytest.raises(ValueError, match="remat must be one of none, dots, layer, group, got 'all'"):
        model.Remat.of("all")
    assert [model.Remat.of(value) for value in (True, False, "dots")] == ["layer", "none", "dots"]


QWEN_2B = Qwen35Config(
    vocab_size=248320, hidden_size=2048, intermediate_size=6144, num_layers=24, num_heads=8, num_kv_heads=2,
    head_dim=256, linear_key_heads=16, linear_value_heads=16, linear_key_dim=128, linear_value_dim=128,
)  # fmt: skip


def test_nothing_in_a_training_step_at_32k_tokens_is_square_or_holds_all_logits():
    """The 2B with its real vocabulary, traced and not run: hidden states, loss and every gradient.

    Its feed-forward size is changed to one that nothing else has.
    """
    config = dataclasses.replace(QWEN_2B, intermediate_size=6656)
    length, vocab, inner = 32768, config.vocab_size, config.intermediate_size

    def loss(params, tokens, segments, targets, weights):
        hidden = model.forward(config, params, tokens, segments, compute_dtype=jnp.bfloat16)
        return sum_nll(hidden[0], params["embed"], targets[0], weights[0], chunk=256).nll

    params = jax.eval_shape(lambda key: model.init_params(config, key), jax.random.key(0))
    ids = jax.ShapeDtypeStruct((1, length), jnp.int32)
    program = jax.make_jaxpr(jax.grad(loss))(params, ids, ids, ids, jax.ShapeDtypeStruct((1, length), jnp.float32))
    shapes = {variable.aval.shape for equation in equations(program.jaxpr) for variable in equation.outvars}
    assert (256, vocab) in shapes
    for shape in shapes:
        assert vocab not in shape or shape == (vocab, config.hidden_size) or math.prod(shape) <= 256 * vocab, shape
        assert sum(size >= length for size in shape if size != vocab) <= 1, shape
        if inner in shape and config.hidden_size not in shape:
            assert math.prod(shape) <= 4096 * inner, shape
        assert math.prod(shape) <= config.num_layers * length * config.hidden_size, shape  # the layers' inputs
