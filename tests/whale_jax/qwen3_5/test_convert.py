"""Checkpoints in and out: exact, atomic, and refused with every reason at once."""

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from whale_jax.qwen3_5.config import ConfigError
from whale_jax.qwen3_5.convert import CheckpointError, export_checkpoint, load_checkpoint
from whale_jax.qwen3_5.params import param_shapes

pytest.importorskip("torch")
from safetensors import safe_open
from safetensors.numpy import load_file, save_file


def files(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file()}


def tensors(checkpoint: Path) -> dict[str, np.ndarray]:
    return {name: array.copy() for name, array in load_file(checkpoint / "model.safetensors").items()}


def write(directory: Path, arrays: dict[str, np.ndarray], config: dict) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    save_file(arrays, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config))
    return directory


@pytest.fixture(scope="module")
def fields(checkpoint) -> dict:
    return json.loads((checkpoint / "config.json").read_text())


@pytest.fixture
def composite(checkpoint, fields, tmp_path) -> Path:
    """The composite form, in two shards, with a vision tower, an mtp layer, a subdirectory and a foreign file."""
    source = tmp_path / "composite"
    (source / "assets").mkdir(parents=True)
    arrays = {name.replace("model.", "model.language_model.", 1): a for name, a in tensors(checkpoint).items()}
    others = {
        "model.visual.blocks.0.attn.qkv.weight": np.arange(6, dtype=np.int8),
        "mtp.fc.weight": np.ones((2, 3), np.float16),
    }
    names = sorted(arrays)
    shards = {
        "model-00001-of-00002.safetensors": {n: arrays[n] for n in names[::2]} | others,
        "model-00002-of-00002.safetensors": {n: arrays[n] for n in names[1::2]},
    }
    for shard, held in shards.items():
        save_file(held, source / shard, metadata={"format": "pt", "note": "kept"})
    weight_map = {name: shard for shard, held in shards.items() for name in held}
    (source / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    config = {
        "model_type": "qwen3_5",
        "text_config": fields,
        "vision_config": {"depth": 1},
        "tie_word_embeddings": True,
    }
    (source / "config.json").write_text(json.dumps(config))
    (source / "assets" / "notes.txt").write_text("kept")
    (source / "tokenizer.json").write_text("{}")
    return source


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_untrained_export_is_bit_identical(reference_model, tmp_path, dtype):
    import copy

    import torch

    source = tmp_path / "source"
    copy.deepcopy(reference_model).to(getattr(torch, dtype)).save_pretrained(source)
    _, params = load_checkpoint(source)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(params))
    export_checkpoint(source, params, tmp_path / "out")
    assert files(tmp_path / "out") == files(source)


def test_case_g161_g162_g164_foreign_tensors_and_files_are_carried_through(composite, tmp_path):
    _, params = load_checkpoint(composite)
    export_checkpoint(composite, params, tmp_path / "out")
    assert files(tmp_path / "out") == files(composite)


def test_trained_export_loads_in_transformers_and_here(checkpoint, tmp_path):
    import torch
    from transformers import AutoModelForCausalLM

    config, params = load_checkpoint(checkpoint)
    rng = np.random.default_rng(0)
    trained = jax.tree.map(
        lambda leaf: np.asarray(leaf) + 1e-3 * rng.normal(size=leaf.shape).astype(np.float32), params
    )
    export_checkpoint(checkpoint, trained, tmp_path / "out")
    again_config, again = load_checkpoint(tmp_path / "out")
    assert again_config == config
    for (path, ours), theirs in zip(jax.tree.leaves_with_path(again), jax.tree.leaves(trained), strict=True):
        np.testing.assert_array_equal(ours, theirs, err_msg=jax.tree_util.keystr(path))
    state = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).state_dict()
    np.testing.assert_array_equal(state["model.layers.3.self_attn.q_proj.weight"], trained["full"]["q"][0].T)
    np.testing.assert_array_equal(state["model.layers.6.linear_attn.A_log"], trained["linear"]["a_log"][1, 2])


def test_case_g169_the_dtype_asked_for_is_the_dtype_given(checkpoint):
    _, params = load_checkpoint(checkpoint, dtype=jnp.bfloat16)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(jnp.bfloat16)}


def test_shapes_are_those_announced(checkpoint):
    config, params = load_checkpoint(checkpoint)
    assert jax.tree.map(lambda leaf: leaf.shape, params) == param_shapes(config)


def test_case_g172_norm_weights_are_stored_as_w_not_one_plus_w(checkpoint, fields, tmp_path):
    arrays = tensors(checkpoint)
    arrays["model.norm.weight"] = np.full_like(arrays["model.norm.weight"], 1e-3)
    _, params = load_checkpoint(write(tmp_path / "c", arrays, fields))
    np.testing.assert_array_equal(params["final_norm"], np.float32(1e-3))


def test_case_g167_untied_heads(checkpoint, fields, tmp_path):
    arrays = tensors(checkpoint)
    untied = fields | {"tie_word_embeddings": False}
    with pytest.raises(CheckpointError, match=r"lm_head\.weight is missing"):
        load_checkpoint(write(tmp_path / "missing", arrays, untied))
    arrays["lm_head.weight"] = arrays["model.embed_tokens.weight"] * 2
    source = write(tmp_path / "untied", arrays, untied)
    _, params = load_checkpoint(source)
    np.testing.assert_array_equal(params["lm_head"], arrays["lm_head.weight"])
    export_checkpoint(source, params, tmp_path / "out")
    assert files(tmp_path / "out") == files(source)


def test_case_g166_tied_head_written_twice_follows_the_source(checkpoint, fields, tmp_path):
    arrays = tensors(checkpoint)
    arrays["lm_head.weight"] = arrays["model.embed_tokens.weight"].copy()
    source = write(tmp_path / "both", arrays, fields)
    _, params = load_checkpoint(source)
    assert "lm_head" not in params
    params["embed"] = params["embed"] + 1
    export_checkpoint(source, params, tmp_path / "out")
    out = tensors(tmp_path / "out")
    np.testing.assert_array_equal(out["lm_head.weight"], out["model.embed_tokens.weight"])
    np.testing.assert_array_equal(out["lm_head.weight"], arrays["lm_head.weight"] + 1)
    arrays["lm_head.weight"] += 1
    with pytest.raises(CheckpointError, match="differs from the embeddings"):
        load_checkpoint(write(tmp_path / "differs", arrays, fields))


def test_every_wrong_tensor_is_listed(checkpoint, fields, tmp_path):
    arrays = tensors(checkpoint)
    del arrays["model.layers.0.mlp.up_proj.weight"]
    arrays["model.norm.weight"] = arrays["model.norm.weight"][:-1].copy()
    arrays["model.layers.8.mlp.up_proj.weight"] = np.zeros((2, 2), np.float32)
    arrays["model.layers.1.linear_attn.A_log"] = np.zeros(4, np.int32)
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(write(tmp_path / "wrong", arrays, fields))
    assert sorted(caught.value.problems) == [
        "model.layers.0.mlp.up_proj.weight is missing",
        "model.layers.1.linear_attn.A_log is int32; only F64, F32, F16 and BF16 are read",
        "model.layers.8.mlp.up_proj.weight is not a tensor of this model",
        "model.norm.weight has shape [31], config.json asks for [32]",
    ]


def test_values_that_are_not_finite_are_refused(checkpoint, fields, tmp_path):
    arrays = tensors(checkpoint)
    arrays["model.norm.weight"] = np.full_like(arrays["model.norm.weight"], np.nan)
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight holds values that are not finite"):
        load_checkpoint(write(tmp_path / "nan", arrays, fields))


def test_config_errors_come_before_tensors(checkpoint, fields, tmp_path):
    with pytest.raises(ConfigError, match="hidden_act"):
        load_checkpoint(write(tmp_path / "c", tensors(checkpoint), fields | {"hidden_act": "gelu"}))


def damaged(data: bytes, kind: str) -> bytes:
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    if kind == "three bytes short":
        return data[:-3]
    if kind == "a tail":
        return data + b"x"
    if kind == "empty":
        return b""
    if kind == "header longer than the file":
        return struct.pack("<Q", 1 << 40) + data[8:]
    if kind == "a name twice":
        again = b',"model.norm.weight":' + json.dumps(header["model.norm.weight"]).encode() + b"}"
        text = data[8 : 8 + length].rstrip()[:-1] + again
        return struct.pack("<Q", len(text)) + text + data[8 + length :]
    if kind == "header is not JSON":
        return data[:8] + b"?" * length + data[8 + length :]
    if kind == "header too deep":
        return struct.pack("<Q", 200_000) + b"[" * 200_000
    if kind == "wrong shape":
        header["model.norm.weight"]["shape"] = [64]
    elif kind == "overlap":
        header["model.norm.weight"]["data_offsets"] = [0, 128]
    elif kind == "negative":
        header["model.norm.weight"]["data_offsets"] = [-128, 0]
    elif kind == "unknown dtype":
        header["model.norm.weight"]["dtype"] = "F12"
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data[8 + length :]


DAMAGES = [
    "three bytes short",
    "a tail",
    "empty",
    "header longer than the file",
    "header is not JSON",
    "header too deep",
    "wrong shape",
    "overlap",
    "negative",
    "unknown dtype",
    "a name twice",
]


@pytest.mark.parametrize("kind", DAMAGES)
def test_case_g176_damaged_files_are_refused(checkpoint, fields, tmp_path, kind):
    source = write(tmp_path / "c", tensors(checkpoint), fields)
    file = source / "model.safetensors"
    file.write_bytes(damaged(file.read_bytes(), kind))
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        load_checkpoint(source)


def test_missing_weights_name_the_file(fields, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(CheckpointError, match=r"model\.safetensors: cannot be read"):
        load_checkpoint(tmp_path)


def lying(index: dict, kind: str) -> dict:
    weights = dict(index["weight_map"])
    first, second = list(weights)[:2]
    if kind == "a shard that is not there":
        weights[first] = "model-00009-of-00002.safetensors"
    elif kind == "another folder":
        weights[first] = "../x.safetensors"
    elif kind == "a number for a name":
        weights[first] = 3
    elif kind == "another suffix":
        weights[first] = "model.bin"
    elif kind == "a tensor in the wrong shard":
        other = {v for v in weights.values() if v != weights[first]}.pop()
        weights[first] = other
    elif kind == "a tensor left out":
        del weights[second]
    elif kind == "names without files":
        weights[first] = 7
    elif kind == "no map":
        return {}
    return index | {"weight_map": weights}


@pytest.mark.parametrize(
    "kind",
    [
        "a shard that is not there",
        "another folder",
        "another suffix",
        "a number for a name",
        "a tensor in the wrong shard",
        "a tensor left out",
        "no map",
        "names without files",
    ],
)
def test_case_g177_lying_indexes_are_refused(composite, kind):
    file = composite / "model.safetensors.index.json"
    file.write_text(json.dumps(lying(json.loads(file.read_text()), kind)))
    with pytest.raises(CheckpointError, match=r"index\.json"):
        load_checkpoint(composite)


@pytest.mark.parametrize(
    "text", ['{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}', '{"weight_map": {"mo']
)
def test_indexes_that_are_cut_short_or_say_two_things_are_refused(composite, text):
    (composite / "model.safetensors.index.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"index\.json: not a safetensors index"):
        load_checkpoint(composite)


def test_a_single_file_beside_an_index_of_others_is_refused(composite):
    (composite / "model.safetensors").write_bytes((composite / "model-00001-of-00002.safetensors").read_bytes())
    with pytest.raises(CheckpointError, match=r"holds model\.safetensors and an index"):
        load_checkpoint(composite)


def test_every_parameter_that_does_not_fit_is_listed(checkpoint, tmp_path):
    _, params = load_checkpoint(checkpoint)
    wrong = params | {"lm_head": params["embed"], "final_norm": params["final_norm"][:5]}
    wrong["full"] = {name: leaf for name, leaf in params["full"].items() if name != "q"}
    with pytest.raises(CheckpointError) as caught:
        export_checkpoint(checkpoint, wrong, tmp_path / "out")
    assert caught.value.problems == [
        "full.q: missing from the parameters",
        "lm_head: not a parameter of the source's model",
        "final_norm: parameters have shape (5,), the source needs (32,)",
    ]


VECTORS = {"input_norm", "post_norm", "final_norm", "norm", "q_norm", "k_norm", "a_log", "dt_bias", "conv"}


def test_export_in_another_dtype(composite, tmp_path):
    """Matrices change; vectors, foreign tensors and metadata do not; config.json and the index tell the truth."""
    index = json.loads((composite / "model.safetensors.index.json").read_text())
    index["metadata"] = {"total_size": 1, "total_parameters": 2}
    (composite / "model.safetensors.index.json").write_text(json.dumps(index))
    config, params = load_checkpoint(composite)
    out = tmp_path / "out"
    export_checkpoint(composite, params, out, dtype=jnp.bfloat16)
    again, rounded = load_checkpoint(out)
    assert again == config
    for (path, ours), before in zip(jax.tree.leaves_with_path(rounded), jax.tree.leaves(params), strict=True):
        before = np.asarray(before)
        expected = before if path[-1].key in VECTORS else before.astype(jnp.bfloat16).astype(np.float32)
        np.testing.assert_array_equal(ours, expected, err_msg=jax.tree_util.keystr(path))
    assert json.loads((out / "config.json").read_text())["text_config"]["dtype"] == "bfloat16"
    total = 0
    for shard in sorted(set(index["weight_map"].values())):
        with safe_open(out / shard, "np") as file:
            assert file.metadata() == {"format": "pt", "note": "kept"}
        total += (out / shard).stat().st_size - 8 - int.from_bytes((out / shard).read_bytes()[:8], "little")
    metadata = json.loads((out / "model.safetensors.index.json").read_text())["metadata"]
    assert metadata == {"total_size": total, "total_parameters": 2}
    with safe_open(out / "model-00001-of-00002.safetensors", "np") as file:
        np.testing.assert_array_equal(file.get_tensor("model.visual.blocks.0.attn.qkv.weight"), np.arange(6))


def test_an_export_into_its_source_is_refused(checkpoint):
    _, params = load_checkpoint(checkpoint)
    with pytest.raises(CheckpointError, match="lies inside its source"):
        export_checkpoint(checkpoint, params, checkpoint / "export")
    assert not (checkpoint / "export").exists()


SHARDED = """
import sys, jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
from whale_jax.qwen3_5.convert import load_checkpoint
config, whole = load_checkpoint(sys.argv[1])
mesh = jax.make_mesh((2, 2), ("x", "y"))
def spec(leaf):
    axes = [None] * leaf.ndim
    axes[-1] = "y" if leaf.shape[-1] % 2 == 0 else None
    if leaf.ndim > 1 and leaf.shape[0] % 2 == 0:
        axes[0] = "x"
    return NamedSharding(mesh, P(*axes))
shardings = jax.tree.map(spec, whole)
_, parts = load_checkpoint(sys.argv[1], shardings=shardings)
for ours, theirs, sharding in zip(*map(jax.tree.leaves, (parts, whole, shardings)), strict=True):
    assert ours.sharding == sharding
    np.testing.assert_array_equal(ours, theirs)
assert parts["linear"]["qkv"].addressable_shards[0].data.shape[0] == 1
print(sum(len(leaf.addressable_shards) for leaf in jax.tree.leaves(parts)))
"""


def test_import_into_target_shardings(checkpoint):
    """On four devices, in a process of their own: stacking axis, matrix axis and neither."""
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", SHARDED, str(checkpoint)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == 4 * len(jax.tree.leaves(load_checkpoint(checkpoint)[1]))


def test_export_is_atomic_and_never_overwrites(checkpoint, tmp_path):
    _, params = load_checkpoint(checkpoint)
    out = tmp_path / "out"
    (out / "mine").mkdir(parents=True)
    with pytest.raises(FileExistsError, match="exists already"):
        export_checkpoint(checkpoint, params, out)
    wrong = params | {"embed": params["embed"][:-1]}
    with pytest.raises(CheckpointError, match=r"embed: parameters have shape \(96, 32\)"):
        export_checkpoint(checkpoint, wrong, tmp_path / "other")
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
