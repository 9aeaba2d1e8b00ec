"""Documents on disk: one JSON line `["id", "contents"]` each, and where each line begins. Read through a memory map."""

from __future__ import annotations

import hashlib
import json
import mmap
from array import array
from pathlib import Path
from types import TracebackType

import numpy as np

from whale_jax.domains.searchqa.corpus import Document
from whale_jax.domains.task import TaskError, canonical_json

DOCUMENTS, OFFSETS = "documents.jsonl", "document_offsets.npy"


class DocumentWriter:
    """Writes a store document by document into an existing folder. A context manager; `close` completes the store."""

    def __init__(self, folder: Path) -> None:
        self._stream = (folder / DOCUMENTS).open("wb")
        self._offsets_path = folder / OFFSETS
        self._offsets = array("q", [0])
        self._digest = hashlib.sha256()
        self._ids = array("Q")

    def __enter__(self) -> DocumentWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()

    def add(self, document: Document) -> None:
        """Appends one document."""
        line = canonical_json([document.id, document.contents]).encode("utf-8", "surrogatepass") + b"\n"
        self._stream.write(line)
        self._digest.update(line)
        self._offsets.append(self._offsets[-1] + len(line))
        name = document.id.encode("utf-8", "surrogatepass")
        self._ids.append(int.from_bytes(hashlib.blake2b(name, digest_size=8).digest()))

    def close(self) -> str:
        """Completes the store; returns the digest of its content, a function of the documents and their order.

        Raises:
            TaskError: two documents have the same id.
        """
        self._stream.close()
        ids = np.frombuffer(self._ids, dtype=np.uint64)
        unique, first = np.unique(ids, return_index=True)
        if len(unique) < len(ids):
            again = np.setdiff1d(np.arange(len(ids)), first)
            where = f"document {again[0] + 1} of the corpus"
            raise TaskError(f"{len(again)} document(s) have the id of an earlier one, for instance {where}")
        np.save(self._offsets_path, np.frombuffer(self._offsets, dtype=np.int64))
        return self._digest.hexdigest()


class DocumentStore:
    """The documents of a folder that `DocumentWriter` wrote. Safe to read from several threads."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError or ValueError when a file is missing or damaged."""
        self._offsets = np.load(folder / OFFSETS, mmap_mode="r")
        with (folder / DOCUMENTS).open("rb") as stream:
            self._lines = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        if len(self._lines) != self._offsets[-1]:
            raise ValueError(f"{folder / DOCUMENTS}: {len(self._lines)} bytes, expected {self._offsets[-1]}")

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, number: int) -> Document:
        start, end = int(self._offsets[number]), int(self._offsets[number + 1])
        return Document(*json.loads(self._lines[start:end].decode("utf-8", "surrogatepass")))
