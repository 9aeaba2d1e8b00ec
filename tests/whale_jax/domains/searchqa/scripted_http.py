"""An HTTP server that does as it is told: it answers request after request with the next item of a script."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Answer:
    """What one request gets: a status with a body (JSON unless it is bytes), or a misbehaviour.

    Attributes:
        status: HTTP's; 0 hangs up without a word.
        body: JSON value or raw bytes.
        headers: further headers.
        cut: promise more bytes than there are.
        hang: never answer, until the server ends.
        trickle: send the body byte by byte without end, until the server ends.
    """

    status: int = 200
    body: Any = b""
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False
    hang: bool = False
    trickle: bool = False


@dataclass(frozen=True)
class Request:
    """What came in."""

    path: str
    body: Any
    headers: dict[str, str]


Script = Sequence[Answer] | Callable[[Request], Answer]


class ScriptedServer:
    """A context manager around the server; `requests` are those received so far, `peak` how many at the same time.

    A script that is a function gives every answer; one that is a list gives its items in order, the last one for ever.
    """

    def __init__(self, script: Script) -> None:
        self.script = script
        self.requests: list[Request] = []
        self.peak = 0
        self._now = 0
        self._lock = threading.Lock()
        self.ended = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = False
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> ScriptedServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, request: Request) -> Answer:
        with self._lock:
            number = len(self.requests)
            self.requests.append(request)
        return self.script(request) if callable(self.script) else self.script[min(number, len(self.script) - 1)]

    def entered(self, step: int) -> None:
        with self._lock:
            self._now += step
            self.peak = max(self.peak, self._now)


def _handler(script: ScriptedServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 5

        def do_POST(self) -> None:
            script.entered(1)
            try:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self.give(script.answer(Request(self.path, body, dict(self.headers))))
            except (ConnectionError, TimeoutError):
                self.close_connection = True  # the client gave up, as some tests want it to
            finally:
                script.entered(-1)

        def do_GET(self) -> None:
            self.give(script.answer(Request(self.path, None, dict(self.headers))))

        def give(self, answer: Answer) -> None:
            if answer.hang:
                script.ended.wait()
            if answer.hang or answer.status == 0:
                self.close_connection = True
                return
            payload = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
            self.close_connection = answer.cut or answer.trickle
            self.send_response(answer.status)
            length = 10**6 if answer.trickle else len(payload) + 10 * answer.cut
            headers = {"Content-Length": str(length), "Content-Type": "application/json", **answer.headers}
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(payload)
            while answer.trickle and not script.ended.wait(0.02):
                self.wfile.write(b" ")

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler
