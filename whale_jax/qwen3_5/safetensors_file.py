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
                size = path.stat().st_size
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
        except OSError as error:
            raise CheckpointError(path, [f"cannot be read ({error.strerror})"]) from error
        self.head, self.entries = self._parse()

    def array(self, name: str) -> np.ndarray:
        """A read-only view of one tensor in the mapped file."""
        entry = self.entries[name]
        return np.frombuffer(self.raw(name), entry.dtype).reshape(entry.shape)

    def raw(self, name: str) -> memoryview:
        """The bytes of one tensor."""
        entry = self.entries[name]
        return memoryview(self._map)[entry.start : entry.stop]

    def _parse(self) -> tuple[bytes, dict[str, TensorEntry]]:
        size = len(self._map)
        if size < 8:
            raise CheckpointError(self.path, [f"cut short: {size} bytes are no safetensors file"])
        (length,) = struct.unpack("<Q", self._map[:8])
        if length > min(size - 8, _MAX_HEADER):
            raise CheckpointError(self.path, [f"cut short: the header says {length} bytes, the file has {size}"])
        head = self._map[: 8 + length]
        try:
            fields = json.loads(head[8:])
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
        return head, entries


def _entry(field: Mapping[str, Any], base: int) -> TensorEntry:
    dtype = _DTYPES.get(field["dtype"])
    if dtype is None:
        raise ValueError(f"dtype {field['dtype']!r} is not supported")
    start, stop = field["data_offsets"]
    shape = tuple(field["shape"])
    if not all(isinstance(value, int) and value >= 0 for value in (start, stop, *shape)):
        raise ValueError("shapes and offsets must be whole numbers")
    return TensorEntry(np.dtype(dtype), shape, base + start, base + stop)
