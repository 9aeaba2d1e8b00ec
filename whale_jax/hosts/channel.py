"""A connection between two processes of a run: messages both ways, and a bound on the other's silence.

A message is a JSON object and any number of byte strings. On the wire: the length of the object (4 bytes, big-endian),
the object with the lengths of the strings under `blobs`, then the strings.
"""

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_HEAD = struct.Struct(">I")
_BEATS = 4
"""Signs of life within the time after which silence is taken for death."""


class HostsError(RuntimeError):
    """Another process of the run is lost, or did what this one did not: all stop, and the same command goes on."""


@dataclass(frozen=True)
class Message:
    """What came from the other side."""

    kind: str
    fields: Mapping[str, Any]
    blobs: Sequence[bytes | bytearray]


class Channel:
    """One side of a connection. Any thread may send; a thread of its own receives."""

    def __init__(self, connection: socket.socket, peer: str, silence_seconds: float) -> None:
        """Args:
        connection: connected; this object's from now on.
        peer: the other side's name in messages.
        silence_seconds: without any byte for so long, the other side is taken for dead.
        """
        self.peer = peer
        self._socket = connection
        self._silence = silence_seconds
        self._sending = threading.Lock()
        self._closed = threading.Event()
        connection.settimeout(None)
        with contextlib.suppress(OSError):  # not TCP: a pair of sockets in one process
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Of receiving alone: what takes long to send is no silence.
        seconds, rest = divmod(silence_seconds, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(seconds), int(1e6 * rest)))

    def start(self, received: Callable[[Message], None], lost: Callable[[str], None]) -> None:
        """Receives from now on, and gives signs of life.

        Args:
            received: is called with every message, in the receiving thread; while it waits, nothing more is read.
            lost: is called once, with the reason, when the other side is gone and `close` was not called.
        """
        for work in (lambda: self._receive(received, lost), self._beat):
            threading.Thread(target=work, name=f"channel to {self.peer}", daemon=True).start()

    def send(self, kind: str, *blobs: bytes | memoryview, **fields: Any) -> None:
        """Sends a message. Raises HostsError when the other side is gone."""
        sizes = [memoryview(blob).nbytes for blob in blobs]
        head = json.dumps({"kind": kind, "fields": fields, "blobs": sizes}).encode()
        try:
            with self._sending:
                self._socket.sendall(_HEAD.pack(len(head)) + head)
                for blob in blobs:
                    self._socket.sendall(blob)
        except OSError as error:
            raise HostsError(f"{self.peer} is gone ({error.strerror or error})") from error

    def receive(self) -> Message:
        """The next message, for who has not called `start`. Raises EOFError, or OSError after too long a silence."""
        head = json.loads(self._read(_HEAD.unpack(self._read(_HEAD.size))[0]))
        return Message(head["kind"], head["fields"], [self._read(size) for size in head["blobs"]])

    def close(self) -> None:
        """Ends the connection; whoever waits in it is released."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _receive(self, received: Callable[[Message], None], lost: Callable[[str], None]) -> None:
        try:
            while True:
                message = self.receive()
                if message.kind != "beat":
                    received(message)
        except EOFError:
            reason = "its connection ended"
        except BlockingIOError:
            reason = f"it gave no sign of life for {self._silence:g} s (--host_timeout_seconds)"
        except OSError as error:
            reason = error.strerror or str(error)
        if not self._closed.is_set():
            lost(f"{self.peer} is lost: {reason}")

    def _beat(self) -> None:
        with contextlib.suppress(HostsError):
            while not self._closed.wait(self._silence / _BEATS):
                self.send("beat")

    def _read(self, size: int) -> bytearray:
        data = bytearray(size)
        view, done = memoryview(data), 0
        while done < size:
            count = self._socket.recv_into(view[done:])
            if count == 0:
                raise EOFError
            done += count
        return data
