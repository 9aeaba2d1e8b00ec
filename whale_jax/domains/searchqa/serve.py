"""Serves a corpus to any number of runs: `python -m whale_jax.domains.searchqa.serve --index=wiki-18-index`.

With `--corpus` and an `--index` that does not exist yet, the index is built first.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from whale_jax.domains.searchqa.batching import BatchSettings
from whale_jax.domains.searchqa.corpus import stream_corpus
from whale_jax.domains.searchqa.http_server import RetrievalServer, ServerSettings
from whale_jax.domains.searchqa.index import MappedBm25Retriever
from whale_jax.domains.searchqa.index_build import build_index
from whale_jax.domains.task import TaskError


def main(argv: Sequence[str], *, stop: threading.Event | None = None) -> int:
    """Serves until SIGINT or SIGTERM; returns the exit status.

    Args:
        stop: ends the service when set; without it, the signals do.
    """
    options = _parser().parse_args(argv[1:])
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # bm25s starts JAX's devices; a TPU belongs to the run beside this
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    if stop is None:
        stop = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_, stop=stop: stop.set())
    try:
        settings = ServerSettings(
            batching=BatchSettings(options.window_ms / 1000, options.max_batch, workers=options.workers),
            max_connections=options.max_connections,
        )
        if options.corpus is not None and not options.index.exists():
            print(f"building {options.index} from {options.corpus}", flush=True)
            build_index(stream_corpus(options.corpus), options.index, max_bad_rows=options.max_bad_rows)
        retriever = MappedBm25Retriever(options.index)
        about = {"documents": retriever.meta.documents, "corpus_sha256": retriever.meta.corpus_sha256}
        server = RetrievalServer(retriever, host=options.host, port=options.port, settings=settings, about=about)
    except (TaskError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {options.host}:{options.port}: cannot listen: {error.strerror}", file=sys.stderr)
        return 2
    with server:
        print(f"{len(retriever)} documents at {server.url}", flush=True)
        stop.wait()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m whale_jax.domains.searchqa.serve", description="Serve a BM25 index over HTTP (POST /retrieve)."
    )
    parser.add_argument("--index", type=Path, required=True, help="folder that index_build wrote")
    parser.add_argument("--corpus", type=Path, help="builds the index from these rows when it does not exist")
    parser.add_argument("--max_bad_rows", type=float, default=0.0, help="share of the corpus's rows that may be bad")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; there is no authentication")
    parser.add_argument("--port", type=int, default=8000, help="port to listen on; 0 takes a free one")
    parser.add_argument("--window_ms", type=float, default=2.0, help="how long a query waits for others, milliseconds")
    parser.add_argument("--max_batch", type=int, default=64, help="queries that are answered together")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="batches answered at the same time")
    parser.add_argument("--max_connections", type=int, default=256, help="connections at a time")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv))
