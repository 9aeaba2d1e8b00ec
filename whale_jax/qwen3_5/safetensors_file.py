"""Safetensors files, byte by byte.

The format: eight bytes little-endian header length, a JSON header {name: {dtype, shape, data_offsets}}, then the
tensors' bytes with no gap. It is read here rather than through the library because an export has to repeat a source
file exactly (header, order, metadata, tensors of other owners), and because bf16 has to come out as an array without
another framework.
"""

import json
import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

_DTYPES: Mapping[str, Any] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U8": np.uint8,
    "BOOL": np.bool_,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
}
_MAX_HEADER = 100_000_000


class CheckpointError(ValueError):
    """A checkpoint directory that cannot be used. The message lists everything that is wrong, one problem per line."""

    def __init__(self, where: str | Path, problems: list[str]) -> None:
        super().__init__(f"{where}: " + "\n  ".join(problems))
        self.problems = problems


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of a file: where its bytes lie, counted from the start of the file."""

    dtype: np.dtype
    shape: tuple[int, ...]
    start: int
    stop: int


class SafetensorsFile:
    """A memory-mapped file.

    Attributes:
        head: the raw length and header, `data` excluded.
        fields: the parsed header, `__metadata__` included, in its own order.
        entries: name to `TensorEntry`, in the order of the bytes.
    """

    def __init__(self, path: Path) -> None:
        """Maps and checks a file.

        Raises:
            CheckpointError: the file is missing, cut short or its header lies about it.
        """
        self.path = path
        try:
            with path.open("rb") as file:
                if path.stat().st_size < 8:
                    raise CheckpointError(path, ["cut short: under 8 bytes are no safetensors file"])
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise CheckpointError(path, [f"cannot be read ({error.strerror})"]) from error
        self.head, self.fields, self.entries = self._parse()

    def array(self, name: str) -> np.ndarray:
        """A read-only view of one tensor in the mapped file."""
        entry = self.entries[name]
        return np.frombuffer(self.raw(name), entry.dtype).reshape(entry.shape)

    def raw(self, name: str) -> memoryview:
        """The bytes of one tensor."""
        entry = self.entries[name]
        return memoryview(self._map)[entry.start : entry.stop]

    def release(self, name: str) -> None:
        """Takes a tensor's pages out of this process's memory; they are read again when they are needed again."""
        entry = self.entries[name]
        first = -(-entry.start // mmap.PAGESIZE) * mmap.PAGESIZE
        if first < entry.stop:
            self._map.madvise(mmap.MADV_DONTNEED, first, entry.stop - first)

    def _parse(self) -> tuple[bytes, dict[str, Any], dict[str, TensorEntry]]:
        size = len(self._map)
        (length,) = struct.unpack("<Q", self._map[:8])
        if length > min(size - 8, _MAX_HEADER):
            raise CheckpointError(self.path, [f"cut short: the header says {length} bytes, the file has {size}"])
        head = self._map[: 8 + length]
        try:
            fields = json.loads(head[8:], object_pairs_hook=unique_fields)
            entries = {name: _entry(field, 8 + length) for name, field in fields.items() if name != "__metadata__"}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CheckpointError(self.path, [f"the header is not valid ({error})"]) from error
        entries = dict(sorted(entries.items(), key=lambda item: (item[1].start, item[1].stop)))
        position, problems = 8 + length, []
        for name, entry in entries.items():
            if entry.start != position:
                problems.append(f"{name}: its bytes do not follow the tensor before it")
            if entry.stop - entry.start != math.prod(entry.shape) * entry.dtype.itemsize:
                problems.append(f"{name}: {entry.stop - entry.start} bytes do not fit {entry.dtype}{list(entry.shape)}")
            position = entry.stop
        if position != size:
            problems.append(f"the tensors end at byte {position}, the file at {size}: it is cut short or has a tail")
        if problems:
            raise CheckpointError(self.path, problems)
        return head, fields, entries


def unique_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, for `object_pairs_hook`. Of a name given twice, readers disagree about which one counts.

    Raises:
        ValueError: a name is given twice.
    """
    fields = dict(pairs)
    if len(fields) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} is given twice")
    return fields


def recast_head(file: SafetensorsFile, dtypes: Mapping[str, np.dtype]) -> bytes:
    """The head of a file with the same tensors in the same order, some of them in another dtype."""
    names = {np.dtype(dtype): name for name, dtype in _DTYPES.items()}
    fields = dict(file.fields)
    position = 0
    for name, entry in file.entries.items():
        dtype = dtypes.get(name, entry.dtype)
        stop = position + math.prod(entry.shape) * dtype.itemsize
        fields[name] = {**fields[name], "dtype": names[dtype], "data_offsets": [position, stop]}
        position = stop
    text = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def _entry(field: Mapping[str, Any], base: int) -> TensorEntry:
    dtype = _DTYPES.get(field["dtype"])
    if dtype is None:
        raise ValueError(f"dtype {field['dtype']!r} is not supported")
    start, stop = field["data_offsets"]
    shape = tuple(field["shape"])
    if not all(isinstance(value, int) and value >= 0 for value in (start, stop, *shape)):
        raise ValueError("shapes and offsets must be whole numbers")
    return TensorEntry(np.dtype(dtype), shape, base + start, base + stop)
