"""A retriever that asks a service over HTTP, by the field's convention (PAPER section 5).

    POST /retrieve {"queries": […], "topk": 3, "return_scores": true}
    → {"result": [[{"document": {"id", "contents"}, "score"}, …], …]}

`http_server` is such a service; the dense ones of other projects speak the same way.
"""

from __future__ import annotations

import http.client
import json
import logging
import math
import random
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from whale_jax.domains.searchqa.backoff import Backoff, retry_after
from whale_jax.domains.searchqa.corpus import Document, parse_document
from whale_jax.domains.searchqa.retrieval import Hit, RetrievalError
from whale_jax.domains.task import RowError

_log = logging.getLogger(__name__)
_LATER = frozenset({408, 425, 429, 500, 502, 503, 504})
_PADDING_SCORE = -1e30  # FAISS pads a short list with entries of the lowest float there is (case F154)
_BACKOFF = Backoff(attempts=4, first_seconds=0.25, longest_seconds=10.0)


@dataclass(frozen=True)
class ClientSettings:
    """How the service is asked.

    Attributes:
        timeout_seconds: for one request, from connecting to the last byte.
        backoff: tries and waits.
        max_response_bytes: longer answers are refused.
    """

    timeout_seconds: float = 20.0
    backoff: Backoff = field(default=_BACKOFF)
    max_response_bytes: int = 32 << 20

    def __post_init__(self) -> None:
        if not 0 < self.timeout_seconds < math.inf:
            raise ValueError(f"ClientSettings.timeout_seconds must be > 0, got {self.timeout_seconds}")


class _Failure(Exception):
    """One request failed. `reason` may be shown to a model: it names no host and no time."""

    def __init__(self, reason: str, *, again: bool, wait: float | None = None) -> None:
        super().__init__(reason)
        self.again = again
        self.wait = wait


class HttpRetriever:
    """Implements `BatchRetriever`. Safe to use from several threads: every request has its own connection."""

    def __init__(
        self, url: str, settings: ClientSettings = ClientSettings(), *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """Args:
            url: of the service, `http://host:port` or with the path `/retrieve`.
            sleep: waits between tries.

        Raises:
            ValueError: it is no such URL.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"{url!r} is no URL of a retrieval service; expected http://host:port/retrieve")
        self.url = url
        self._secure = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port
        self._path = parts.path.rstrip("/") or "/retrieve"
        self._settings = settings
        self._sleep = sleep
        self._chance = random.Random()

    def search(self, query: str, topk: int) -> list[Hit]:
        """See `Retriever.search`."""
        return self.search_many([query], topk)[0]

    def search_many(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """See `BatchRetriever.search_many`. One request for all queries, tried again as `settings.backoff` says."""
        body = json.dumps({"queries": list(queries), "topk": topk, "return_scores": True}).encode()
        backoff = self._settings.backoff
        failures = 0
        while True:
            try:
                return _hits(self._request("POST", self._path, body), len(queries), topk)
            except _Failure as failure:
                failures += 1
                _log.warning("%s: try %d of %d: %s", self.url, failures, backoff.attempts, failure)
                if not failure.again or failures >= backoff.attempts:
                    raise RetrievalError(str(failure)) from failure
                self._sleep(backoff.seconds(failures, self._chance, asked=failure.wait))

    def about(self) -> dict[str, Any]:
        """What the service tells of itself at /health, beside /retrieve; empty where there is no such thing."""
        path = f"{self._path.rpartition('/')[0]}/health"
        try:
            data = json.loads(self._request("GET", path, None))
        except (_Failure, ValueError):
            return {}
        return data if isinstance(data, dict) else {}

    def _request(self, method: str, path: str, body: bytes | None) -> bytes:
        """The body of the answer to one request. Raises _Failure."""
        deadline = time.monotonic() + self._settings.timeout_seconds
        connect = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = connect(self._host, self._port, timeout=self._settings.timeout_seconds)
        headers = {"Content-Type": "application/json", "Connection": "close"}
        try:
            connection.request(method, path, body, headers)
            plug = connection.sock  # the connection forgets it as soon as the answer's head is there
            response = connection.getresponse()
            content = self._read(response, plug, deadline)
        except TimeoutError as error:
            raise _Failure("the search service did not answer in time", again=True) from error
        except (OSError, http.client.HTTPException) as error:
            _log.warning("%s: %s: %s", self.url, type(error).__name__, error)
            raise _Failure("the search service cannot be reached", again=True) from error
        finally:
            connection.close()
        if response.status == 200:
            return content
        _log.warning("%s: status %d: %s", self.url, response.status, content[:200].decode("utf-8", "replace"))
        wait = retry_after(response.getheader("Retry-After"))
        raise _Failure(
            f"the search service answered with status {response.status}", again=response.status in _LATER, wait=wait
        )

    def _read(self, response: http.client.HTTPResponse, plug: socket.socket, deadline: float) -> bytes:
        """The body, within the time and the size that are left, however slowly it comes."""
        pieces: list[bytes] = []
        size = 0
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            plug.settimeout(left)
            piece = response.read1(1 << 16)
            if not piece:
                break
            size += len(piece)
            if size > self._settings.max_response_bytes:
                raise _Failure("the answer of the search service is too long", again=False)
            pieces.append(piece)
        if response.length:  # bytes that were promised and did not come
            raise http.client.IncompleteRead(b"", response.length)
        return b"".join(pieces)


def _hits(content: bytes, queries: int, topk: int) -> list[list[Hit]]:
    """The answer's hits. Raises _Failure when it is not an answer to that many queries."""
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise _Failure("the answer of the search service is not JSON", again=False) from error
    result = data.get("result") if isinstance(data, dict) else None
    if not isinstance(result, list) or len(result) != queries or not all(isinstance(hits, list) for hits in result):
        raise _Failure("the answer of the search service has not one list of documents per query", again=False)
    try:
        return [[hit for item in hits if (hit := _hit(item)) is not None][:topk] for hits in result]
    except RowError as error:
        raise _Failure(f"the search service sent a document that cannot be read: {error}", again=False) from error


def _hit(item: Any) -> Hit | None:
    """One entry: a document with its score, or a document alone (score 0). None for padding (case F154)."""
    if item is None:
        return None
    if not isinstance(item, Mapping):
        raise RowError("an entry is no object")
    if "document" not in item:
        return Hit(_document(item), 0.0)
    score = item.get("score", 0.0)
    if isinstance(score, bool) or not isinstance(score, int | float):
        raise RowError("`score` must be a number")
    if item["document"] is None or not score > _PADDING_SCORE:
        return None
    return Hit(_document(item["document"]), float(score))


def _document(value: Any) -> Document:
    if not isinstance(value, Mapping):
        raise RowError("`document` is no object")
    return parse_document(value)
