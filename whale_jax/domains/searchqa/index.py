"""BM25 over an index on disk that is mapped into memory: what a query does not touch is never read.

`index_build` writes one. A folder holds what `bm25s` saves, the documents, and `index.json`.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from whale_jax.domains.searchqa.document_store import DocumentStore
from whale_jax.domains.searchqa.retrieval import Hit, best, query_scores, words
from whale_jax.domains.task import TaskError

META = "index.json"
_FORMAT = 1
_PROBE = "Łódź o’clock 東京 e\u0301te\u0301 U.S.A. 1,000.5 ﬁn The naïve; が か ФИО don't_stop"


@dataclass(frozen=True)
class IndexMeta:
    """What an index was made of.

    Attributes:
        documents: documents in it.
        terms: different terms in them.
        bad_rows: rows of the corpus that were left out.
        corpus_sha256: digest of the documents in their order.
        words: `words_version` of the code that built it.
    """

    documents: int
    terms: int
    bad_rows: int
    corpus_sha256: str
    words: str

    def to_json(self) -> dict[str, Any]:
        """JSON-able form."""
        return {"format": _FORMAT, **asdict(self)}


@functools.cache
def words_version() -> str:
    """A digest of how text becomes terms. An index answers only queries that are split as its documents were."""
    return hashlib.sha256("\x1f".join(words(_PROBE)).encode()).hexdigest()[:16]


def bm25() -> Any:
    """An empty `bm25s.BM25` with this project's parameters (Lucene's variant, k1 = 1.5, b = 0.75)."""
    import bm25s  # its import starts JAX's devices, which a module's import must not do

    logging.getLogger("bm25s").setLevel(logging.WARNING)  # the package sets it to DEBUG
    return bm25s.BM25(k1=1.5, b=0.75, method="lucene", backend="numpy")


class MappedBm25Retriever:
    """The same results as `retrieval.Bm25Retriever`, from an index on disk. Safe to use from several threads."""

    def __init__(self, folder: Path) -> None:
        """Opens the index in `folder`. Raises TaskError: it is missing, damaged, or made by other rules."""
        self.meta = read_meta(folder)
        try:
            self._index = type(bm25()).load(folder, mmap=True, show_progress=False, verbosity=0)
            self._documents = DocumentStore(folder)
        except (OSError, ValueError, KeyError) as error:
            raise TaskError(f"{folder}: a damaged index ({error}); build it again") from error
        scores = self._index.scores
        sizes = (len(self._documents), scores["num_docs"], len(scores["indptr"]) - 1, len(scores["data"]))
        if sizes != (self.meta.documents, self.meta.documents, self.meta.terms, scores["indptr"][-1]):
            raise TaskError(f"{folder}: a damaged index (its files do not belong together); build it again")

    def __len__(self) -> int:
        return len(self._documents)

    def search(self, query: str, topk: int) -> list[Hit]:
        """See `Retriever.search`."""
        scores = query_scores(self._index, self._index.vocab_dict, query)
        if scores is None:
            return []
        return [Hit(self._documents[int(number)], float(scores[number])) for number in best(scores, topk)]


def read_meta(folder: Path) -> IndexMeta:
    """The record of the index in `folder`. Raises TaskError: there is none that this version can use."""
    try:
        data = json.loads((folder / META).read_text(encoding="utf-8"))
        version = data.pop("format")
        meta = IndexMeta(**data) if version == _FORMAT else None
    except OSError as error:
        raise TaskError(f"{folder}: no index here: {META}: {error.strerror}; build one with index_build") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TaskError(f"{folder / META}: damaged ({error}); build the index again") from error
    if meta is None:
        raise TaskError(f"{folder}: an index of format {version}, not {_FORMAT}; build it again")
    if meta.words != words_version():
        raise TaskError(f"{folder}: this index splits text into words by other rules than this version; build it again")
    return meta
