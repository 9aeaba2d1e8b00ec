"""Host end of an episode's pipe: length-prefixed JSON from a process nobody trusts, read with limits.

A frame is a 4-byte big-endian length and that many bytes of UTF-8 JSON holding one object.
"""

import asyncio
import json
import socket
import struct
from typing import Any, NoReturn

from harness_search.sandbox.guest.channel import MAX_FRAME_BYTES

MAX_DEPTH = 64
_CHUNK_BYTES = 1 << 16


class ProtocolBreach(Exception):
    """The other side sent what the protocol does not know; the message says what."""


def encode(message: dict[str, Any]) -> bytes:
    payload = json.dumps(message, allow_nan=False).encode()
    return struct.pack("!I", len(payload)) + payload


class Pipe:
    """A connected stream socket; its two directions end apart.

    An asyncio transport closes as a whole when a write fails, and hands on an error before data that came ahead of it:
    the last word of a child that left without waiting for its answers would be lost.
    """

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._loop = asyncio.get_running_loop()
        self._received = bytearray()
        self._sending = asyncio.Lock()

    async def send(self, message: dict[str, Any]) -> None:
        """Sends one frame, whole, after those that are being sent. OSError: the other side is gone."""
        async with self._sending:
            await self._loop.sock_sendall(self._socket, encode(message))

    async def read(self) -> tuple[dict[str, Any], int]:
        """The next frame and its size in bytes. For one reader.

        Raises:
            ProtocolBreach: too long, not JSON, not an object, too deep, or not encodable text.
            EOFError, OSError: the other side is gone, and everything that it sent was read.
        """
        (size,) = struct.unpack("!I", await self._take(4))
        if size > MAX_FRAME_BYTES:
            raise ProtocolBreach(f"a message of {size} bytes, more than {MAX_FRAME_BYTES}")
        return decode(await self._take(size)), size + 4

    def close(self) -> None:
        """When nothing is being read or sent."""
        self._socket.close()

    async def _take(self, size: int) -> bytes:
        while len(self._received) < size:
            try:
                data = self._socket.recv(_CHUNK_BYTES)
            except BlockingIOError:
                data = await self._loop.sock_recv(self._socket, _CHUNK_BYTES)
            else:
                await asyncio.sleep(0)  # who always has more to say must not keep the loop from the others
            if not data:
                raise EOFError("it closed its pipe")
            self._received += data
        taken = bytes(self._received[:size])
        del self._received[:size]
        return taken


def decode(payload: bytes) -> dict[str, Any]:
    """One frame's object; see `Pipe.read`."""
    try:
        message = json.loads(payload.decode("utf-8"), parse_constant=_refuse_constant)
    except RecursionError:
        raise ProtocolBreach(f"a message nested deeper than {MAX_DEPTH}") from None
    except ValueError as error:  # covers bad UTF-8, bad JSON, and integers too long to convert
        raise ProtocolBreach(f"a message that is not JSON: {error}") from None
    if not isinstance(message, dict):
        raise ProtocolBreach("a message that is not an object")
    if payload.count(b"[") + payload.count(b"{") > MAX_DEPTH:
        _check_depth(message)
    if b"\\u" in payload:  # only an escape can bring a lone surrogate
        try:
            json.dumps(message, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError:
            raise ProtocolBreach("text with a lone surrogate") from None
    return message


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _check_depth(message: dict[str, Any]) -> None:
    level: list[Any] = [message]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise ProtocolBreach(f"a message nested deeper than {MAX_DEPTH}")
