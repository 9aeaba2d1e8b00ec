"""The one way out of an agent's sandbox: a proxy on a Unix socket that picks where connections may go.

The sandbox has no network of its own. What runs in it is told of an HTTP proxy on its loopback, whose bytes are
carried here (`guest.agent`). `CONNECT` and absolute `http://` requests are served. A name is resolved here, and the
address that was checked is the address that is connected to. Refused are: the cloud metadata services, whatever they
are called, even if a host was allowed by name; and every address that is not public, unless its host was allowed.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import socket
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from urllib.parse import urlsplit

METADATA = frozenset(
    ipaddress.ip_address(text)
    for text in (
        *("169.254.169.254", "169.254.170.2", "169.254.170.23", "fd00:ec2::254", "fd20:ce::254"),  # AWS, GCP, Azure
        *("168.63.129.16", "100.100.100.200", "192.0.0.192"),  # Azure's wire server, Alibaba, Oracle
    )
)
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_HEAD_BYTES = 16 * 1024
_HEAD_SECONDS = 30.0
_CONNECT_SECONDS = 30.0
_PIECE = 1 << 16
_MAX_CONNECTIONS = 256

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class _Refused(Exception):
    """The status line's code and words."""


class Egress:
    """A running proxy. Made by `start`; `refusals` counts what was asked for and not given, by host."""

    def __init__(self, allow_hosts: Collection[str]) -> None:
        self._allowed = frozenset(host.casefold() for host in allow_hosts)
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._closing = False
        self.refusals: Counter[str] = Counter()

    @classmethod
    async def start(cls, path: Path, allow_hosts: Collection[str] = ()) -> Egress:
        """Listens on the Unix socket `path`, for every user of this machine that can reach it.

        `allow_hosts`: names or addresses that may be connected to though they are not public (a model of one's own).
        """
        proxy = cls(allow_hosts)
        proxy._server = await asyncio.start_unix_server(proxy._accept, str(path), limit=_HEAD_BYTES)
        os.chmod(path, 0o666)
        return proxy

    async def close(self) -> None:
        """Stops listening and drops every connection."""
        self._closing = True
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if len(self._tasks) <= _MAX_CONNECTIONS:
                await self._serve(reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # one side is gone or never spoke HTTP: its connection ends, and nothing else
        except asyncio.CancelledError:
            if not self._closing:
                raise
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(_HEAD_SECONDS):
            head = await reader.readuntil(b"\r\n\r\n")
        host = "?"
        try:
            method, host, port, forward = _request(head)
            their_reader, their_writer = await self._connect(host, port)
        except _Refused as refusal:
            self.refusals[host[:200]] += 1
            writer.write(f"HTTP/1.1 {refusal}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
            await writer.drain()
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            return
        try:
            if method == "CONNECT":
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            their_writer.write(forward)
            async with asyncio.TaskGroup() as group:
                group.create_task(_carry(reader, their_writer))
                group.create_task(_carry(their_reader, writer))
        except* (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            their_writer.transport.abort()

    async def _connect(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError, TimeoutError):
            raise _Refused("502 Name not resolved") from None
        addresses = [ipaddress.ip_address(str(one[4][0]).partition("%")[0]) for one in found]
        fine = [one for one in addresses if may_reach(one, host.casefold() in self._allowed)]
        if not fine:
            raise _Refused("403 Address not allowed")
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                return await asyncio.open_connection(str(fine[0]), port)
        except (OSError, TimeoutError):
            raise _Refused("502 Not reachable") from None


def may_reach(address: Address, allowed_by_name: bool) -> bool:
    """Whether an agent may connect to an address."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return may_reach(inner, allowed_by_name)
    if address in METADATA or address.is_link_local:
        return False
    return allowed_by_name or (address.is_global and not address.is_multicast)


def _request(head: bytes) -> tuple[str, str, int, bytes]:
    """Method, host, port, and what to send there first. Raises _Refused for what is no proxy request."""
    line, _, rest = head.partition(b"\r\n")
    try:
        method, target, version = line.decode("ascii").split(" ")
        parts = urlsplit(f"//{target}" if method == "CONNECT" else target)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise _Refused("400 Not a request") from None
    if not host or not version.startswith("HTTP/1."):
        raise _Refused("400 Not a proxy request")
    if method == "CONNECT":
        return method, host, port or 443, b""
    if parts.scheme != "http":
        raise _Refused("400 Only http:// and CONNECT")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    headers = [one for one in rest.split(b"\r\n") if not one.lower().startswith((b"proxy-", b"connection:"))]
    # One request per connection: the next one may name another host.
    forward = b"\r\n".join([f"{method} {path} {version}".encode(), b"Connection: close", *headers])
    return method, host, port or 80, forward


async def _carry(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(_PIECE):
        target.write(data)
        await target.drain()
    if target.can_write_eof():
        target.write_eof()
