"""A local server that speaks the Gemini API, well or badly, and a small search for proposers to work on."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "CANARY-key-9b1f"
USAGE = {"promptTokenCount": 100, "candidatesTokenCount": 20, "thoughtsTokenCount": 7, "totalTokenCount": 127}


def call(name: str, **arguments: Any) -> dict[str, Any]:
    """A reply part that calls a tool."""
    return {"functionCall": {"name": name, "args": arguments}}


def write(source: str, parent: str = "000", hypothesis: str = "it helps") -> dict[str, Any]:
    return call("write_candidate", source=source, parent=parent, hypothesis=hypothesis, axis="prompt")


def reply(*parts: Any, finish: str = "STOP", usage: Any = USAGE) -> dict[str, Any]:
    """A reply of the API."""
    body: dict[str, Any] = {
        "candidates": [{"content": {"role": "model", "parts": list(parts)}, "finishReason": finish}]
    }
    return body | ({"usageMetadata": usage} if usage is not None else {})


@dataclass
class Raw:
    """An answer as bytes: what a server that means no good sends."""

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    promise: int = 0
    """Bytes announced beyond the body, before the connection is dropped."""


Behaviour = dict[str, Any] | Raw | Callable[[BaseHTTPRequestHandler, threading.Event], None]


def error(status: int, message: str = "no", headers: dict[str, str] | None = None, details: Any = None) -> Raw:
    body = {"error": {"code": status, "message": message, "status": "X", "details": details or []}}
    return Raw(json.dumps(body).encode(), status, headers or {})


def drop(handler: BaseHTTPRequestHandler, over: threading.Event) -> None:
    """Takes the request and closes the connection."""
    handler.close_connection = True


def hang(handler: BaseHTTPRequestHandler, over: threading.Event) -> None:
    """Takes the request and never answers."""
    over.wait()
    handler.close_connection = True


def drip(handler: BaseHTTPRequestHandler, over: threading.Event) -> None:
    """Answers a byte at a time, for ever."""
    handler.close_connection = True
    handler.send_response(200)
    handler.send_header("Content-Length", "1000000")
    handler.end_headers()
    while not over.wait(0.01):
        try:
            handler.wfile.write(b" ")
            handler.wfile.flush()
        except OSError:
            return


@dataclass
class Server:
    """What the server was asked, and the behaviours still to come; the last one is repeated."""

    behaviours: list[Behaviour]
    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def next(self, path: str, headers: dict[str, str], body: bytes) -> Behaviour:
        with self.lock:
            self.paths.append(path)
            self.headers.append(headers)
            self.requests.append(json.loads(body))
            return self.behaviours.pop(0) if len(self.behaviours) > 1 else self.behaviours[0]


@contextmanager
def serving(behaviours: Sequence[Behaviour]) -> Iterator[Server]:
    """Runs the server on a free port of the loopback."""
    state, over = Server(list(behaviours)), threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            behaviour = state.next(self.path, dict(self.headers.items()), body)
            if callable(behaviour):
                behaviour(self, over)
                return
            raw = behaviour if isinstance(behaviour, Raw) else Raw(json.dumps(behaviour).encode())
            self.send_response(raw.status)
            for name, value in raw.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(raw.body) + raw.promise))
            self.end_headers()
            self.wfile.write(raw.body)
            self.close_connection = raw.promise > 0

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield state
    finally:
        over.set()
        server.shutdown()
        thread.join()
        server.server_close()
