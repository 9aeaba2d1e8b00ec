"""Hugging Face checkpoints in and out, through one table.

The text model's tensors are named `model.language_model.*` (composite checkpoints) or `model.*` (text-only ones), plus
`lm_head.weight` when the embeddings are not tied. Whatever else a checkpoint holds (vision tower, mtp layers,
tokenizer, other files) is not ours: it is carried through an export byte for byte. An export repeats each source file's
header, so names, order, dtypes, shards and metadata are the source's, and an export of unchanged parameters is
bit-identical to its source.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from whale_jax.qwen3_5.config import FULL_ATTENTION_INTERVAL, LINEAR_PER_GROUP, Qwen35Config
from whale_jax.qwen3_5.params import Params, param_shapes
from whale_jax.qwen3_5.safetensors_file import CheckpointError, SafetensorsFile

__all__ = ["CheckpointError", "export_checkpoint", "load_checkpoint"]


@dataclass(frozen=True)
class _Transform:
    """How an array of the checkpoint becomes ours, and back. Both directions are exact."""

    in_: Callable[[np.ndarray], np.ndarray]
    out: Callable[[np.ndarray], np.ndarray]


_SAME = _Transform(lambda x: x, lambda x: x)
_TRANSPOSE = _Transform(lambda x: x.T, lambda x: x.T)  # torch keeps [out, in]
_CONV = _Transform(lambda x: x[:, 0].T, lambda x: x.T[:, None])  # torch keeps [channels, 1, taps]

_TABLE: dict[tuple[str, ...], tuple[str, _Transform]] = {
    ("embed",): ("embed_tokens.weight", _SAME),
    ("final_norm",): ("norm.weight", _SAME),
    ("lm_head",): ("lm_head.weight", _SAME),
    **{
        (kind, ours): (theirs, transform)
        for kind in ("linear", "full")
        for ours, theirs, transform in (
            ("input_norm", "input_layernorm.weight", _SAME),
            ("post_norm", "post_attention_layernorm.weight", _SAME),
            ("gate", "mlp.gate_proj.weight", _TRANSPOSE),
            ("up", "mlp.up_proj.weight", _TRANSPOSE),
            ("down", "mlp.down_proj.weight", _TRANSPOSE),
        )
    },
    ("linear", "qkv"): ("linear_attn.in_proj_qkv.weight", _TRANSPOSE),
    ("linear", "z"): ("linear_attn.in_proj_z.weight", _TRANSPOSE),
    ("linear", "b"): ("linear_attn.in_proj_b.weight", _TRANSPOSE),
    ("linear", "a"): ("linear_attn.in_proj_a.weight", _TRANSPOSE),
    ("linear", "conv"): ("linear_attn.conv1d.weight", _CONV),
    ("linear", "a_log"): ("linear_attn.A_log", _SAME),
    ("linear", "dt_bias"): ("linear_attn.dt_bias", _SAME),
    ("linear", "norm"): ("linear_attn.norm.weight", _SAME),
    ("linear", "out"): ("linear_attn.out_proj.weight", _TRANSPOSE),
    ("full", "q"): ("self_attn.q_proj.weight", _TRANSPOSE),
    ("full", "k"): ("self_attn.k_proj.weight", _TRANSPOSE),
    ("full", "v"): ("self_attn.v_proj.weight", _TRANSPOSE),
    ("full", "q_norm"): ("self_attn.q_norm.weight", _SAME),
    ("full", "k_norm"): ("self_attn.k_norm.weight", _SAME),
    ("full", "o"): ("self_attn.o_proj.weight", _TRANSPOSE),
}
"""Path in `Params` to name in the checkpoint (after the prefix of model or layer) and transform, both ways."""


@dataclass(frozen=True)
class _Slot:
    """The place of one checkpoint tensor in `Params`: `params[path][index]`."""

    path: tuple[str, ...]
    index: tuple[int, ...]
    shape: tuple[int, ...]
    """Shape in `Params`, without the stacking axes."""
    transform: _Transform


def load_checkpoint(directory: str | Path, *, dtype: DTypeLike = jnp.float32) -> tuple[Qwen35Config, Params]:
    """Reads the text model of a checkpoint directory.

    Args:
        directory: holds config.json and model.safetensors, or shards with model.safetensors.index.json.
        dtype: of the parameters returned, whatever the file's.

    Raises:
        ConfigError: config.json is missing or describes another model.
        CheckpointError: lists every file that is missing or damaged and every tensor that is missing, unknown,
            misshapen or not finite.
    """
    root = Path(directory)
    config = Qwen35Config.from_dir(root)
    where = _locate(root)
    slots = _checked_slots(root, config, where)
    params: Params = {}
    problems = []
    for path, shape in _leaves(param_shapes(config)):
        leaf = np.empty(shape, jnp.dtype(dtype))
        for name, slot in slots.items():
            if slot.path == path and name in where:
                source = where[name].array(name)
                if not np.isfinite(source).all():
                    problems.append(f"{name} holds values that are not finite")
                leaf[slot.index] = slot.transform.in_(source).astype(leaf.dtype)
        parent = params if len(path) == 1 else params.setdefault(path[0], {})
        parent[path[-1]] = jnp.asarray(leaf)
    if problems:
        raise CheckpointError(root, problems)
    return config, params


def export_checkpoint(source_dir: str | Path, params: Params, out_dir: str | Path) -> None:
    """Writes a copy of a checkpoint directory with the text model's tensors replaced by `params`.

    Atomic: `out_dir` appears complete or not at all. What was written is read back and compared.

    Raises:
        FileExistsError: `out_dir` exists and is not an empty directory.
        ConfigError, CheckpointError: the source cannot be used, or `params` do not fit it.
    """
    root, out = Path(source_dir), Path(out_dir)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise FileExistsError(f"{out}: exists already; an export goes into a new directory")
    config = Qwen35Config.from_dir(root)
    where = _locate(root)
    slots = _checked_slots(root, config, where)
    shapes = {path: tuple(_get(params, path).shape) for path, _ in _leaves(param_shapes(config))}
    wrong = [
        f"{'.'.join(path)}: parameters have shape {shapes[path]}, the source needs {shape}"
        for path, shape in _leaves(param_shapes(config))
        if shapes[path] != shape
    ]
    if wrong:
        raise CheckpointError(root, wrong)
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        weights = {file.path.name for file in where.values()}
        shutil.copytree(root, temporary, dirs_exist_ok=True, ignore=lambda d, _: weights if Path(d) == root else ())
        for file in {file.path: file for file in where.values()}.values():
            _write_file(file, temporary / file.path.name, params, slots)
        temporary.chmod(0o777 & ~_umask())
        os.replace(temporary, out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write_file(source: SafetensorsFile, target: Path, params: Params, slots: dict[str, _Slot]) -> None:
    digest = hashlib.sha256(source.head)
    with target.open("wb") as file:
        file.write(source.head)
        for name, entry in source.entries.items():
            if name in slots:
                slot = slots[name]
                ours = np.asarray(_get(params, slot.path)[slot.index])
                # Contiguous, because a transposed view would be written in its old order.
                theirs = np.ascontiguousarray(slot.transform.out(ours).astype(entry.dtype))
                data = theirs.reshape(-1).view(np.uint8).data
            else:
                data = source.raw(name)
            digest.update(data)
            file.write(data)
        file.flush()
        os.fsync(file.fileno())
    SafetensorsFile(target)
    with target.open("rb") as file:
        if hashlib.file_digest(file, "sha256").digest() != digest.digest():
            raise CheckpointError(target, ["what is on disk differs from what was written; the disk may be failing"])


def _locate(root: Path) -> dict[str, SafetensorsFile]:
    """Name of every tensor to the file that holds it."""
    index = root / "model.safetensors.index.json"
    if not index.exists():
        file = SafetensorsFile(root / "model.safetensors")
        return dict.fromkeys(file.entries, file)
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        shards = sorted(set(weight_map.values()), key=str)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(index, [f"not a safetensors index ({error!r})"]) from error
    problems = [
        f"shard {shard!r} must be a plain *.safetensors file name"
        for shard in shards
        if not isinstance(shard, str) or Path(shard).name != shard or not shard.endswith(".safetensors")
    ]
    if problems:
        raise CheckpointError(index, problems)
    files: dict[str, SafetensorsFile] = {}
    for shard in shards:
        try:
            files[shard] = SafetensorsFile(root / shard)
        except CheckpointError as error:
            problems.append(str(error))
    for name, shard in weight_map.items():
        if shard in files and name not in files[shard].entries:
            problems.append(f"{name} is not in {shard}, where the index has it")
    for shard, file in files.items():
        problems += [f"{name} in {shard} is not in the index" for name in file.entries if weight_map.get(name) != shard]
    if problems:
        raise CheckpointError(index, problems)
    return {name: files[shard] for name, shard in weight_map.items()}


def _checked_slots(root: Path, config: Qwen35Config, where: dict[str, SafetensorsFile]) -> dict[str, _Slot]:
    """Every tensor of the text model and its place, after comparing the checkpoint with the table."""
    prefix = "model.language_model." if any(n.startswith("model.language_model.") for n in where) else "model."
    slots = dict(_slots(config, prefix))
    problems = [f"{name} is missing" for name in slots if name not in where]
    text = (prefix, "lm_head.")
    others = ("model.visual.", "model.language_model.") if prefix == "model." else ()
    tied_head = config.tie_embeddings and "lm_head.weight" in where
    if tied_head:
        slots["lm_head.weight"] = _Slot(("embed",), (), (config.vocab_size, config.hidden_size), _SAME)
    problems += [
        f"{name} is not a tensor of this model"
        for name in where
        if name.startswith(text) and not name.startswith(others or "\n") and name not in slots
    ]
    for name, slot in slots.items():
        if name not in where:
            continue
        entry = where[name].entries[name]
        expected = slot.transform.out(np.empty(slot.shape, np.bool_)).shape
        if entry.shape != expected:
            problems.append(f"{name} has shape {list(entry.shape)}, config.json asks for {list(expected)}")
        elif entry.dtype.kind not in "fV" or entry.dtype.itemsize < 2:
            problems.append(f"{name} is {entry.dtype}; only F64, F32, F16 and BF16 are read")
    embed = f"{prefix}embed_tokens.weight"
    if tied_head and not problems and where[embed].raw(embed) != where["lm_head.weight"].raw("lm_head.weight"):
        problems.append("lm_head.weight differs from the embeddings although config.json ties them")
    if problems:
        raise CheckpointError(root, problems)
    return slots


def _slots(config: Qwen35Config, prefix: str) -> Iterator[tuple[str, _Slot]]:
    for path, shape in _leaves(param_shapes(config)):
        theirs, transform = _TABLE[path]
        if path == ("lm_head",):
            yield theirs, _Slot(path, (), shape, transform)
        elif len(path) == 1:
            yield prefix + theirs, _Slot(path, (), shape, transform)
        elif path[0] == "full":
            for group in range(config.num_groups):
                layer = FULL_ATTENTION_INTERVAL * group + LINEAR_PER_GROUP
                yield f"{prefix}layers.{layer}.{theirs}", _Slot(path, (group,), shape[1:], transform)
        else:
            for group, inner in np.ndindex(config.num_groups, LINEAR_PER_GROUP):
                layer = FULL_ATTENTION_INTERVAL * group + inner
                yield f"{prefix}layers.{layer}.{theirs}", _Slot(path, (group, inner), shape[2:], transform)


def _leaves(tree: dict[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, node in tree.items():
        if isinstance(node, dict):
            yield from (((name, inner), leaf) for inner, leaf in node.items())
        else:
            yield (name,), node


def _get(params: Params, path: tuple[str, ...]) -> Any:
    for name in path:
        params = params[name]
    return params


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
