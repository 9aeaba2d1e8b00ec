"""Hugging Face checkpoints in and out, through one table (`tensor_table`).

What a checkpoint holds beside the text model (vision tower, mtp layers, tokenizer, other files) is not ours: it is
carried through an export byte for byte. An export repeats each source file's header, so names, order, dtypes, shards
and metadata are the source's, and an export of unchanged parameters is bit-identical to its source.
"""

import filecmp
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding
from jax.typing import DTypeLike

from whale_jax.qwen3_5.checkpoint_dir import INDEX, CheckpointDir
from whale_jax.qwen3_5.config import Qwen35Config
from whale_jax.qwen3_5.params import Params, is_matrix, param_shapes
from whale_jax.qwen3_5.safetensors_file import CheckpointError, SafetensorsFile, recast_head
from whale_jax.qwen3_5.tensor_table import Slot, get_leaf, leaves

__all__ = ["CheckpointError", "each_leaf", "export_checkpoint", "load_checkpoint"]

_Bounds = tuple[tuple[int, int], ...]
"""Start and stop on every axis."""


def load_checkpoint(
    directory: str | Path, *, dtype: DTypeLike = jnp.float32, shardings: Mapping[str, Any] | None = None
) -> tuple[Qwen35Config, Params]:
    """Reads the text model of a checkpoint directory, one leaf after another, straight to where it is wanted.

    Beyond the arrays returned, the host holds one device's part of one leaf and one tensor of the file at a time. (On a
    CPU the part is not copied: it becomes the array.)

    Args:
        directory: holds config.json and model.safetensors, or shards with model.safetensors.index.json.
        dtype: of the parameters returned, whatever the file's.
        shardings: a `jax.sharding.Sharding` for every leaf, in the structure of `Params`; each process reads the parts
            of its own devices. None: the default device.

    Raises:
        ConfigError: config.json is missing or describes another model.
        CheckpointError: lists every file that is missing or damaged and every tensor that is missing, unknown,
            misshapen or not finite.
    """
    source = CheckpointDir.open(directory)
    params: Params = {}
    for path, leaf in _read_leaves(source, np.dtype(dtype), shardings):
        parent = params if len(path) == 1 else params.setdefault(path[0], {})
        parent[path[-1]] = leaf
    return source.config, params


def each_leaf(directory: str | Path) -> Iterator[tuple[tuple[str, ...], jax.Array]]:
    """The parameters of a checkpoint directory in fp32 with their paths, one after another: none is kept.

    Raises:
        ConfigError, CheckpointError: as `load_checkpoint`; what is not finite is told at the end.
    """
    return _read_leaves(CheckpointDir.open(directory), np.dtype(np.float32), None)


def _read_leaves(
    source: CheckpointDir, dtype: np.dtype, shardings: Mapping[str, Any] | None
) -> Iterator[tuple[tuple[str, ...], jax.Array]]:
    not_finite: dict[str, None] = {}
    for path, shape in leaves(param_shapes(source.config)):
        pieces = {name: slot for name, slot in source.slots.items() if slot.path == path}
        sharding = None if shardings is None else get_leaf(dict(shardings), path)
        yield path, _read_leaf(source, pieces, shape, dtype, sharding, not_finite)
    if not_finite:
        raise CheckpointError(source.root, [f"{name} holds values that are not finite" for name in not_finite])


def _read_leaf(
    source: CheckpointDir,
    pieces: dict[str, Slot],
    shape: tuple[int, ...],
    dtype: np.dtype,
    sharding: Sharding | None,
    not_finite: dict[str, None],
) -> jax.Array:
    if sharding is None:
        return jnp.asarray(_read_part(source, pieces, tuple((0, size) for size in shape), dtype, not_finite))
    devices: dict[_Bounds, list[Any]] = {}
    for device, index in sharding.addressable_devices_indices_map(shape).items():
        assert index is not None
        bounds = tuple(axis.indices(size)[:2] for axis, size in zip(index, shape, strict=True))
        devices.setdefault(bounds, []).append(device)
    parts = []
    for bounds, holders in devices.items():
        part = _read_part(source, pieces, bounds, dtype, not_finite)
        # Waits, so that a part has left the host before the next one is read.
        parts += jax.block_until_ready([jax.device_put(part, device) for device in holders])
    return jax.make_array_from_single_device_arrays(shape, sharding, parts)


def _read_part(
    source: CheckpointDir, pieces: dict[str, Slot], bounds: _Bounds, dtype: np.dtype, not_finite: dict[str, None]
) -> np.ndarray:
    """The part of a leaf within `bounds`, put together from the tensors that reach into it.

    Adds the names of tensors whose part here holds a value that is not finite to `not_finite`.
    """
    part = _aligned_empty(tuple(stop - start for start, stop in bounds), dtype)
    for name, slot in pieces.items():
        stacking, within = bounds[: len(slot.index)], bounds[len(slot.index) :]
        if all(start <= i < stop for i, (start, stop) in zip(slot.index, stacking, strict=True)):
            place = tuple(i - start for i, (start, _) in zip(slot.index, stacking, strict=True))
            file = source.where[name]
            tensor = slot.transform.in_(file.array(name))
            part[place] = tensor[tuple(slice(*limits) for limits in within)]
            if not np.isfinite(part[place]).all():
                not_finite[name] = None
            file.release(name)
    return part


def _aligned_empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Uninitialised memory aligned so that JAX's CPU backend takes it over in place of copying it."""
    alignment, size = 64, int(np.prod(shape)) * dtype.itemsize
    memory = np.empty(size + alignment, np.uint8)
    start = -memory.ctypes.data % alignment
    return memory[start : start + size].view(dtype).reshape(shape)


def export_checkpoint(
    source_dir: str | Path, params: Params, out_dir: str | Path, *, dtype: DTypeLike | None = None
) -> None:
    """Writes a copy of a checkpoint directory with the text model's tensors replaced by `params`.

    Atomic: `out_dir` appears complete or not at all. What was written is read back and compared.

    Args:
        source_dir: the checkpoint that `params` come from.
        params: one tensor at a time is brought to the host.
        out_dir: must not exist, or be empty.
        dtype: of the text model's matrices in place of the source's dtypes; norm weights, conv taps and decay
            parameters keep theirs. config.json and the index then say so.

    Raises:
        FileExistsError: `out_dir` exists and is not an empty directory.
        ConfigError, CheckpointError: the source cannot be used, or `params` do not fit it: every missing, unknown and
            misshapen one is listed.
    """
    out = Path(out_dir)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise FileExistsError(f"{out}: exists already; an export goes into a new directory")
    source = CheckpointDir.open(source_dir)
    if out.resolve().is_relative_to(source.root.resolve()):
        raise CheckpointError(out, [f"lies inside its source {source.root}; an export goes beside it"])
    _check_params(source, params)
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        _copy_other_files(source, temporary)
        for file in source.files:
            _write_file(file, temporary / file.path.name, params, source.slots, _new_dtypes(file, source.slots, dtype))
        if dtype is not None:
            _announce_dtype(temporary, np.dtype(dtype))
        CheckpointDir.open(temporary)
        temporary.chmod(0o777 & ~_umask())
        for directory, _, _ in os.walk(temporary):
            _flush_directory(directory)
        os.replace(temporary, out)
        _flush_directory(out.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _check_params(source: CheckpointDir, params: Params) -> None:
    wanted = dict(leaves(param_shapes(source.config)))
    given = {path: tuple(leaf.shape) for path, leaf in leaves(params)}
    problems = [f"{'.'.join(path)}: missing from the parameters" for path in wanted if path not in given]
    problems += [f"{'.'.join(path)}: not a parameter of the source's model" for path in given if path not in wanted]
    problems += [
        f"{'.'.join(path)}: parameters have shape {given[path]}, the source needs {shape}"
        for path, shape in wanted.items()
        if given.get(path, shape) != shape
    ]
    if problems:
        raise CheckpointError(source.root, problems)


def _copy_other_files(source: CheckpointDir, target: Path) -> None:
    weights = {file.path.name for file in source.files}
    shutil.copytree(
        source.root, target, dirs_exist_ok=True, ignore=lambda d, _: weights if Path(d) == source.root else ()
    )
    for path in target.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
            _require_same(filecmp.cmp(source.root / path.relative_to(target), path, shallow=False), path)


def _new_dtypes(file: SafetensorsFile, slots: dict[str, Slot], dtype: DTypeLike | None) -> dict[str, np.dtype]:
    """The tensors of a file that change their dtype."""
    if dtype is None:
        return {}
    return {name: np.dtype(dtype) for name in file.entries if name in slots and is_matrix(slots[name].path[-1])}


def _write_file(
    source: SafetensorsFile, target: Path, params: Params, slots: dict[str, Slot], dtypes: dict[str, np.dtype]
) -> None:
    digest = hashlib.sha256()
    with target.open("wb") as file:
        for data in _contents(source, params, slots, dtypes):
            digest.update(data)
            file.write(data)
        file.flush()
        os.fsync(file.fileno())
    with target.open("rb") as file:
        _require_same(hashlib.file_digest(file, "sha256").digest() == digest.digest(), target)


def _contents(
    source: SafetensorsFile, params: Params, slots: dict[str, Slot], dtypes: dict[str, np.dtype]
) -> Iterator[bytes | memoryview]:
    """The bytes of an exported file, piece by piece."""
    yield recast_head(source, dtypes) if dtypes else source.head
    for name, entry in source.entries.items():
        if name in slots:
            slot = slots[name]
            leaf = get_leaf(params, slot.path)
            ours = np.asarray(leaf[slot.index] if slot.index else leaf)
            # Contiguous, because a transposed view would be written in its old order.
            theirs = np.ascontiguousarray(slot.transform.out(ours).astype(dtypes.get(name, entry.dtype), copy=False))
            yield theirs.reshape(-1).view(np.uint8).data
        else:
            yield source.raw(name)
            source.release(name)


def _announce_dtype(directory: Path, dtype: np.dtype) -> None:
    """Makes config.json and the index of an export with another dtype say what its files hold."""
    path = directory / "config.json"
    fields = json.loads(path.read_text(encoding="utf-8"))
    for level in (fields, fields.get("text_config", {})):
        level.update({name: dtype.name for name in ("dtype", "torch_dtype") if name in level})
    _write_json(path, fields)
    path = directory / INDEX
    if path.exists():
        index = json.loads(path.read_text(encoding="utf-8"))
        if "total_size" in index.get("metadata", {}):
            files = [SafetensorsFile(directory / shard) for shard in sorted(set(index["weight_map"].values()))]
            sizes = (entry.stop - entry.start for file in files for entry in file.entries.values())
            index["metadata"]["total_size"] = sum(sizes)
            _write_json(path, index)


def _write_json(path: Path, value: Any) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())


def _require_same(same: bool, path: Path) -> None:
    if not same:
        raise CheckpointError(path, ["what is on disk differs from what was written; the disk may be failing"])


def _flush_directory(path: str | Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
