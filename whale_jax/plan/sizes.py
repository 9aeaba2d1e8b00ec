"""Shapes of the dense Qwen3.5 models, for planning without a checkpoint.

A model is always built from its checkpoint's own config.json; these serve `--model=2b` and tests over real shapes
alone. The 0.8B, 4B and 9B rows come from derivative checkpoints.
"""

import re
from pathlib import Path

from whale_jax.qwen3_5.config import ConfigError, Qwen35Config


def _dense(
    hidden: int, ffn: int, layers: int, heads: int, kv_heads: int, linear_value_heads: int, tied: bool
) -> Qwen35Config:
    return Qwen35Config(
        vocab_size=248_320,
        hidden_size=hidden,
        intermediate_size=ffn,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=256,
        linear_key_heads=16,
        linear_value_heads=linear_value_heads,
        linear_key_dim=128,
        linear_value_dim=128,
        tie_embeddings=tied,
    )


SIZES = {
    "0.8b": _dense(1024, 3584, 24, 8, 2, 16, tied=True),
    "2b": _dense(2048, 6144, 24, 8, 2, 16, tied=True),
    "4b": _dense(2560, 9216, 32, 16, 4, 32, tied=True),
    "9b": _dense(4096, 12288, 32, 16, 4, 32, tied=False),
}


def config_of(model: str) -> Qwen35Config:
    """The shape called `model`: one of `SIZES`, or a checkpoint folder.

    Raises:
        ConfigError: neither.
    """
    if model.lower() in SIZES:
        return SIZES[model.lower()]
    if not Path(model).is_dir():
        what = "size" if re.fullmatch(r"[\d.]+[bB]", model) else "folder"
        raise ConfigError(f"--model={model}: no such {what}; say one of {', '.join(SIZES)}, or a checkpoint folder")
    return Qwen35Config.from_dir(model)
