"""The demo model's shape, as the config.json of a text-only Qwen3.5 checkpoint."""

from typing import Any

from whale_jax.demo.tokenizer import VOCAB_SIZE
from whale_jax.qwen3_5.config import Qwen35Config

MAX_POSITIONS = 4096


def hf_config(control: dict[str, int]) -> dict[str, Any]:
    """The fields of config.json; `control` gives the ids of the control tokens by their text."""
    return {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 128,
        "intermediate_size": 384,
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
        "dtype": "float32",
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


def model_config() -> Qwen35Config:
    """The same shape as the model takes it."""
    return Qwen35Config.from_hf(hf_config({"<|endoftext|>": 0, "<|im_end|>": 0}))
