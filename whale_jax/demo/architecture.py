"""The demo models' shape, as the config.json of a text-only Qwen3.5 checkpoint."""

from dataclasses import dataclass
from typing import Any

MAX_POSITIONS = 4096


@dataclass(frozen=True)
class Size:
    """What differs between the demo models.

    Attributes:
        vocab: entries of the tokenizer.
        intermediate: width of the feed-forward layers.
        dtype: in which the checkpoint keeps its matrices.
    """

    vocab: int
    intermediate: int
    dtype: str


def hf_config(size: Size, control: dict[str, int]) -> dict[str, Any]:
    """The fields of config.json; `control` gives the ids of the control tokens by their text."""
    return {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "vocab_size": size.vocab,
        "hidden_size": 128,
        "intermediate_size": size.intermediate,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "linear_conv_kernel_dim": 4,
        "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
        "tie_word_embeddings": True,
        "initializer_range": 0.02,
        "max_position_embeddings": MAX_POSITIONS,
        "use_cache": True,
        "dtype": size.dtype,
        "pad_token_id": control["<|endoftext|>"],
        "eos_token_id": control["<|im_end|>"],
    }


def generation_config(control: dict[str, int]) -> dict[str, Any]:
    """The fields of generation_config.json: the paper's sampling."""
    return {
        "do_sample": True,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 20,
        "eos_token_id": [control["<|im_end|>"], control["<|endoftext|>"]],
        "pad_token_id": control["<|endoftext|>"],
    }
