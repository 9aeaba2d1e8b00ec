"""A retrieval service over HTTP, by the field's convention; `http_client` is its other end, `serve` its command.

    POST /retrieve {"queries": […], "topk": 3, "return_scores": true}   → {"result": [[{"document", "score"}, …], …]}
    GET /health                                                         → {"status": "ok", "documents", "corpus_sha256"}

Meant for a private network: there is no authentication and no encryption. Errors are JSON `{"error": "…"}` with a
status that says whether to come back: 400, 404, 411 and 413 do not change, 503 and 504 may.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from whale_jax.domains.searchqa.batching import Batcher, BatchSettings, Overloaded
from whale_jax.domains.searchqa.retrieval import Hit, Retriever

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServerSettings:
    """Bounds of the service.

    Attributes:
        batching: how queries are gathered.
        max_connections: connections at a time; more are turned away with status 503.
        max_body_bytes: of a request.
        max_queries: of a request.
        max_topk: documents per query; a request for more gets this many.
        read_seconds: how long a connection may be silent.
        answer_seconds: how long a request may wait for its results before it gets status 504.
    """

    batching: BatchSettings = field(default_factory=BatchSettings)
    max_connections: int = 256
    max_body_bytes: int = 4 << 20
    max_queries: int = 512
    max_topk: int = 100
    read_seconds: float = 30.0
    answer_seconds: float = 30.0

    def __post_init__(self) -> None:
        for name in ("max_connections", "max_body_bytes", "max_queries", "max_topk", "read_seconds", "answer_seconds"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"ServerSettings.{name} must be > 0, got {getattr(self, name)}")


class _Refused(Exception):
    """A request that gets an error; `status` is HTTP's."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class RetrievalServer:
    """Serves a retriever in threads of its own. A context manager: it listens inside, and everything ends with it."""

    def __init__(
        self,
        retriever: Retriever,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        settings: ServerSettings = ServerSettings(),
        about: Mapping[str, Any] | None = None,
    ) -> None:
        """Args:
            retriever: answers the queries; used from `settings.batching.workers` threads.
            host: the address to listen on.
            port: 0 takes a free one.
            about: what /health tells beside the status.

        Raises:
            OSError: the address cannot be listened on.
        """
        self._retriever = retriever
        self._settings = settings
        self._about = {"status": "ok", **(about or {})}
        self._server = _Server((host, port), self)
        loop, poll = self._server.serve_forever, {"poll_interval": 0.05}  # how long it may take to notice the end
        self._thread = threading.Thread(target=loop, kwargs=poll, name="retrieval-http", daemon=True)

    @property
    def url(self) -> str:
        """Where /retrieve is."""
        host, port = self._server.server_address[:2]
        return f"http://{host}:{port}/retrieve"

    def __enter__(self) -> RetrievalServer:
        self._batcher = Batcher(self._retriever, self._settings.batching)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._batcher.__exit__(kind, error, trace)
        self._server.server_close()

    @property
    def settings(self) -> ServerSettings:
        """The bounds."""
        return self._settings

    def health(self) -> dict[str, Any]:
        """The answer of /health."""
        return {**self._about, "waiting": self._batcher.waiting}

    def retrieve(self, body: bytes) -> dict[str, Any]:
        """The answer of /retrieve to a request's body. Raises _Refused."""
        queries, topk, return_scores = self._request(body)
        try:
            futures = self._batcher.submit(queries, topk)
        except Overloaded as error:
            raise _Refused(503, f"overloaded: {error}") from error
        results = self._results(futures)
        return {"result": [[_entry(hit, return_scores) for hit in hits] for hits in results]}

    def _request(self, body: bytes) -> tuple[list[str], int, bool]:
        try:
            data = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise _Refused(400, f"the body is not JSON: {error}") from error
        if not isinstance(data, dict):
            raise _Refused(400, "the body must be a JSON object with `queries`")
        queries, topk = data.get("queries"), data.get("topk")
        topk = 3 if topk is None else topk
        if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
            raise _Refused(400, "`queries` must be a list of texts")
        if len(queries) > self._settings.max_queries:
            raise _Refused(413, f"{len(queries)} queries; at most {self._settings.max_queries} in a request")
        if type(topk) is not int or topk < 1:
            raise _Refused(400, f"`topk` must be a whole number above 0, got {topk!r}")
        return queries, min(topk, self._settings.max_topk), data.get("return_scores") is True

    def _results(self, futures: Sequence[Future[list[Hit]]]) -> list[list[Hit]]:
        end = time.monotonic() + self._settings.answer_seconds
        try:
            return [future.result(timeout=max(end - time.monotonic(), 0)) for future in futures]
        except TimeoutError as error:
            for future in futures:
                future.cancel()
            raise _Refused(504, f"no result within {self._settings.answer_seconds:g} s") from error
        except Overloaded as error:
            raise _Refused(503, str(error)) from error
        except Exception as error:  # the retriever's fault, told to this client; the service goes on
            _log.exception("the retriever failed")
            raise _Refused(500, f"the retriever failed: {type(error).__name__}") from error


def _entry(hit: Hit, return_scores: bool) -> dict[str, Any]:
    document = {"id": hit.document.id, "contents": hit.document.contents}
    return {"document": document, "score": hit.score} if return_scores else document


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, address: tuple[str, int], service: RetrievalServer) -> None:
        self.service = service
        self._connections = threading.BoundedSemaphore(service.settings.max_connections)
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Starts a thread for the connection, or turns it away in this one."""
        if not self._connections.acquire(blocking=False):
            _log.warning("a connection more than %d: turned away", self.service.settings.max_connections)
            request.settimeout(1.0)
            with contextlib.suppress(OSError):  # it may have gone already
                request.sendall(b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n")
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serves a connection to its end."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news; anything else is."""
        _log.debug("a connection broke", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server  # pyright: ignore[reportIncompatibleVariableOverride]

    def setup(self) -> None:
        super().setup()
        self.connection.settimeout(self.server.service.settings.read_seconds)

    def do_GET(self) -> None:
        if self.path.rstrip("/") in ("/health", ""):
            self._send(200, self.server.service.health())
        else:
            self._send(404, {"error": f"there is no {self.path[:100]}; POST /retrieve or GET /health"})

    def do_POST(self) -> None:
        try:
            body = self._body()
            if self.path.rstrip("/") != "/retrieve":
                raise _Refused(404, f"there is no {self.path[:100]}; POST /retrieve or GET /health")
            self._send(200, self.server.service.retrieve(body))
        except _Refused as refused:
            self._send(refused.status, {"error": str(refused)})

    def _body(self) -> bytes:
        """The request's body. Raises _Refused, and then closes the connection, since what follows is unread."""
        length = self.headers.get("Content-Length", "")
        limit = self.server.service.settings.max_body_bytes
        if not (length.isascii() and length.isdigit()) or "Transfer-Encoding" in self.headers:
            self.close_connection = True
            raise _Refused(411, "the request needs a Content-Length")
        if len(length) > 12 or int(length) > limit:
            self.close_connection = True
            raise _Refused(413, f"the body is longer than {limit} bytes")
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            self.close_connection = True
            raise _Refused(400, "the body is shorter than its Content-Length")
        return body

    def _send(self, status: int, data: Mapping[str, Any]) -> None:
        payload = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(payload)))
        if status == 503:
            self.send_header("Retry-After", "1")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(payload)

    def log_message(self, format: str, *args: Any) -> None:
        """The package's access log, at a level that is off by default."""
        _log.debug(format, *args)
