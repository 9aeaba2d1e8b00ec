"""The training benchmark compares the same work: its trajectories, its padded rows, and what it prints."""

import json

import numpy as np
import pytest

from whale_jax.bench import train
from whale_jax.bench.__main__ import main
from whale_jax.training.packing import pack


def test_trajectories_have_the_demos_lengths_and_sampled_tokens():
    sequences = train.trajectories(5, 100)
    assert [(len(one.ids) - 1, one.targets) for one in sequences] == list(train.DEMO_LENGTHS[:5])
    for one in sequences:
        turns = np.flatnonzero(np.diff(one.target_mask.astype(int)) == 1)
        assert len(turns) == 2
        assert one.target_mask[-1]


def test_padded_rows_hold_one_trajectory_each_and_all_targets():
    sequences = train.trajectories(5, 100)
    padded = train.padded(sequences, rows=2)
    packed = pack(sequences, row_len=768, rows=2)
    assert [batch.tokens.shape for batch in padded.batches] == [(2, 309)] * 3
    assert all((batch.segment_ids <= 1).all() for batch in padded.batches)
    assert (padded.targets, padded.tokens) == (packed.targets, packed.tokens)
    assert padded.targets == sum(int(batch.weights.sum()) for batch in padded.batches)
    assert padded.fill_rate == packed.tokens / (6 * 309)


def test_the_object_holds_the_ratios(capsys, monkeypatch):
    monkeypatch.setattr(train, "_ours", lambda *args: lambda: None)
    monkeypatch.setattr(train, "_torch", lambda *args: (4000, lambda: None))
    assert main(["train", "--json", "--repeats=1", "--trajectories=8"]) == 0
    *table, record = capsys.readouterr().out.splitlines()
    record = json.loads(record)
    assert min(record["ratio"], record["packing_ratio"]) > 0
    assert record["fill_rate"] == record["rows"][0]["fill_rate"] > 0.9
    assert record["long_tail_fill_rate"] > 0.9
    assert [row["step"] for row in record["rows"]] == ["packed", "padded", "transformers, padded"]
    assert "ratio" in table[-1]


def test_without_torch_it_says_so(capsys, monkeypatch):
    def missing(*args):
        raise ImportError("No module named 'torch'")

    monkeypatch.setattr(train, "_ours", lambda *args: lambda: None)
    monkeypatch.setattr(train, "_torch", missing)
    assert main(["train", "--json", "--repeats=1", "--remat=none"]) == 0
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert "ratio" not in record
    assert (record["fill_rate"] > 0.9, record["settings"]["remat"]) == (True, "none")
    assert record["notes"] == ["torch is left out: No module named 'torch'"]


@pytest.mark.parametrize("option", ["--trajectories=0", "--trajectories=1000", "--rows=0", "--torch_rows=0"])
def test_senseless_sizes_are_refused(option):
    with pytest.raises(SystemExit):
        main(["train", option])
