"""The child's end of an episode's pipe: length-prefixed JSON, calls answered by number."""

import asyncio
import json
import select
import socket
import struct
from typing import Any

MAX_FRAME_BYTES = 4 * 1024 * 1024
MAX_CALLS_IN_FLIGHT = 32


def receive_blocking(sock: socket.socket) -> dict[str, Any]:
    """The first message, before there is an event loop."""

    def exactly(count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = sock.recv(count - len(data))
            if not part:
                raise EOFError("the host closed the channel")
            data += part
        return data

    (size,) = struct.unpack("!I", exactly(4))
    return json.loads(exactly(size))


class Channel:
    """Sends calls to the host, batched with the chat operations that came before them, and waits for the answers."""

    def __init__(self, sock: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self._sock = sock
        self._loop = loop
        self._buffer = bytearray()
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._next = 0
        self._operations: list[list[Any]] = []
        self._slots = asyncio.Semaphore(MAX_CALLS_IN_FLIGHT)
        self._turn = asyncio.Lock()  # one frame at a time, even when the pipe is full
        sock.setblocking(False)
        loop.add_reader(sock.fileno(), self._readable)

    def queue(self, *operation: Any) -> None:
        """Adds a chat operation to what the next call carries."""
        self._operations.append(list(operation))

    async def call(self, *call: Any) -> Any:
        """One host call. Raises ValueError when the host refuses it."""
        async with self._slots:
            number = self._next
            self._next += 1
            self._answers[number] = self._loop.create_future()
            try:
                async with self._turn:
                    operations, self._operations = self._operations, []
                    await self._send({"id": number, "ops": operations, "call": list(call)})
                answer = await self._answers[number]
            finally:
                del self._answers[number]
        if "refused" in answer:
            raise ValueError(answer["refused"])
        return answer["ok"]

    def send_blocking(self, message: dict[str, Any]) -> None:
        """Sends while nothing else of this process runs: the first message and the closing one."""
        data = memoryview(frame(message))
        while data:
            try:
                data = data[self._sock.send(data) :]
            except BlockingIOError:
                poll = select.poll()
                poll.register(self._sock, select.POLLOUT)
                poll.poll()

    async def _send(self, message: dict[str, Any]) -> None:
        await self._loop.sock_sendall(self._sock, frame(message))

    def _readable(self) -> None:
        try:
            data = self._sock.recv(1 << 18)
        except BlockingIOError:
            return
        if not data:  # the host has ended the episode; the kill is on its way
            self._loop.remove_reader(self._sock.fileno())
            return
        self._buffer += data
        while len(self._buffer) >= 4:
            (size,) = struct.unpack_from("!I", self._buffer)
            if len(self._buffer) < 4 + size:
                return
            answer = json.loads(self._buffer[4 : 4 + size])
            del self._buffer[: 4 + size]
            waiting = self._answers.get(answer["id"])
            if waiting is not None and not waiting.done():
                waiting.set_result(answer)


def frame(message: dict[str, Any]) -> bytes:
    payload = json.dumps(message, ensure_ascii=True, allow_nan=False).encode()
    if len(payload) > MAX_FRAME_BYTES:
        raise ValueError(f"a message of {len(payload)} bytes is more than the limit of {MAX_FRAME_BYTES}")
    return struct.pack("!I", len(payload)) + payload
