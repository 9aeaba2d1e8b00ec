"""What can be searched in a run: a corpus in memory, an index on disk, or a service; and how each is searched."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from whale_jax.domains.row_files import find_rows
from whale_jax.domains.searchqa.corpus import Document, load_corpus
from whale_jax.domains.searchqa.http_client import HttpRetriever
from whale_jax.domains.searchqa.index import MappedBm25Retriever
from whale_jax.domains.searchqa.retrieval import Bm25Retriever, RetrievalError, Retriever
from whale_jax.domains.searchqa.tool import SearchFailures
from whale_jax.domains.splits import Digest
from whale_jax.domains.task import BadRow, TaskError, canonical_json

INDEX = "index"
MAX_BYTES_IN_MEMORY = 256 << 20
SERVICE_THREADS = 64


@dataclass(frozen=True)
class Corpus:
    """A retriever with what belongs to it.

    Attributes:
        retriever: finds documents.
        add_to: adds what is known of the content to a hash.
        executor: threads for searches that take longer than an event loop should wait; None for quick ones.
        failures: what becomes of a search that fails.
        bad_rows: rows that were left out.
    """

    retriever: Retriever
    add_to: Callable[[Digest], None]
    executor: Executor | None = None
    failures: SearchFailures = "told"
    bad_rows: Sequence[BadRow] = ()


def memory_corpus(documents: Sequence[Document], bad_rows: Sequence[BadRow] = ()) -> Corpus:
    """Documents in memory, searched where the question comes from."""

    def add_to(digest: Digest) -> None:
        for document in documents:
            digest.update(canonical_json([document.id, document.contents]).encode() + b"\n")

    return Corpus(Bm25Retriever(documents), add_to, bad_rows=bad_rows)


def local_corpus(folder: Path, *, max_bad_rows: float) -> Corpus:
    """The corpus of a task folder: the index in `index/`, or else the rows of corpus.jsonl (.zst, .gz, .parquet).

    Raises:
        TaskError: there is none, it cannot be used, or it is too large to be indexed anew by every run.
    """
    if (folder / INDEX).is_dir():
        retriever = MappedBm25Retriever(folder / INDEX)
        name = retriever.meta.corpus_sha256.encode()
        threads = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="search")
        return Corpus(retriever, lambda digest: digest.update(name), executor=threads)
    path = find_rows(folder, "corpus") or folder / "corpus.jsonl"
    if path.is_file() and path.stat().st_size > MAX_BYTES_IN_MEMORY:
        command = f"python -m whale_jax.domains.searchqa.index_build --corpus={path} --out={folder / INDEX}"
        raise TaskError(f"{path}: too large to be indexed at every start; build the index once: {command}")
    documents, bad_rows = load_corpus(path, max_bad_rows=max_bad_rows)
    try:
        return memory_corpus(documents, bad_rows)
    except ValueError as error:  # a corpus without one word to search for
        raise TaskError(f"{path}: {error}") from error


def remote_corpus(url: str) -> Corpus:
    """The corpus behind a retrieval service. A service that tells its corpus's digest has it in the data hash.

    Raises:
        TaskError: the URL is none, or the service does not answer.
    """
    try:
        retriever = HttpRetriever(url)
        retriever.search("search", 1)
    except ValueError as error:
        raise TaskError(f"--retriever_url: {error}") from error
    except RetrievalError as error:
        raise TaskError(f"--retriever_url={url}: {error}; start the service first, or correct the address") from error
    name = str(retriever.about().get("corpus_sha256", "a corpus that does not tell its digest")).encode()
    threads = ThreadPoolExecutor(SERVICE_THREADS, thread_name_prefix="search")
    return Corpus(retriever, lambda digest: digest.update(name), executor=threads, failures="unscored")
