"""Gathers queries that arrive at about the same time, so that a retriever answers them together and each one once."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import TracebackType

from whale_jax.domains.searchqa.retrieval import Hit, Retriever, search_many


class Overloaded(Exception):
    """There are as many queries waiting as there may be."""


@dataclass(frozen=True)
class BatchSettings:
    """Attributes:
    window_seconds: how long the first query of a batch waits for others; 0 takes what is there.
    max_batch: queries that are answered together.
    max_waiting: queries that may wait; more are refused.
    workers: batches that are answered at the same time.
    """

    window_seconds: float = 0.002
    max_batch: int = 64
    max_waiting: int = 4096
    workers: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.window_seconds < math.inf:
            raise ValueError(f"BatchSettings.window_seconds must be >= 0, got {self.window_seconds}")
        for name in ("max_batch", "max_waiting", "workers"):
            if getattr(self, name) < 1:
                raise ValueError(f"BatchSettings.{name} must be >= 1, got {getattr(self, name)}")


@dataclass
class _Waiting:
    query: str
    topk: int
    future: Future[list[Hit]] = field(default_factory=Future)


class Batcher:
    """Threads in front of a retriever. A context manager; leaving it ends the threads and refuses what still waits.

    A batch is answered with its largest `topk`, and each query gets its share: the first k of more are the best k. The
    retriever has to keep to that (BM25 with a fixed order of ties does).
    """

    def __init__(self, retriever: Retriever, settings: BatchSettings = BatchSettings()) -> None:
        self._retriever = retriever
        self._settings = settings
        self._changed = threading.Condition()
        self._waiting: deque[_Waiting] = deque()
        self._open = True
        self._threads = [
            threading.Thread(target=self._work, name=f"retrieval-{number}", daemon=True)
            for number in range(settings.workers)
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Batcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._open = False
            left, self._waiting = list(self._waiting), deque()
            self._changed.notify_all()
        for item in left:
            item.future.set_exception(Overloaded("the service is closing"))
        for thread in self._threads:
            thread.join()

    @property
    def waiting(self) -> int:
        """Queries that no worker has taken yet."""
        with self._changed:
            return len(self._waiting)

    def submit(self, queries: Sequence[str], topk: int) -> list[Future[list[Hit]]]:
        """Puts queries in line; each future gets the hits, or the retriever's error.

        Raises:
            Overloaded: the line is too long for all of them, or it is closed. None was put in.
        """
        items = [_Waiting(query, topk) for query in queries]
        with self._changed:
            if not self._open:
                raise Overloaded("the service is closing")
            if len(self._waiting) + len(items) > self._settings.max_waiting:
                raise Overloaded(f"{len(self._waiting)} queries are waiting")
            self._waiting.extend(items)
            self._changed.notify_all()
        return [item.future for item in items]

    def _work(self) -> None:
        while batch := self._next_batch():
            self._answer([item for item in batch if item.future.set_running_or_notify_cancel()])

    def _next_batch(self) -> list[_Waiting]:
        """The next batch; empty when the line is closed."""
        settings = self._settings
        with self._changed:
            while self._open:
                if not self._waiting:
                    self._changed.wait()
                    continue
                end = time.monotonic() + settings.window_seconds
                while self._open and len(self._waiting) < settings.max_batch and (left := end - time.monotonic()) > 0:
                    self._changed.wait(left)
                count = min(settings.max_batch, len(self._waiting))
                if count:  # else another worker took them during the window
                    return [self._waiting.popleft() for _ in range(count)]
            return []

    def _answer(self, batch: Sequence[_Waiting]) -> None:
        if not batch:
            return
        distinct = list(dict.fromkeys(item.query for item in batch))
        try:
            found = search_many(self._retriever, distinct, max(item.topk for item in batch))
            by_query = dict(zip(distinct, found, strict=True))
        except Exception as error:  # whatever it is, it belongs to those who asked, and the worker goes on
            for item in batch:
                item.future.set_exception(error)
            return
        for item in batch:
            item.future.set_result(by_query[item.query][: item.topk])
