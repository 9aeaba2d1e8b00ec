"""Random checkpoints of the 0.8B's real shape, with every tensor that the published one has: 488 in two shards.

`python -m tests.whale_jax.qwen3_5.real_shape FOLDER` makes one with a tokenizer, for a look at the doctor. It needs
`transformers` with torch, which says what the tensors are called.
"""

import json
import math
import struct
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

TEXT: dict[str, Any] = {
    "model_type": "qwen3_5_text",
    "attention_bias": False,
    "attn_output_gate": True,
    "dtype": "bfloat16",
    "full_attention_interval": 4,
    "head_dim": 256,
    "hidden_act": "silu",
    "hidden_size": 1024,
    "intermediate_size": 3584,
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 6,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
    "linear_value_head_dim": 128,
    "mamba_ssm_dtype": "float32",
    "max_position_embeddings": 262144,
    "mlp_only_layers": [],
    "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": False,
    "num_attention_heads": 8,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {
        "mrope_interleaved": True,
        "mrope_section": [11, 11, 10],
        "partial_rotary_factor": 0.25,
        "rope_theta": 10000000,
        "rope_type": "default",
    },
    "tie_word_embeddings": True,
    "vocab_size": 248320,
}
VISION = {
    "model_type": "qwen3_5",
    "deepstack_visual_indexes": [],
    "depth": 12,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_heads": 12,
    "num_position_embeddings": 2304,
    "out_hidden_size": 1024,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}
CONFIG = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "model_type": "qwen3_5",
    "text_config": TEXT,
    "vision_config": VISION,
    "tie_word_embeddings": True,
}
TEXT_PARAMETERS = 752_393_024
CONTROL_IDS = {
    "<|endoftext|>": 248044, "<|im_start|>": 248045, "<|im_end|>": 248046, "<tool_call>": 248058,
    "</tool_call>": 248059, "<tool_response>": 248066, "</tool_response>": 248067, "<think>": 248068,
    "</think>": 248069,
}  # fmt: skip


def tensor_shapes() -> dict[str, tuple[int, ...]]:
    """Names and shapes: text and vision as `transformers` builds them, and the mtp layer, which it leaves out."""
    import torch
    from transformers import AutoConfig, Qwen3_5ForConditionalGeneration

    fields = {name: value for name, value in CONFIG.items() if name != "model_type"}
    with torch.device("meta"):
        built = Qwen3_5ForConditionalGeneration(AutoConfig.for_model("qwen3_5", **fields))
    shapes = {name: tuple(p.shape) for name, p in built.named_parameters() if name != "lm_head.weight"}
    prefix = "model.language_model.layers.3."
    block = {f"mtp.layers.0.{name.removeprefix(prefix)}": s for name, s in shapes.items() if name.startswith(prefix)}
    norms = dict.fromkeys(
        ("mtp.norm.weight", "mtp.pre_fc_norm_embedding.weight", "mtp.pre_fc_norm_hidden.weight"), (1024,)
    )
    return shapes | block | norms | {"mtp.fc.weight": (1024, 2048)}


def write_shard(path: Path, shapes: dict[str, tuple[int, ...]], pool: np.ndarray) -> None:
    """bf16 tensors of `pool`'s random numbers, each from another place of it."""
    header, position = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in shapes.items():
        stop = position + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [position, stop]}
        position = stop
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for number, shape in enumerate(shapes.values()):
            left, start = math.prod(shape), 7919 * number % (pool.size // 2)
            while left:
                piece = pool[start : start + left]
                file.write(piece.view(np.uint8).data)
                left, start = left - piece.size, 0


def write_checkpoint(directory: Path) -> None:
    """config.json, index and two shards into a new folder."""
    directory.mkdir()
    shapes = tensor_shapes()
    assert len(shapes) == 488
    owned = [math.prod(s) for name, s in shapes.items() if name.startswith("model.language_model.")]
    assert sum(owned) == TEXT_PARAMETERS
    pool = (0.03 * np.random.default_rng(0).standard_normal(1 << 22, np.float32)).astype(ml_dtypes.bfloat16)
    names = list(shapes)
    shards = {
        "model-00001-of-00002.safetensors": names[::2],
        "model-00002-of-00002.safetensors": names[1::2],
    }
    for shard, held in shards.items():
        write_shard(directory / shard, {name: shapes[name] for name in held}, pool)
    index = {
        "metadata": {"total_size": 2 * sum(map(math.prod, shapes.values()))},
        "weight_map": {name: shard for shard, held in shards.items() for name in held},
    }
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    (directory / "config.json").write_text(json.dumps(CONFIG, indent=2))


def write_tokenizer(directory: Path, like: Path) -> None:
    """The tokenizer and template of `like`, its control tokens at the ids of the published models."""
    description = json.loads((like / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = description["model"]["vocab"]
    for token in description["added_tokens"]:
        token["id"] = CONTROL_IDS[token["content"]]
        vocabulary[token["content"]] = token["id"]
    (directory / "tokenizer.json").write_text(json.dumps(description), encoding="utf-8")
    (directory / "chat_template.jinja").write_bytes((like / "chat_template.jinja").read_bytes())


if __name__ == "__main__":
    write_checkpoint(Path(sys.argv[1]))
    write_tokenizer(Path(sys.argv[1]), Path(__file__).parents[3] / "whale_jax" / "demo" / "checkpoint")
