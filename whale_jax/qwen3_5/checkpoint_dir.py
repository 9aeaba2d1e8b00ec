"""A Hugging Face checkpoint directory, opened and checked as a whole before a tensor is read."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from whale_jax.qwen3_5.config import Qwen35Config
from whale_jax.qwen3_5.safetensors_file import CheckpointError, SafetensorsFile, unique_fields
from whale_jax.qwen3_5.tensor_table import SAME, Slot, slots

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


@dataclass(frozen=True)
class CheckpointDir:
    """A checkpoint whose text model is complete and has the shapes that its config.json asks for.

    Attributes:
        root: the directory.
        config: of its text model.
        where: every tensor, those of other owners included, to the file that holds it.
        slots: the text model's tensors to their places. `lm_head.weight` is one where the checkpoint has it, also if it
            is tied.
    """

    root: Path
    config: Qwen35Config
    where: dict[str, SafetensorsFile]
    slots: dict[str, Slot]

    @classmethod
    def open(cls, directory: str | Path) -> "CheckpointDir":
        """Reads config.json, the index and every file's header.

        Raises:
            ConfigError: config.json is missing or describes another model.
            CheckpointError: lists every file that is missing or damaged and every tensor that is missing, unknown or
                misshapen.
        """
        root = Path(directory)
        config = Qwen35Config.from_dir(root)
        where = _locate(root)
        return cls(root, config, where, _checked_slots(root, config, where))

    @property
    def files(self) -> list[SafetensorsFile]:
        """The files with tensors, in the order of their names."""
        return sorted({file.path: file for file in self.where.values()}.values(), key=lambda file: file.path)


def _locate(root: Path) -> dict[str, SafetensorsFile]:
    """Name of every tensor to the file that holds it."""
    index, single = root / INDEX, root / SINGLE
    if not index.exists():
        file = SafetensorsFile(single)
        return dict.fromkeys(file.entries, file)
    weight_map = _read_weight_map(index)
    if single.exists() and SINGLE not in weight_map.values():
        raise CheckpointError(root, [f"holds {SINGLE} and an index of other files; remove the ones that do not count"])
    shards = sorted(set(weight_map.values()))
    problems = [
        f"shard {shard!r} must be a plain *.safetensors file name"
        for shard in shards
        if Path(shard).name != shard or not shard.endswith(".safetensors")
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


def _read_weight_map(index: Path) -> dict[str, str]:
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"), object_pairs_hook=unique_fields)["weight_map"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(index, [f"not a safetensors index ({error!r})"]) from error
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise CheckpointError(index, ["weight_map must be an object from tensor names to file names"])
    return weight_map


def _checked_slots(root: Path, config: Qwen35Config, where: dict[str, SafetensorsFile]) -> dict[str, Slot]:
    """Every tensor of the text model and its place, after comparing the checkpoint with the table."""
    prefix = "model.language_model." if any(n.startswith("model.language_model.") for n in where) else "model."
    found = dict(slots(config, prefix))
    problems = [f"{name} is missing" for name in found if name not in where]
    text = (prefix, "lm_head.")
    others = ("model.visual.", "model.language_model.") if prefix == "model." else ()
    tied_head = config.tie_embeddings and "lm_head.weight" in where
    if tied_head:
        found["lm_head.weight"] = Slot(("embed",), (), (config.vocab_size, config.hidden_size), SAME)
    problems += [
        f"{name} is not a tensor of this model"
        for name in where
        if name.startswith(text) and not name.startswith(others or "\n") and name not in found
    ]
    for name, slot in found.items():
        if name not in where:
            continue
        entry = where[name].entries[name]
        expected = slot.transform.out(np.empty(slot.shape, np.bool_)).shape
        if entry.shape != expected:
            problems.append(f"{name} has shape {list(entry.shape)}, config.json asks for {list(expected)}")
        elif entry.dtype.kind not in "fV" or entry.dtype.itemsize < 2:
            problems.append(f"{name} is {entry.dtype}; only F64, F32, F16 and BF16 are read")
    if tied_head and not problems and not _same_bytes(where, f"{prefix}embed_tokens.weight", "lm_head.weight"):
        problems.append("lm_head.weight differs from the embeddings although config.json ties them")
    if problems:
        raise CheckpointError(root, problems)
    return found


def _same_bytes(where: dict[str, SafetensorsFile], one: str, other: str) -> bool:
    same = where[one].raw(one) == where[other].raw(other)
    for name in (one, other):
        where[name].release(name)
    return same
