"""A random checkpoint of the 0.8B's real shape, with every tensor that the published one has: 488 in two shards."""

import gc
import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

from whale_jax.qwen3_5 import model
from whale_jax.qwen3_5.convert import export_checkpoint, load_checkpoint

torch = pytest.importorskip("torch")

GIB = 2**30
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


def free_memory() -> int:
    """Bytes that this process could still get, by the kernel's estimate and by its control group's limit."""
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    free = int(fields["MemAvailable"].split()[0]) * 1024
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.is_file() and limit.read_text().strip() != "max":
        free = min(free, int(limit.read_text()) - int(used.read_text()))
    return free


def tensor_shapes() -> dict[str, tuple[int, ...]]:
    """Names and shapes: text and vision as `transformers` builds them, and the mtp layer, which it leaves out."""
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


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("real") / "source"
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
    return directory


def memory(field: str) -> int:
    """VmRSS (now) or VmHWM (the most since it was last reset) of this process, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"/proc/self/status has no {field}")


def pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(1 << 24):
            yield piece


@pytest.mark.slow
@pytest.mark.skipif(
    free_memory() < 8 * GIB, reason="needs 8 GiB of free memory: two copies of 0.75 G parameters in fp32"
)
def test_the_0_8b_loads_within_bounds_matches_and_exports_bit_identical(source, tmp_path):
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    config, params = load_checkpoint(source)
    jax.block_until_ready(params)
    destination = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    assert destination == 4 * TEXT_PARAMETERS
    beyond = memory("VmHWM") - before - destination
    print(f"\nimport: {beyond / GIB:.2f} GiB beyond the {destination / GIB:.2f} GiB of the arrays")
    assert beyond <= params["embed"].nbytes // 2 + 10**9  # the file's largest tensor is bf16

    ids = np.random.default_rng(1).integers(0, config.vocab_size, 64).astype(np.int32)
    forward = jax.jit(lambda p, t: model.unembed(config, p, model.forward(config, p, t, t * 0 + 1, remat=False)))
    logits = np.asarray(forward(params, ids[None])[0])
    export_checkpoint(source, params, tmp_path / "out")
    del params
    gc.collect()
    names = sorted(path.name for path in source.iterdir())
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == names
    for name in names:
        for ours, theirs in zip(pieces(tmp_path / "out" / name), pieces(source / name), strict=True):
            assert ours == theirs, name

    from transformers import Qwen3_5ForConditionalGeneration

    reference = Qwen3_5ForConditionalGeneration.from_pretrained(source, dtype=torch.float32)
    with torch.no_grad():
        expected = reference(input_ids=torch.tensor(ids[None], dtype=torch.long)).logits[0].numpy()
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4 * np.abs(expected).max())
