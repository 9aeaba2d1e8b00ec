"""Long rows by blocks equal whole rows, in values and gradients, however sequences lie in them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from whale_jax.qwen3_5 import deltanet
from whale_jax.qwen3_5.attention import attend
from whale_jax.qwen3_5.blockwise import blockwise_attention, scan_positions

BATCH, HEADS, KV_HEADS, SIZE, BLOCK = 2, 4, 2, 8, 16


def dense(q, k, v, segments):
    length = q.shape[1]
    causal = jnp.tril(jnp.ones((length, length), bool))
    return attend(q, k, v, causal & (segments[:, :, None] == segments[:, None, :]))


def inputs(length, seed=0, dtype=np.float32):
    """q, k, v, a weight per output, and segments with boundaries at and off the block edges, and padding."""
    rng = np.random.default_rng(seed)
    q = rng.normal(size=(BATCH, length, HEADS, SIZE)).astype(dtype)
    k, v = (rng.normal(size=(BATCH, length, KV_HEADS, SIZE)).astype(dtype) for _ in range(2))
    weights = rng.normal(size=q.shape).astype(np.float32)
    starts = np.array([[0, 1, BLOCK, 2 * BLOCK + 3], [0, 5, 5, 3 * BLOCK]])
    segments = (np.arange(length)[None, :, None] >= starts[:, None, :]).sum(-1).astype(np.int32)
    segments[1, length - length // 5 :] = 0
    return q, k, v, segments, weights


@pytest.mark.parametrize("length", [1, 15, 16, 17, 70])
def test_equals_dense(quick_jit, length):
    q, k, v, segments, weights = inputs(length)

    def run(attention, q, k, v):
        return jax.value_and_grad(lambda *a: jnp.sum(attention(*a, segments) * weights), (0, 1, 2))(q, k, v)

    ours = quick_jit(lambda *a: run(lambda *b: blockwise_attention(*b, block=BLOCK), *a))(q, k, v)
    theirs = quick_jit(lambda *a: run(dense, *a))(q, k, v)
    for mine, reference in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(mine, reference, rtol=2e-5, atol=2e-5)


def test_values_position_by_position(quick_jit):
    q, k, v, segments, _ = inputs(70, seed=1)
    ours = quick_jit(lambda *a: blockwise_attention(*a, block=BLOCK))(q, k, v, segments)
    np.testing.assert_allclose(ours, dense(q, k, v, segments), rtol=1e-5, atol=1e-5)


def test_large_scores_stay_finite(quick_jit):
    """A segment boundary leaves whole blocks without a visible key; scores there may be huge."""
    q, k, v, segments, weights = inputs(70, seed=2)

    def loss(q, k, v):
        return jnp.sum(blockwise_attention(q * 1e4, k * 1e4, v, segments, block=BLOCK) * weights)

    assert all(np.isfinite(t).all() for t in quick_jit(jax.grad(loss, (0, 1, 2)))(q, k, v))


def test_statistics_are_fp32_for_bf16_inputs(quick_jit):
    q, k, v, segments, _ = inputs(70, seed=3)
    narrow = [jnp.asarray(t, jnp.bfloat16) for t in (q, k, v)]
    ours = quick_jit(lambda *a: blockwise_attention(*a, block=BLOCK))(*narrow, segments)
    assert ours.dtype == jnp.bfloat16
    reference = dense(*(t.astype(jnp.float32) for t in narrow), segments)
    np.testing.assert_allclose(ours.astype(np.float32), reference, rtol=0.02, atol=0.02)


def test_nothing_above_the_diagonal_is_computed():
    """The scan takes n (n + 1) / 2 steps."""
    q, k, v, segments, _ = inputs(4 * BLOCK)
    text = str(jax.make_jaxpr(lambda *a: blockwise_attention(*a, block=BLOCK))(q, k, v, segments))
    assert "length=10" in text


def test_block_must_be_positive():
    with pytest.raises(ValueError, match="block must be >= 1, got 0"):
        blockwise_attention(*inputs(4)[:4], block=0)


def test_scan_positions_is_a_scan():
    x = np.random.default_rng(0).normal(size=(2, 12, 3)).astype(np.float32)

    def running_sum(total, x):
        sums = total[:, None] + jnp.cumsum(x, axis=1)
        return sums[:, -1], sums

    last, sums = scan_positions(running_sum, jnp.zeros((2, 3)), x, block=4)
    np.testing.assert_allclose(sums, np.cumsum(x, axis=1), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(last, x.sum(axis=1), rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="12 positions are not whole blocks of 5"):
        scan_positions(running_sum, jnp.zeros((2, 3)), x, block=5)


@pytest.mark.parametrize("starts", [(0,), (0, 31, 32, 33), (0, 30, 63, 64), (0, 1, 29, 66, 95)])
def test_delta_net_by_blocks_equals_whole_rows(quick_jit, monkeypatch, tiny_config, tiny_params, starts):
    """Sequences that begin at, before and after the blocks' edges, and padding; values and gradients."""
    config, length = tiny_config, 96
    rng = np.random.default_rng(0)
    layer = jax.tree.map(lambda leaf: leaf[0, 0], tiny_params["linear"])
    x = rng.normal(size=(1, length, config.hidden_size)).astype(np.float32)
    reset = np.isin(np.arange(length), starts)[None]
    rows = deltanet.Rows(valid_BxT=np.arange(length)[None] < 90, reset_BxT=reset, count_B=None)
    window = jnp.zeros((1, config.conv_window, config.conv_channels))
    state = jnp.zeros((1, config.linear_value_heads, config.linear_key_dim, config.linear_value_dim))
    weights = rng.normal(size=x.shape).astype(np.float32)

    def outputs(layer, x):
        y, _, last = deltanet.delta_net(config, layer, x, rows, window, state)
        return jnp.sum(y * weights), (y, last)

    def run():
        return quick_jit(lambda *a: jax.value_and_grad(outputs, (0, 1), has_aux=True)(*a))(layer, x)

    whole = run()
    monkeypatch.setattr(deltanet, "POSITION_BLOCK", 32)
    for ours, theirs in zip(jax.tree.leaves(run()), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=3e-4, atol=3e-4)
