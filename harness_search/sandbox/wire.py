"""Host end of an episode's pipe: length-prefixed JSON from a process nobody trusts, read with limits.

A frame is a 4-byte big-endian length and that many bytes of UTF-8 JSON holding one object.
"""

import asyncio
import json
import struct
from typing import Any, NoReturn

from harness_search.sandbox.guest.channel import MAX_FRAME_BYTES

MAX_DEPTH = 64


class ProtocolBreach(Exception):
    """The other side sent what the protocol does not know; the message says what."""


def encode(message: dict[str, Any]) -> bytes:
    payload = json.dumps(message, allow_nan=False).encode()
    return struct.pack("!I", len(payload)) + payload


async def read(reader: asyncio.StreamReader) -> tuple[dict[str, Any], int]:
    """The next frame and its size in bytes.

    Raises:
        ProtocolBreach: too long, not JSON, not an object, too deep, or not encodable text.
        asyncio.IncompleteReadError, ConnectionError: the other side is gone.
    """
    (size,) = struct.unpack("!I", await reader.readexactly(4))
    if size > MAX_FRAME_BYTES:
        raise ProtocolBreach(f"a message of {size} bytes, more than {MAX_FRAME_BYTES}")
    return decode(await reader.readexactly(size)), size + 4


def decode(payload: bytes) -> dict[str, Any]:
    """One frame's object; see `read`."""
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
