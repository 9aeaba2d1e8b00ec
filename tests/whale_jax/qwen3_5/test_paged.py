"""Attention over pages, writing to them, and the TPU kernels (run by Pallas's interpreter) against plain operations."""

import jax.numpy as jnp
import numpy as np
import pytest

from whale_jax.qwen3_5 import paged
from whale_jax.qwen3_5.attention import attend
from whale_jax.qwen3_5.cache import init_cache
from whale_jax.qwen3_5.delta_rule import recurrent_delta_rule
from whale_jax.qwen3_5.recurrent_kernel import recurrent_step

B, PLACES, SIZE = 3, 4, 16
LAST = np.array([0, 17, 63], np.int32)


def pages(kv_heads: int, head: int):
    """k, v and each row's pages, in any order."""
    rng = np.random.default_rng(0)
    k, v = (rng.normal(size=(kv_heads, 2 * B * PLACES, SIZE, head)).astype(np.float32) for _ in range(2))
    return k, v, rng.permutation(2 * B * PLACES)[: B * PLACES].reshape(B, PLACES).astype(np.int32)


def in_a_row(array, index_Bxn):
    """[Kh, pages, Z, H] to [B, n Z, Kh, H]."""
    return jnp.moveaxis(array[:, index_Bxn], 0, 3).reshape(B, PLACES * SIZE, array.shape[0], array.shape[-1])


def test_attention_over_pages_is_attention_over_their_positions():
    k, v, index_Bxn = pages(2, 8)
    q = np.random.default_rng(1).normal(size=(B, 2, 4, 8)).astype(np.float32)
    last_BxT = np.stack([LAST, np.minimum(LAST + 1, 63)], axis=1)
    visible = np.arange(PLACES * SIZE) <= last_BxT[..., None]
    expected = attend(q, in_a_row(k, index_Bxn), in_a_row(v, index_Bxn), jnp.asarray(visible))
    ours = paged.attend_pages(jnp.asarray(q), jnp.asarray(k), jnp.asarray(v), jnp.asarray(index_Bxn), last_BxT)
    np.testing.assert_allclose(ours, expected, atol=1e-5)


def test_jax_s_kernel_agrees_in_bf16():
    from jax.experimental.pallas import tpu as pltpu

    k, v, index_Bxn = pages(2, 128)
    k, v = (jnp.asarray(array, jnp.bfloat16) for array in (k, v))
    q = jnp.asarray(np.random.default_rng(1).normal(size=(B, 1, 8, 128)), jnp.bfloat16)
    last_Bx1 = jnp.asarray(LAST[:, None])
    expected = paged.attend_pages(q, k, v, jnp.asarray(index_Bxn), last_Bx1)  # not on a TPU: by pages
    with pltpu.force_tpu_interpret_mode():
        ours = paged._attend_on_tpu(q, k, v, jnp.asarray(index_Bxn), last_Bx1)
    np.testing.assert_allclose(ours, expected, atol=0.03)


@pytest.mark.parametrize(
    ("length", "places", "read"), [(1, 4, 64), (64, 4, 64), (65, 8, 128), (17, 1, 32), (17, 7, 32)]
)
def test_positions_that_the_kernel_reads(length, places, read):
    assert paged.kernel_reads(length, places, SIZE) == read


@pytest.mark.parametrize("width", [1, 21])
def test_new_positions_go_where_the_pages_are(tiny_config, width):
    """Over the ends of pages; what is beyond the count, or beyond a row's pages, goes nowhere."""
    cache = init_cache(tiny_config, B, PLACES * SIZE, page_size=SIZE, page_count=2 * PLACES)
    cache = cache._replace(
        pages=jnp.array([[5, 2, 7, 0], [1, 3, 8, 8], [8, 8, 8, 8]], jnp.int32), length=jnp.array([30, 20, 0])
    )
    count_B = np.minimum([21, 19, 5], width).astype(np.int32)
    new = np.random.default_rng(2).normal(size=(B, width, tiny_config.num_kv_heads, tiny_config.head_dim))
    new = jnp.asarray(new, jnp.float32)
    k, v = paged.write_pages(cache, jnp.int32(0), cache.k, cache.v, new, 2 * new, jnp.asarray(count_B))
    expected = np.zeros(cache.k.shape, np.float32)
    for row in range(B):
        for offset in range(count_B[row]):
            number, place = divmod(int(cache.length[row]) + offset, SIZE)
            page = int(cache.pages[row, number])
            if page < 2 * PLACES:
                expected[:, page, place] = new[row, offset]
    np.testing.assert_array_equal(k, expected)
    np.testing.assert_array_equal(v, 2 * expected)


def test_the_recurrent_kernel_is_the_rule_and_changes_nothing_else():
    rng = np.random.default_rng(3)
    heads, size, layers = 2, 128, 3
    q, k, v = (jnp.asarray(rng.normal(size=(B, heads, size)), jnp.float32) for _ in range(3))
    g, beta = (jnp.asarray(rng.random((B, heads)), jnp.float32) for _ in range(2))
    states = jnp.asarray(rng.normal(size=(layers, B, heads, size, size)), jnp.float32)
    active_B = jnp.array([True, False, True])
    args = (q, k / 10, v)
    o, after = recurrent_step(*args, jnp.exp(-g), beta, active_B, states, jnp.int32(1), interpret=True)
    expected_o, expected = recurrent_delta_rule(*args, -g, beta, states[1])
    for row in (0, 2):
        np.testing.assert_allclose(o[row], expected_o[row], atol=1e-4)
        np.testing.assert_allclose(after[1, row], expected[row], atol=1e-5)
    np.testing.assert_array_equal(after[1, 1], states[1, 1])
    for layer in (0, 2):
        np.testing.assert_array_equal(after[layer], states[layer])


def test_rows_without_a_page_limit_read_nothing_of_others():
    """A row's result does not change with the pages of the others, bit for bit."""
    k, v, index_Bxn = pages(2, 8)
    q = jnp.asarray(np.random.default_rng(1).normal(size=(B, 1, 4, 8)), jnp.float32)
    results = []
    for last in (LAST, np.array([0, 17, 0], np.int32)):
        results.append(paged.attend_pages(q, jnp.asarray(k), jnp.asarray(v), jnp.asarray(index_Bxn), last[:, None])[1])
    np.testing.assert_array_equal(*results)


def test_a_kernel_s_bytes_are_those_of_the_pages_it_reads():
    from whale_jax.plan.cost import Kernel, cost_of
    from whale_jax.plan.hlo import parse

    program = parse(
        """HloModule m

ENTRY %main (q: bf16[4,8], k: bf16[1000,8]) -> bf16[4,8] {
  %q = bf16[4,8]{1,0} parameter(0)
  %k = bf16[1000,8]{1,0} parameter(1)
  ROOT %c = bf16[4,8]{1,0} custom-call(%q, %k, %k), custom_call_target="t", metadata={op_name="a/paged_attention/b"}
}
"""
    )
    cost = cost_of(program, kernels={"paged_attention": Kernel(hbm_bytes=2 * 320.0, flops=7.0)})
    assert cost.hbm_bytes == 64 + 64 + 2 * 320
    assert cost.flops == 7
