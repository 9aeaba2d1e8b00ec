"""Finding documents: what a retriever is, and BM25 over a corpus in memory."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from whale_jax.domains.searchqa.corpus import Document
from whale_jax.domains.searchqa.normalise import fold

MAX_QUERY_TOKENS = 256
"""Longer queries are cut: what follows would cost time and say nothing more."""

_STOP_WORDS = frozenset(
    {
        *("a", "an", "and", "are", "as", "at", "be", "by", "for", "from", "in", "is", "it", "of", "on", "or"),
        *("that", "the", "this", "to", "was", "what", "which", "who", "with"),
    }
)
# Kana, CJK ideographs and hangul stand without spaces between words (case F156): each character is a term.
_UNSPACED = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W_{_UNSPACED}]+")


class RetrievalError(Exception):
    """The retriever could not answer: not the same as finding nothing. The message may be shown to the model."""


@dataclass(frozen=True)
class Hit:
    """A document found, with its score (higher is better; above 0 under BM25)."""

    document: Document
    score: float


class Retriever(Protocol):
    """Finds documents for a query."""

    def search(self, query: str, topk: int) -> list[Hit]:
        """At most `topk` hits, best first; empty when nothing matches. Raises RetrievalError."""
        ...


@runtime_checkable
class BatchRetriever(Retriever, Protocol):
    """A retriever that answers several queries together for less than one by one."""

    def search_many(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """The hits of each query, in the order of the queries. Raises RetrievalError."""
        ...


def search_many(retriever: Retriever, queries: Sequence[str], topk: int) -> list[list[Hit]]:
    """The hits of each query, together where the retriever can. Raises RetrievalError."""
    if isinstance(retriever, BatchRetriever):
        return retriever.search_many(queries, topk)
    return [retriever.search(query, topk) for query in queries]


def words(text: str) -> list[str]:
    """The index terms of a text: folded words without stop words, in order."""
    return [word for word in _WORD.findall(fold(text)) if word not in _STOP_WORDS]


class Bm25Retriever:
    """BM25 (Lucene's variant, k1 = 1.5, b = 0.75). The index is built at construction and kept; nothing is written.

    Ties are broken by position in the corpus, so the result is a function of corpus and query alone.
    """

    def __init__(self, documents: Sequence[Document]) -> None:
        if not documents:
            raise ValueError("a retriever needs at least one document")
        import bm25s  # its import starts JAX's devices, which a module's import must not do

        logging.getLogger("bm25s").setLevel(logging.WARNING)  # the package sets it to DEBUG
        self._documents = tuple(documents)
        self._index: Any = bm25s.BM25(k1=1.5, b=0.75, method="lucene", backend="numpy")
        terms = [words(document.contents) for document in documents]
        if not any(terms):
            raise ValueError("a retriever needs at least one document with words in it")
        self._index.index(terms, show_progress=False)
        self._term_ids: dict[str, int] = self._index.vocab_dict

    def search(self, query: str, topk: int) -> list[Hit]:
        """See `Retriever.search`. Terms that the index does not know are ignored, documents that hold none left out."""
        scores = query_scores(self._index, self._term_ids, query)
        if scores is None:
            return []
        return [Hit(self._documents[index], float(scores[index])) for index in best(scores, topk)]


def query_scores(index: Any, term_ids: Mapping[str, int], query: str) -> np.ndarray | None:
    """The score of every document for `query`, float32 [documents]; None when no term of it is known to the index.

    Args:
        index: a `bm25s.BM25`.
        term_ids: its vocabulary.
    """
    ids = [term_ids[word] for word in words(query)[:MAX_QUERY_TOKENS] if word in term_ids]
    return index.get_scores_from_ids(ids) if ids else None


def best(scores: np.ndarray, topk: int) -> np.ndarray:
    """Positions of the at most `topk` highest scores above 0, highest first; among equals the first comes first."""
    count = min(topk, len(scores))
    if count < 1:
        return np.empty(0, dtype=np.int64)
    threshold = np.partition(scores, -count)[-count]
    candidates = np.flatnonzero((scores > 0) & (scores >= threshold))
    return candidates[np.argsort(-scores[candidates], kind="stable")][:count]
