"""Packing loses nothing, adds nothing, and is a pure function of its input."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whale_jax.training.packing import PackingError, pack
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
@given(many_sequences(), st.integers(16, 40), st.integers(1, 4))
def test_every_target_keeps_its_prefix_and_appears_once(items, row_len, rows):
    packed = pack(items, row_len=row_len, rows=rows)
    expected = sorted(pair for item in items for pair in pairs(item))
    assert sorted(packed_pairs(packed)) == expected
    assert packed.targets == len(expected) == sum(int(batch.weights.sum()) for batch in packed.batches)
    assert packed.dropped == sum(not item.targets for item in items)
    assert packed.tokens == sum(int((batch.segment_ids > 0).sum()) for batch in packed.batches)
    assert packed.positions == sum(batch.tokens.size for batch in packed.batches)


@settings(deadline=None, max_examples=80)
@given(many_sequences(), st.integers(16, 40), st.integers(1, 4))
def test_rows_have_one_shape_and_padding_on_the_right(items, row_len, rows):
    for batch in pack(items, row_len=row_len, rows=rows).batches:
        for array in batch:
            assert array.shape == (rows, row_len)
        for row in range(rows):
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
    with pytest.raises(ValueError, match="row_len and rows"):
        pack([], row_len=row_len, rows=rows)


def test_unknown_sampler_log_probability_stays_unknown_only_at_targets():
    item = TrainSequence(np.array([1, 2, 3], np.int32), np.array([0, 1, 0], bool), np.full(3, np.nan, np.float32))
    (batch,) = pack([item], row_len=4, rows=1).batches
    np.testing.assert_array_equal(batch.sampler_logprobs, np.array([[np.nan, 0, 0, 0]], np.float32))
