"""Packing loses nothing, adds nothing, and is a pure function of its input."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whale_jax.bench.train import DEMO_LENGTHS
from whale_jax.training.packing import PackingError, ladder, pack
from whale_jax.training.rsft import TrainSequence


def sequence(ids, mask, name="sequence"):
    ids = np.asarray(ids, np.int32)
    mask = np.asarray(mask, bool)
    return TrainSequence(ids, mask, np.where(mask, -ids / 100, np.nan).astype(np.float32), name)


@st.composite
def many_sequences(draw):
    out = []
    for _ in range(draw(st.integers(0, 20))):
        length = draw(st.integers(2, 17))
        ids = draw(st.lists(st.integers(1, 99), min_size=length, max_size=length))
        mask = draw(st.lists(st.booleans(), min_size=length - 1, max_size=length - 1))
        out.append(sequence(ids, [False, *mask]))
    return out


def pairs(item):
    """(prefix, target, log-probability) of each target: all that the loss depends on."""
    places = np.flatnonzero(item.target_mask)
    return [(tuple(item.ids[:p].tolist()), int(item.ids[p]), float(item.logprobs[p])) for p in places]


def packed_pairs(packed):
    out = []
    for batch in packed.batches:
        for row in range(len(batch.tokens)):
            segments = batch.segment_ids[row]
            for t in np.flatnonzero(batch.weights[row]):
                prefix = batch.tokens[row, : t + 1][segments[: t + 1] == segments[t]]
                out.append((tuple(prefix.tolist()), int(batch.targets[row, t]), float(batch.sampler_logprobs[row, t])))
    return out


@settings(deadline=None, max_examples=80)
@given(many_sequences(), st.integers(16, 40), st.integers(1, 4), st.integers(1, 4), st.sampled_from([1, 2]))
def test_every_target_keeps_its_prefix_and_appears_once(items, row_len, rows, shapes, multiple):
    packed = pack(items, row_len=row_len, rows=rows * multiple, shapes=shapes, multiple=multiple)
    assert all(len(batch.tokens) % multiple == 0 for batch in packed.batches)
    expected = sorted(pair for item in items for pair in pairs(item))
    assert sorted(packed_pairs(packed)) == expected
    assert packed.targets == len(expected) == sum(int(batch.weights.sum()) for batch in packed.batches)
    assert packed.dropped == sum(not item.targets for item in items)
    assert packed.tokens == sum(int((batch.segment_ids > 0).sum()) for batch in packed.batches)
    assert packed.positions == sum(batch.tokens.size for batch in packed.batches)


@settings(deadline=None, max_examples=80)
@given(many_sequences(), st.integers(16, 40), st.integers(1, 4), st.integers(1, 4))
def test_rows_have_the_shapes_of_the_ladder_and_padding_on_the_right(items, row_len, rows, shapes):
    for batch in pack(items, row_len=row_len, rows=rows, shapes=shapes).batches:
        assert batch.tokens.shape in ladder(rows, row_len, shapes)
        for array in batch:
            assert array.shape == batch.tokens.shape
        for row in range(len(batch.tokens)):
            used = int((batch.segment_ids[row] > 0).sum())
            segments = batch.segment_ids[row, :used]
            assert (np.diff(segments) >= 0).all()
            assert set(segments.tolist()) == set(range(1, int(segments.max(initial=0)) + 1))
            for array in batch:
                assert not array[row, used:].any()
        assert np.isfinite(batch.sampler_logprobs).all()


@settings(deadline=None, max_examples=40)
@given(many_sequences())
def test_same_input_same_rows(items):
    first, second = (pack(items, row_len=32, rows=3) for _ in range(2))
    for a, b in zip(first.batches, second.batches, strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y)


def test_first_fit_decreasing():
    lengths = [3, 7, 5, 5, 2]
    items = [sequence([n] * (n + 1), [False] * n + [True]) for n in lengths]
    packed = pack(items, row_len=10, rows=2)
    rows = [row for batch in packed.batches for row in batch.tokens.tolist()]
    assert rows == [[7] * 7 + [3] * 3, [5] * 10, [2] * 2 + [0] * 8, [0] * 10]
    assert packed.fill_rate == 22 / 40


def test_a_ladder_starts_with_the_whole_batch_in_longer_rows_and_halves():
    assert ladder(4, 768) == ((4, 768),)
    assert ladder(4, 768, 4) == ((2, 1536), (1, 1536), (1, 768), (1, 384))
    assert ladder(8, 100, 2, multiple=4) == ((4, 200), (4, 100))
    assert ladder(3, 10, 2) == ((3, 10), (3, 5))
    assert ladder(1, 2, 9) == ((1, 2), (1, 1))


def test_a_ladder_takes_the_fewest_positions():
    items = [sequence([n] * (n + 1), [False] * n + [True]) for n in (6, 5, 3)]
    one, many = (pack(items, row_len=8, rows=2, shapes=shapes) for shapes in (1, 2))
    assert [batch.tokens.shape for batch in one.batches] == [(2, 8)]
    assert [batch.tokens.shape for batch in many.batches] == [(1, 16)]
    assert many.batches[0].tokens.tolist() == [[6] * 6 + [5] * 5 + [3] * 3 + [0] * 2]
    assert [batch.tokens.shape for batch in pack(items[2:], row_len=8, rows=2, shapes=3).batches] == [(1, 4)]


def fill_rate(lengths, minibatch, **shapes):
    """Over the mini-batches of many steps, each with its own number of accepted trajectories."""
    rng = np.random.default_rng(0)
    used = there = 0
    for _ in range(20):
        some = rng.choice(lengths, rng.integers(20, 90))
        items = [sequence([1] * (n + 1), [False] * n + [True]) for n in some]
        for start in range(0, len(items), minibatch):
            packed = pack(items[start : start + minibatch], **shapes)
            used, there = used + packed.tokens, there + packed.positions
    return used / there


def test_rows_are_nine_tenths_full_on_the_demos_lengths_and_on_a_long_tail():
    demo = [length for length, _ in DEMO_LENGTHS]
    assert fill_rate(demo, 32, row_len=768, rows=4, shapes=4) >= 0.9
    tail = np.clip(np.random.default_rng(1).lognormal(np.log(2500), 1.0, 500), 300, 32_768).astype(int)
    assert fill_rate(tail, 64, row_len=32_768, rows=4, shapes=4, multiple=4) >= 0.9
    assert fill_rate(tail, 64, row_len=32_768, rows=1, shapes=2) >= 0.9


def test_ids_after_the_last_target_take_no_room():
    packed = pack([sequence([1, 2, 3, 4, 5], [0, 0, 1, 0, 0])], row_len=2, rows=1)
    assert packed.batches[0].tokens.tolist() == [[1, 2]]
    assert packed.batches[0].targets.tolist() == [[2, 3]]
    assert packed.batches[0].weights.tolist() == [[0, 1]]


def test_too_long_is_an_error_that_names_every_sequence_and_cuts_nothing():
    long = [sequence(range(1, 13), [0] * 11 + [1], f"task {name}") for name in ("a", "b")]
    with pytest.raises(PackingError, match=r"10 positions .*task a needs 11; task b needs 11"):
        pack([sequence([1, 2], [0, 1]), *long], row_len=10, rows=1)


def test_nothing_to_train_gives_no_batches_and_a_count():
    packed = pack([sequence([1, 2, 3], [0, 0, 0])], row_len=8, rows=2)
    assert (packed.batches, packed.targets, packed.dropped, packed.fill_rate) == ((), 0, 1, 1.0)


@pytest.mark.parametrize(("row_len", "rows"), [(0, 1), (1, 0)])
def test_senseless_shapes_are_refused(row_len, rows):
    with pytest.raises(ValueError, match="row_len, rows and shapes"):
        pack([], row_len=row_len, rows=rows)


def test_unknown_sampler_log_probability_stays_unknown_only_at_targets():
    item = TrainSequence(np.array([1, 2, 3], np.int32), np.array([0, 1, 0], bool), np.full(3, np.nan, np.float32))
    (batch,) = pack([item], row_len=4, rows=1).batches
    np.testing.assert_array_equal(batch.sampler_logprobs, np.array([[np.nan, 0, 0, 0]], np.float32))
