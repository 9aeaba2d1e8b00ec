"""A Google Cloud Storage server on loopback: the part of the JSON API that the package uses, with its preconditions.

Servers that can be installed do not do: `gcp-storage-emulator` has no preconditions at all, and the packaged
`fake-gcs-server` honours them in multipart uploads alone. `tests/whale_jax/storage/test_bucket.py` compares the two.

As a program it serves until it is ended: `python -m tests.object_store BUCKET`; the first line is its address.
"""

import base64
import json
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import google_crc32c

PAGE = 40
"""Objects in one page of a list, so that tests have several."""
Fault = Callable[[str, str], int | str | None]
"""(method, path with query) → an HTTP status to answer with, `drop` (no answer, nothing done), `lose` (done, but the
answer is lost), or None."""


@dataclass
class Stored:
    data: bytes
    generation: int
    metadata: dict[str, str]

    @property
    def crc32c(self) -> str:
        return base64.b64encode(google_crc32c.Checksum(self.data).digest()).decode()


@dataclass
class Session:
    """A resumable upload; `answer` once it is complete."""

    told: dict[str, Any]
    query: dict[str, list[str]]
    data: bytearray = field(default_factory=bytearray)
    answer: tuple[int, dict[str, str], bytes] | None = None


@dataclass
class Store:
    """Buckets, and the faults to come."""

    buckets: dict[str, dict[str, Stored]]
    fault: Fault = lambda method, path: None
    lock: threading.Lock = field(default_factory=threading.Lock)
    sessions: dict[str, "Session"] = field(default_factory=dict)
    generation: int = 1_700_000_000_000_000
    requests: list[tuple[str, str]] = field(default_factory=list)
    url: str = ""

    def objects(self, bucket: str = "lab") -> dict[str, bytes]:
        with self.lock:
            return {name: stored.data for name, stored in self.buckets[bucket].items()}


class Refused(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "Server"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _serve(self) -> None:
        store = self.server.store
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        store.requests.append((self.command, self.path))
        fault = store.fault(self.command, self.path)
        if fault == "drop":
            self.close_connection = True
            self.connection.close()
            return
        try:
            if isinstance(fault, int):
                raise Refused(fault, f"injected {fault}")
            status, headers, data = self._answer(body)
        except Refused as error:
            message = {"error": {"code": error.status, "message": str(error), "errors": [{"message": str(error)}]}}
            status, headers, data = error.status, {"Content-Type": "application/json"}, json.dumps(message).encode()
        if fault == "lose":
            self.close_connection = True
            self.connection.close()
            return
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = do_DELETE = _serve

    def _answer(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        place = urlsplit(self.path)
        query = parse_qs(place.query)
        found = re.fullmatch(r"(/upload|/download)?/storage/v1/b/([^/]+)(/o)?(?:/(.+))?", place.path)
        if found is None:
            raise Refused(404, f"no such method: {place.path}")
        kind, bucket, _, name = (unquote(part or "") for part in found.groups())
        with self.server.store.lock:
            objects = self.server.store.buckets.get(bucket)
            if objects is None:
                raise Refused(404, "The specified bucket does not exist.")
            if kind == "/upload":
                return self._upload(bucket, objects, query, body)
            if not name:
                return self._list(bucket, objects, query)
            stored = objects.get(name)
            if stored is None:
                raise Refused(404, f"No such object: {bucket}/{name}")
            self._check(query, stored)
            if self.command == "DELETE":
                del objects[name]
                return 204, {}, b""
            if query.get("alt") == ["media"] or kind == "/download":
                return self._media(stored)
            return self._json(describe(bucket, name, stored))

    def _json(self, value: Any) -> tuple[int, dict[str, str], bytes]:
        return 200, {"Content-Type": "application/json"}, json.dumps(value).encode()

    def _media(self, stored: Stored) -> tuple[int, dict[str, str], bytes]:
        headers = {
            "Content-Type": "application/octet-stream",
            "X-Goog-Generation": str(stored.generation),
            "X-Goog-Hash": f"crc32c={stored.crc32c}",
        }
        if asked := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or ""):
            start, end = int(asked[1]), int(asked[2] or len(stored.data) - 1)
            headers["Content-Range"] = f"bytes {start}-{end}/{len(stored.data)}"
            return 206, headers, stored.data[start : end + 1]
        return 200, headers, stored.data

    def _list(
        self, bucket: str, objects: dict[str, Stored], query: dict[str, list[str]]
    ) -> tuple[int, dict[str, str], bytes]:
        prefix, after = query.get("prefix", [""])[0], query.get("pageToken", [""])[0]
        names = [name for name in sorted(objects) if name.startswith(prefix) and name > after]
        answer: dict[str, Any] = {"items": [describe(bucket, name, objects[name]) for name in names[:PAGE]]}
        if names[PAGE:]:
            answer["nextPageToken"] = names[PAGE - 1]
        return self._json(answer)

    def _upload(
        self, bucket: str, objects: dict[str, Stored], query: dict[str, list[str]], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        store, kind = self.server.store, query["uploadType"][0]
        if kind == "multipart":
            boundary = re.search(rb'boundary="?([^";]+)', self.headers["Content-Type"].encode())
            assert boundary is not None
            _, head, media, _ = body.split(b"--" + boundary[1])
            told = json.loads(head.partition(b"\r\n\r\n")[2])
            return self._put(bucket, objects, told, query, media.partition(b"\r\n\r\n")[2].removesuffix(b"\r\n"))
        assert kind == "resumable"
        if self.command == "POST":
            session = f"session-{len(store.sessions)}"
            store.sessions[session] = Session(json.loads(body or b"{}"), query)
            location = f"{store.url}/upload/storage/v1/b/{bucket}/o?uploadType=resumable&upload_id={session}"
            return 200, {"Location": location}, b""
        upload = store.sessions[query["upload_id"][0]]
        place = re.fullmatch(r"bytes (?:\*|(\d+)-(\d+))/(\d+|\*)", self.headers["Content-Range"])
        assert place is not None
        if upload.answer is not None:
            return upload.answer
        if place[1] is not None:
            assert int(place[1]) == len(upload.data)
            upload.data += body
        if place[3] == "*" or len(upload.data) < int(place[3]):
            return 308, {"Range": f"bytes=0-{len(upload.data) - 1}"} if upload.data else {}, b""
        upload.answer = self._put(bucket, objects, upload.told, upload.query, bytes(upload.data))
        return upload.answer

    def _put(
        self, bucket: str, objects: dict[str, Stored], told: dict[str, Any], query: dict[str, list[str]], data: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        name = told.get("name") or query["name"][0]
        self._check(query, objects.get(name))
        self.server.store.generation += 1
        stored = Stored(data, self.server.store.generation, told.get("metadata") or {})
        if told.get("crc32c", stored.crc32c) != stored.crc32c:
            raise Refused(400, "Provided CRC32C does not match")
        objects[name] = stored
        return self._json(describe(bucket, name, stored))

    def _check(self, query: dict[str, list[str]], stored: Stored | None) -> None:
        wanted = query.get("ifGenerationMatch")
        if wanted is not None and int(wanted[0]) != (0 if stored is None else stored.generation):
            raise Refused(412, "At least one of the pre-conditions you specified did not hold.")


def describe(bucket: str, name: str, stored: Stored) -> dict[str, Any]:
    return {
        "kind": "storage#object",
        "bucket": bucket,
        "name": name,
        "size": str(len(stored.data)),
        "generation": str(stored.generation),
        "metageneration": "1",
        "crc32c": stored.crc32c,
        "metadata": stored.metadata,
        "updated": "2026-01-01T00:00:00.000Z",
    }


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, store: Store, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.store = store
        store.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is its own matter."""


@contextmanager
def serving(*buckets: str) -> Iterator[Store]:
    """A server with empty buckets, in threads of this process."""
    store = Store({name: {} for name in buckets})
    with Server(store) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield store
        finally:
            server.shutdown()
            thread.join()


if __name__ == "__main__":
    with Server(Store({name: {} for name in sys.argv[1:]})) as forever:
        print(forever.store.url, flush=True)
        forever.serve_forever()
