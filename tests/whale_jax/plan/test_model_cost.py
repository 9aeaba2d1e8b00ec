"""Model FLOPs and the decode floor, against counts made by hand."""

import dataclasses

import pytest

from whale_jax.plan import model_cost
from whale_jax.plan.live import Spread, live_lengths, mean_live_length, pages_in_use
from whale_jax.plan.sizes import SIZES, config_of
from whale_jax.qwen3_5.config import ConfigError


@pytest.mark.parametrize(
    ("size", "count"), [("0.8b", 752_393_024), ("2b", 1_881_825_088), ("4b", 4_205_751_296), ("9b", 8_953_803_264)]
)
def test_parameter_counts(size, count):
    assert model_cost.parameter_count(SIZES[size]) == count


def test_train_flops_are_three_forward_passes():
    """Short rows: six times the weights, and little else."""
    config = SIZES["2b"]
    weights = 6.0 * 16 * (model_cost.layer_weights(config) + model_cost.head_weights(config))
    assert model_cost.train_flops(config, 1, 16) == pytest.approx(weights, rel=0.03)
    assert model_cost.train_flops(config, 1, 16) > weights


def test_attention_is_causal():
    config = SIZES["2b"]
    rows = 6 * 4.0 * (8192 * 8193 / 2) * 8 * 256
    without = dataclasses.replace(config, num_heads=2, num_kv_heads=2)
    both = [model_cost.attention_flops(c, 8192 * 8193 / 2) for c in (config, without)]
    assert both == [rows, rows / 4]


def test_extend_behind_nothing_is_a_forward_pass():
    config = SIZES["2b"]
    forward = model_cost.train_flops(config, 4, 512) / 3
    head = 2.0 * 4 * 511 * model_cost.head_weights(config)
    assert model_cost.extend_flops(config, 4, 512, 0) == pytest.approx(forward - head)


def test_decode_floor():
    """2B, bf16: 3.76 GB of weights; 12 kB of keys and values per position; 18.9 MB of state per slot."""
    floor = model_cost.decode_floor_bytes(SIZES["2b"], 4, 1000, weight_bytes=2, cache_bytes=2)
    assert floor["weights"] == 2 * 1_881_825_088
    assert floor["keys_and_values"] == 4 * 1001 * (2 * 6 * 2 * 256 * 2)
    state, window = 18 * 16 * 128 * 128 * 4, 18 * 3 * 6144 * 2
    assert floor["recurrent_state"] == 2 * 4 * (state + window)


def test_untied_embedding_is_not_read_whole():
    config = SIZES["9b"]
    floor = model_cost.decode_floor_bytes(config, 4, 0, weight_bytes=2, cache_bytes=2)
    assert floor["weights"] == 2 * (8_953_803_264 - 248_320 * 4096 + 4 * 4096)


def test_spread_of_live_lengths():
    assert mean_live_length(Spread.UNIFORM, 64, 32_768) == pytest.approx(16_384, rel=0.001)
    lengths = live_lengths(Spread.LONG_TAIL, 64, 32_768)
    assert lengths == sorted(lengths)
    assert lengths[31] < 32_768 / 8 < lengths[32]
    assert lengths[-1] == 32_767
    assert 0.4 < lengths[57] / 32_768 < 0.5
    assert pages_in_use([0, 127, 128, 300], 128) == 1 + 1 + 2 + 3


def test_config_of_names_what_there_is(tmp_path):
    assert config_of("2B") is SIZES["2b"]
    with pytest.raises(ConfigError, match=r"--model=3b: no such size; say one of 0\.8b, 2b, 4b, 9b"):
        config_of("3b")
    with pytest.raises(ConfigError, match="no such folder"):
        config_of(str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match=r"config\.json: cannot be read"):
        config_of(str(tmp_path))
