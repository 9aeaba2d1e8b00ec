"""Builds a BM25 index on disk, once, in memory that does not grow with the corpus but with its vocabulary.

    python -m whale_jax.domains.searchqa.index_build --corpus=wiki-18.jsonl.zst --out=wiki-18-index

`bm25s` can index what fits into memory several times over as Python lists. Here its score matrix is made out of core
instead: a first pass counts terms chunk by chunk, a second one puts each chunk's scores at their places in mapped
arrays. The result is given to `bm25s` to save, and its scores are those of its own `index` to the bit.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from whale_jax.domains.searchqa.corpus import Document, stream_corpus
from whale_jax.domains.searchqa.document_store import DocumentWriter
from whale_jax.domains.searchqa.index import META, IndexMeta, bm25, words_version
from whale_jax.domains.searchqa.retrieval import words
from whale_jax.domains.task import BadRow, TaskError, check_bad_rows

_CHUNK_TOKENS = 4_000_000  # about 150 MB while a chunk is sorted


def build_index(
    documents: Iterable[Document | BadRow], out: Path, *, max_bad_rows: float = 0.0, chunk_tokens: int = _CHUNK_TOKENS
) -> IndexMeta:
    """Writes the index of `documents` into the new folder `out`, which appears when it is complete.

    Args:
        documents: the corpus in its order; ties in a search go to the earlier document.
        out: must not exist yet.
        max_bad_rows: the share of rows that may be unusable.
        chunk_tokens: tokens that are sorted at a time.

    Raises:
        TaskError: `out` exists, no document has a word, ids repeat, or too many rows are bad.
    """
    if out.exists():
        raise TaskError(f"{out}: already there; name another folder, or remove it to build it again")
    out.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        folder = work / "index"
        folder.mkdir()
        terms = _Terms(work, chunk_tokens)
        bad_rows: list[BadRow] = []
        with DocumentWriter(folder) as writer:
            for document in documents:
                if isinstance(document, BadRow):
                    bad_rows.append(document)
                else:
                    writer.add(document)
                    terms.add(words(document.contents))
            check_bad_rows(bad_rows, len(terms.lengths) + len(bad_rows), max_bad_rows)
            terms.flush()
            if not terms.ids:
                raise TaskError(f"{out}: the corpus has no document with words in it")
            corpus_sha256 = writer.close()
        index = bm25()
        index.scores = terms.score_matrix(index.k1, index.b)
        index.vocab_dict = terms.ids
        index.nonoccurrence_array = None  # of other variants
        index.save(folder, show_progress=False)
        meta = IndexMeta(len(terms.lengths), len(terms.ids), len(bad_rows), corpus_sha256, words_version())
        (folder / META).write_text(json.dumps(meta.to_json(), indent=2) + "\n", encoding="utf-8")
        folder.rename(out)
    finally:
        shutil.rmtree(work)
    return meta


class _Terms:
    """Counts of terms in documents, in sorted chunks on disk."""

    def __init__(self, work: Path, chunk_tokens: int) -> None:
        self.ids: dict[str, int] = {}
        self.lengths = array("i")
        self._work = work
        self._chunk_tokens = chunk_tokens
        self._chunks: list[Path] = []
        self._tokens = array("i")
        self._first = 0  # the first document of the chunk at hand

    def add(self, terms: Sequence[str]) -> None:
        """Takes the next document."""
        self._tokens.extend([self.ids.setdefault(term, len(self.ids)) for term in terms])
        self.lengths.append(len(terms))
        if len(self._tokens) >= self._chunk_tokens:
            self.flush()

    def flush(self) -> None:
        """Writes the chunk at hand: int32 [3, entries] of term, document and count, sorted by term, then document."""
        if self._tokens:
            documents = len(self.lengths) - self._first
            lengths = np.array(self.lengths[self._first :], dtype=np.int64)
            keys = np.frombuffer(self._tokens, dtype=np.int32) * np.int64(documents)
            keys += np.repeat(np.arange(documents), lengths)
            keys, counts = np.unique(keys, return_counts=True)
            path = self._work / f"chunk_{len(self._chunks):06d}.npy"
            np.save(path, np.stack([keys // documents, keys % documents + self._first, counts]).astype(np.int32))
            self._chunks.append(path)
        self._tokens = array("i")
        self._first = len(self.lengths)

    def score_matrix(self, k1: float, b: float) -> dict[str, Any]:
        """The scores by term in the form of `bm25s.BM25.scores`: compressed columns, mapped to files in `work`.

        The score of a term in a document is Lucene's: idf · tf / (tf + k1 (1 − b + b · length / mean length)).
        """
        frequencies = np.zeros(len(self.ids), dtype=np.int64)
        for term, _, _ in self._read_chunks():
            frequencies += np.bincount(term, minlength=len(frequencies))
        documents = len(self.lengths)
        counts, of_term = np.unique(frequencies, return_inverse=True)
        idf = np.array([math.log(1 + (documents - df + 0.5) / (df + 0.5)) for df in counts], np.float32)[of_term]
        lengths = np.frombuffer(self.lengths, dtype=np.int32)
        norms = k1 * ((1 - b) + b * lengths / lengths.mean())
        starts = np.concatenate([[0], np.cumsum(frequencies)])
        data = self._array("data", np.float32, starts[-1])
        indices = self._array("indices", np.int32, starts[-1])
        free = starts[:-1].copy()
        for term, document, tf in self._read_chunks():
            runs = np.flatnonzero(np.diff(term, prepend=-1))
            run_lengths = np.diff(runs, append=len(term))
            places = np.repeat(free[term[runs]] - runs, run_lengths) + np.arange(len(term))
            data[places] = idf[term] * (tf / (norms[document] + tf))
            indices[places] = document
            free[term[runs]] += run_lengths
        return {"data": data, "indices": indices, "indptr": starts, "num_docs": documents}

    def _read_chunks(self) -> Iterator[np.ndarray]:
        return (np.load(path) for path in self._chunks)

    def _array(self, name: str, dtype: Any, length: int) -> np.ndarray:
        return np.lib.format.open_memmap(self._work / f"{name}.npy", mode="w+", dtype=dtype, shape=(int(length),))


def main(argv: Sequence[str]) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m whale_jax.domains.searchqa.index_build", description="Build a BM25 index of a corpus on disk."
    )
    parser.add_argument(
        "--corpus", type=Path, required=True, help="rows with id and contents: .jsonl, .zst, .gz, .parquet"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the index; must not exist yet")
    parser.add_argument("--max_bad_rows", type=float, default=0.0, help="share of unreadable rows that is put up with")
    options = parser.parse_args(argv[1:])
    try:
        meta = build_index(stream_corpus(options.corpus), options.out, max_bad_rows=options.max_bad_rows)
    except TaskError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{options.out}: {meta.documents} documents, {meta.terms} terms, {meta.bad_rows} bad rows left out")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
