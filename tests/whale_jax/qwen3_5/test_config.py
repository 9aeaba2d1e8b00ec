"""Reading config.json: what is read, and that nothing that changes the numbers is ignored."""

import json
import math
from typing import Any

import jax
import pytest

from whale_jax.qwen3_5.config import ConfigError, Qwen35Config
from whale_jax.qwen3_5.params import param_shapes

TEXT: dict[str, Any] = {
    "model_type": "qwen3_5_text",
    "vocab_size": 248320,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 24,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "attn_output_gate": True,
    "full_attention_interval": 4,
    "mamba_ssm_dtype": "float32",
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 6,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000000,
        "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
        "mrope_interleaved": True,
    },
    "tie_word_embeddings": True,
    "dtype": "bfloat16",
}


def test_text_only_and_composite_files_give_the_same_model():
    text = Qwen35Config.from_hf(TEXT)
    composite = {"model_type": "qwen3_5", "text_config": TEXT, "vision_config": {}, "tie_word_embeddings": True}
    assert Qwen35Config.from_hf(composite) == text
    assert (text.num_groups, text.rotary_dim, text.conv_channels, text.conv_window) == (6, 64, 6144, 3)
    assert (text.rope_theta, text.tie_embeddings) == (1e7, True)


def sized(hidden: int, ffn: int, layers: int, heads: int, value_heads: int, tied: bool) -> dict[str, Any]:
    """The fields of a published size, without those that are the same for all."""
    return {
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * (layers // 4),
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 4,
        "linear_num_value_heads": value_heads,
        "tie_word_embeddings": tied,
        "output_gate_type": "swish",
    }


@pytest.mark.parametrize("composite", [False, True])
@pytest.mark.parametrize(
    ("fields", "parameters"),
    [
        (sized(1024, 3584, 24, 8, 16, True), 752_393_024),
        (sized(2048, 6144, 24, 8, 16, True), 1_881_825_088),
        (sized(2560, 9216, 32, 16, 32, True), 4_205_751_296),
        (sized(4096, 12288, 32, 16, 32, False), 8_953_803_264),
    ],
    ids=["0.8B", "2B", "4B", "9B"],
)
def test_published_sizes_have_their_number_of_parameters(fields, parameters, composite):
    """PAPER section 7."""
    text = TEXT | fields
    head = {"model_type": "qwen3_5", "text_config": text, "tie_word_embeddings": text["tie_word_embeddings"]}
    config = Qwen35Config.from_hf(head if composite else text)
    shapes = jax.tree.leaves(param_shapes(config), is_leaf=lambda node: isinstance(node, tuple))
    assert sum(map(math.prod, shapes)) == parameters


def test_composite_head_is_tied_as_the_outer_level_says():
    composite = {"model_type": "qwen3_5", "text_config": TEXT, "tie_word_embeddings": False}
    assert not Qwen35Config.from_hf(composite).tie_embeddings


def test_a_quantised_composite_is_refused():
    composite = {"model_type": "qwen3_5", "text_config": TEXT, "quantization_config": {"bits": 4}}
    with pytest.raises(ConfigError, match="quantization_config"):
        Qwen35Config.from_hf(composite)


def test_settings_are_read_not_assumed():
    changed = TEXT | {
        "rms_norm_eps": 1e-5,
        "linear_conv_kernel_dim": 3,
        "rope_parameters": {"rope_theta": 5e5, "partial_rotary_factor": 0.5},
    }
    config = Qwen35Config.from_hf(changed)
    assert (config.rms_eps, config.conv_kernel, config.rope_theta, config.rotary_dim) == (1e-5, 3, 5e5, 128)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"attention_bias": True}, "attention_bias"),
        ({"attn_output_gate": False}, "attn_output_gate"),
        ({"output_gate_type": "sigmoid"}, "output_gate_type"),
        ({"full_attention_interval": 2}, "full_attention_interval"),
        ({"layer_types": ["full_attention"] * 24}, "layer_types"),
        ({"rope_parameters": TEXT["rope_parameters"] | {"rope_type": "yarn"}}, "rope_type"),
        ({"rope_parameters": TEXT["rope_parameters"] | {"factor": 2.0}}, "rope_parameters.factor"),
        ({"rope_parameters": {}}, "rope_theta"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling"),
        ({"num_experts": 8}, "num_experts"),
        ({"some_new_switch": True}, "some_new_switch"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"mamba_ssm_dtype": "bfloat16"}, "mamba_ssm_dtype"),
        ({"num_hidden_layers": 22, "layer_types": None}, "num_hidden_layers"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"linear_num_value_heads": 24}, "linear_num_value_heads"),
        ({"head_dim": 0}, "head_dim"),
        ({"head_dim": "256"}, "head_dim"),
        ({"rms_norm_eps": -1.0}, "rms_eps"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"model_type": "qwen3_next"}, "model_type"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_supported_is_named(change: dict[str, Any], named: str):
    with pytest.raises(ConfigError, match=named):
        Qwen35Config.from_hf(TEXT | change)


def test_all_problems_come_in_one_error():
    fields = {name: value for name, value in TEXT.items() if name not in ("head_dim", "vocab_size")}
    with pytest.raises(ConfigError, match=r"vocab_size is missing.*head_dim is missing.*hidden_act"):
        Qwen35Config.from_hf(fields | {"hidden_act": "relu"})


@pytest.mark.parametrize(
    ("text", "message"), [(None, "cannot be read"), ("{", "not valid JSON"), ("[]", "JSON object")]
)
def test_bad_files_name_the_file(tmp_path, text: str | None, message: str):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=rf"config\.json: .*{message}"):
        Qwen35Config.from_dir(tmp_path)


def test_reads_a_directory(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(TEXT))
    assert Qwen35Config.from_dir(tmp_path) == Qwen35Config.from_hf(TEXT)
