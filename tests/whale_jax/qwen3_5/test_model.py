"""Packing, extension and decoding: the same numbers however a sequence is cut, and rows that never touch each other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from whale_jax.qwen3_5 import model
from whale_jax.qwen3_5.params import by_layer, is_by_layer, param_shapes

LENGTHS = [1, 2, 3, 4, 5, 63, 64, 65]
WIDTH, MAX_LEN, CHUNK = 216, 80, 16
TOLERANCE = 5e-5
"""fp32 rounding, magnified by the norms where what they divide is small."""


@pytest.fixture(scope="module")
def sequences(tiny_config) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, tiny_config.vocab_size, length).astype(np.int32) for length in LENGTHS]


def packed(sequences: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """One row that holds all sequences, with a gap of padding in the middle and at the end, and rows of padding."""
    tokens, segments = (np.zeros((len(sequences), WIDTH), np.int32) for _ in range(2))
    at = 0
    for number, ids in enumerate(sequences, 1):
        tokens[0, at : at + len(ids)], segments[0, at : at + len(ids)] = ids, number
        at += len(ids) + (3 if number == 4 else 0)
    return tokens, segments


def one_per_row(sequences: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    tokens, segments = (np.zeros((len(sequences), WIDTH), np.int32) for _ in range(2))
    for row, ids in enumerate(sequences):
        tokens[row, : len(ids)], segments[row, : len(ids)] = ids, 1
    return tokens, segments


@pytest.fixture(scope="module")
def run(quick_jit, tiny_config, tiny_params):
    """(tokens, segments) to (hidden, gradient of a sum over real positions)."""

    def total(params, tokens, segments):
        hidden = model.forward(tiny_config, params, tokens, segments)
        return jnp.sum(jnp.where(segments[..., None] > 0, jnp.sin(hidden), 0.0)), hidden

    jitted = quick_jit(jax.value_and_grad(total, has_aux=True))

    def call(tokens, segments):
        (_, hidden), gradient = jitted(tiny_params, tokens, segments)
        return np.asarray(hidden), gradient

    return call


@pytest.fixture(scope="module")
def hidden_alone(run, sequences) -> list[np.ndarray]:
    hidden, _ = run(*one_per_row(sequences))
    return [hidden[row, : len(ids)] for row, ids in enumerate(sequences)]


def assert_trees_close(ours, theirs, tolerance: float) -> None:
    for (path, a), b in zip(jax.tree.leaves_with_path(ours), jax.tree.leaves(theirs), strict=True):
        scale = max(float(np.abs(b).max()), 1.0)
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * scale, err_msg=jax.tree_util.keystr(path))


def test_cases_i204_i206_packed_equals_unpacked(run, sequences, hidden_alone):
    tokens, segments = packed(sequences)
    hidden, gradient = run(tokens, segments)
    for number, expected in enumerate(hidden_alone, 1):
        np.testing.assert_allclose(hidden[segments == number], expected, atol=TOLERANCE)
    _, expected_gradient = run(*one_per_row(sequences))
    assert_trees_close(gradient, expected_gradient, TOLERANCE)


def length_mixes() -> st.SearchStrategy[list[int]]:
    """Up to eight lengths that fit one row together, most of them below the kernel or around a chunk of 32."""
    length = st.one_of(st.integers(1, 5), st.integers(28, 36), st.integers(6, 70))
    return st.lists(length, min_size=1, max_size=8).filter(lambda lengths: sum(lengths) <= WIDTH)


@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lengths=length_mixes(), seed=st.integers(0, 2**16))
def test_every_mix_of_lengths_packs(run, tiny_config, lengths, seed):
    """Hidden states and all gradients, whatever shares a row and in whatever order."""
    rng = np.random.default_rng(seed)
    sequences = [rng.integers(0, tiny_config.vocab_size, length).astype(np.int32) for length in lengths]
    sequences += [np.zeros(0, np.int32)] * (len(LENGTHS) - len(sequences))
    tokens, segments = (np.zeros((len(LENGTHS), WIDTH), np.int32) for _ in range(2))
    tokens[0, : sum(lengths)] = np.concatenate(sequences)
    segments[0, : sum(lengths)] = np.repeat(np.arange(1, len(lengths) + 1), lengths)
    hidden, gradient = run(tokens, segments)
    expected, expected_gradient = run(*one_per_row(sequences))
    for number, ids in enumerate(sequences, 1):
        np.testing.assert_allclose(hidden[segments == number], expected[number - 1, : len(ids)], atol=4 * TOLERANCE)
    # These parameters magnify rounding about a thousandfold (measured: 9e-5); a leak across a boundary is of order 1.
    assert_trees_close(gradient, expected_gradient, 10 * TOLERANCE)


def test_case_i209_padding_contributes_nothing(run, sequences):
    tokens, segments = packed(sequences)
    other = np.where(segments == 0, 7, tokens)
    (hidden, gradient), (other_hidden, other_gradient) = run(tokens, segments), run(other, segments)
    np.testing.assert_array_equal(hidden[segments > 0], other_hidden[segments > 0])
    for ours, theirs in zip(jax.tree.leaves(gradient), jax.tree.leaves(other_gradient), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_case_i207_gradients_are_finite_in_rows_of_padding_alone(run, sequences):
    tokens, segments = one_per_row(sequences)
    segments[:3] = 0
    _, gradient = run(tokens, segments)
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(gradient))


@pytest.fixture(scope="module")
def extend(quick_jit, tiny_config, tiny_params):
    return quick_jit(lambda tokens, count, cache: model.extend(tiny_config, tiny_params, tokens, count, cache))


@pytest.fixture(scope="module")
def decode(quick_jit, tiny_config, tiny_params):
    return quick_jit(lambda tokens, active, cache: model.decode(tiny_config, tiny_params, tokens, active, cache))


def consume(extend, pieces: list[list[np.ndarray]], cache):
    """Extends row b by its pieces, one call per round. Returns the hidden states of each row, and the cache."""
    seen: list[list[np.ndarray]] = [[] for _ in pieces]
    for turn in range(max(map(len, pieces))):
        tokens, count = np.zeros((len(pieces), CHUNK), np.int32), np.zeros(len(pieces), np.int32)
        for row, mine in enumerate(pieces):
            if turn < len(mine):
                count[row] = len(mine[turn])
                tokens[row, : count[row]] = mine[turn]
        hidden, cache = extend(tokens, count, cache)
        for row in range(len(pieces)):
            seen[row].append(np.asarray(hidden)[row, : count[row]])
    return [np.concatenate(parts) for parts in seen], cache


def cut(ids: np.ndarray, sizes: list[int]) -> list[np.ndarray]:
    pieces, at = [], 0
    while at < len(ids):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(ids[at : at + size])
        at += size
    return pieces


@pytest.mark.parametrize("sizes", [[16], [1], [5, 1, 16, 2, 3]], ids=str)
def test_extending_by_pieces_equals_the_forward_pass(tiny_config, extend, sequences, hidden_alone, sizes):
    cache = model.init_cache(tiny_config, len(sequences), MAX_LEN)
    hidden, cache = consume(extend, [cut(ids, sizes) for ids in sequences], cache)
    for ours, expected in zip(hidden, hidden_alone, strict=True):
        np.testing.assert_allclose(ours, expected, atol=TOLERANCE)
    assert cache.length.tolist() == LENGTHS


def test_case_h197_decoding_among_other_lengths_equals_the_forward_pass(
    tiny_config, extend, decode, sequences, hidden_alone
):
    """Each row keeps 2 tokens (or its only one) to be decoded, at a time of its own."""
    heads = [ids[: max(len(ids) - 2, 0)] for ids in sequences]
    cache = model.init_cache(tiny_config, len(sequences), MAX_LEN)
    _, cache = consume(extend, [cut(ids, [CHUNK]) for ids in heads], cache)
    waiting = [list(range(len(head), len(ids))) for head, ids in zip(heads, sequences, strict=True)]
    turn = 0
    while any(waiting):
        active = np.array([bool(todo) and (row + turn) % 3 != 0 for row, todo in enumerate(waiting)])
        where = [todo.pop(0) if go else 0 for todo, go in zip(waiting, active, strict=True)]
        tokens = np.array([ids[at] for ids, at in zip(sequences, where, strict=True)], np.int32)
        hidden, cache = decode(tokens, active, cache)
        for row in np.flatnonzero(active):
            np.testing.assert_allclose(np.asarray(hidden)[row], hidden_alone[row][where[row]], atol=TOLERANCE)
        turn += 1
    assert cache.length.tolist() == LENGTHS


def rows_of(cache: model.Cache, row: int) -> list[np.ndarray]:
    pages = cache.pages[row]  # of one group, so that its pages are those of all groups
    return [
        np.asarray(a) for a in (cache.k[:, pages], cache.v[:, pages], cache.conv[:, :, row], cache.state[:, :, row])
    ]


def test_rows_without_tokens_are_untouched_bit_for_bit(tiny_config, extend, decode, sequences):
    cache = model.init_cache(tiny_config, len(sequences), MAX_LEN)
    _, cache = consume(extend, [cut(ids[:30], [CHUNK]) for ids in sequences], cache)
    tokens = np.full((len(sequences), CHUNK), 3, np.int32)
    count = np.array([0, 4, 0, 1, 0, 16, 0, 2], np.int32)
    _, extended = extend(tokens, count, cache)
    _, decoded = decode(tokens[:, 0], count > 0, cache)
    for after in (extended, decoded):
        for row in np.flatnonzero(count == 0):
            for ours, before in zip(rows_of(after, row), rows_of(cache, row), strict=True):
                np.testing.assert_array_equal(ours, before)
    assert (extended.length - cache.length).tolist() == count.tolist()


def test_by_layer_the_serving_passes_compute_the_same(quick_jit, tiny_config, tiny_params, extend, decode, sequences):
    apart = by_layer(tiny_params)
    assert is_by_layer(apart)
    assert not is_by_layer(tiny_params)
    unrolled = {
        each: quick_jit(lambda tokens, rows, cache, each=each: each(tiny_config, apart, tokens, rows, cache))
        for each in (model.extend, model.decode)
    }
    tokens = np.zeros((len(sequences), CHUNK), np.int32)
    tokens[:, : CHUNK // 2] = np.stack([np.resize(ids, CHUNK // 2) for ids in sequences])
    count = np.array([8, 4, 0, 1, 8, 8, 3, 2], np.int32)
    cache = model.init_cache(tiny_config, len(sequences), MAX_LEN)
    looped, own = cache, cache.by_layer()
    assert own.page_count == cache.page_count
    for tokens_now, rows, loops, each in (
        (tokens, count, extend, model.extend),
        (tokens, count, extend, model.extend),
        (tokens[:, 0], count > 2, decode, model.decode),
    ):
        expected, looped = loops(tokens_now, rows, looped)
        hidden, own = unrolled[each](tokens_now, rows, own)
    some = np.flatnonzero(count > 2)
    np.testing.assert_allclose(hidden[some], expected[some], atol=TOLERANCE)
    assert_trees_close(own.stacked(), looped, TOLERANCE)
    logits = model.unembed(tiny_config, apart, hidden[some])
    np.testing.assert_allclose(logits, model.unembed(tiny_config, tiny_params, expected[some]), atol=1e-3)


def test_a_row_does_not_depend_on_the_others_bit_for_bit(tiny_config, extend, decode, sequences):
    """The same row alone among idle rows, and among busy ones with other tokens."""
    target = cut(sequences[5][:40], [CHUNK])
    idle: list[list[np.ndarray]] = [[] for _ in sequences]
    idle[5] = target
    busy = [cut(ids[:40], [7]) for ids in sequences]
    busy[5] = target
    results = []
    for pieces in (idle, busy):
        cache = model.init_cache(tiny_config, len(sequences), MAX_LEN)
        hidden, cache = consume(extend, pieces, cache)
        active = np.array([bool(mine) for mine in pieces])
        last, cache = decode(np.full(len(sequences), 9, np.int32), active, cache)
        results.append([hidden[5], np.asarray(last)[5], *rows_of(cache, 5)])
    for alone, crowded in zip(*results, strict=True):
        np.testing.assert_array_equal(alone, crowded)


def test_case_i214_a_token_does_not_depend_on_later_ones(tiny_config, extend, sequences):
    first = np.zeros((len(sequences), CHUNK), np.int32)
    other = first.copy()
    other[:, 1:] = 11
    count = np.full(len(sequences), CHUNK, np.int32)
    cache = model.init_cache(tiny_config, len(sequences), MAX_LEN)
    for one, eight in (((first, count), (other, count)), ((first, count // 16), (other, count))):
        np.testing.assert_array_equal(extend(*one, cache)[0][:, 0], extend(*eight, cache)[0][:, 0])


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.sum(a * b) / np.linalg.norm(a) / np.linalg.norm(b))


def bf16_pieces(quick_jit, config, params, ids: np.ndarray) -> np.ndarray:
    extend = quick_jit(lambda t, n, c: model.extend(config, params, t, n, c, compute_dtype=jnp.bfloat16))
    cache = model.init_cache(config, 1, MAX_LEN, jnp.bfloat16)
    (hidden,), _ = consume(extend, [cut(ids, [CHUNK, 3, 1])], cache)
    return hidden.astype(np.float32)


def test_case_i212_bf16_stays_close_and_keeps_the_state_in_fp32(
    quick_jit, tiny_config, tiny_params, sequences, hidden_alone
):
    tokens, segments = one_per_row(sequences)
    forward = quick_jit(lambda t, s: model.forward(tiny_config, tiny_params, t, s, compute_dtype=jnp.bfloat16))
    hidden = forward(tokens, segments)
    assert hidden.dtype == jnp.bfloat16
    hidden = np.asarray(hidden, np.float32)
    assert min(cosine(hidden[row, : len(h)], h) for row, h in enumerate(hidden_alone)) > 0.99
    # Case I212: taken in by pieces, a sequence has the same numbers tightly in fp32 (above), loosely in bf16.
    pieces = bf16_pieces(quick_jit, tiny_config, tiny_params, sequences[-1])
    assert cosine(pieces, hidden[-1, : len(pieces)]) > 0.99
    cache = model.init_cache(tiny_config, 1, 4, jnp.bfloat16)
    inputs = (jnp.zeros(1, jnp.int32), jnp.ones(1, bool), cache)
    _, cache = jax.eval_shape(
        lambda *a: model.decode(tiny_config, tiny_params, *a, compute_dtype=jnp.bfloat16), *inputs
    )
    assert (cache.k.dtype, cache.conv.dtype, cache.state.dtype) == (jnp.bfloat16, jnp.bfloat16, jnp.float32)


def test_initial_parameters_have_the_announced_shapes(tiny_config):
    shapes = jax.eval_shape(lambda key: model.init_params(tiny_config, key), jax.random.key(0))
    assert jax.tree.map(lambda leaf: leaf.shape, shapes) == param_shapes(tiny_config)
    assert {leaf.dtype for leaf in jax.tree.leaves(shapes)} == {jnp.dtype(jnp.float32)}


def test_the_module_holds_the_same_parameters(tiny_config, tiny_params):
    from flax import nnx

    module = model.Qwen35(tiny_config, tiny_params)
    graph, state = nnx.split(module)
    again = nnx.merge(graph, state).as_params()
    assert jax.tree.structure(again) == jax.tree.structure(tiny_params)
    for ours, theirs in zip(jax.tree.leaves(again), jax.tree.leaves(tiny_params), strict=True):
        np.testing.assert_array_equal(ours, theirs)
