"""The last word of a child that leaves while it still has answers to come."""

import asyncio
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from harness_search.contract import EndReason
from harness_search.sandbox import wire
from harness_search.sandbox.limits import DEFAULT_LIMITS
from harness_search.sandbox.session import ChildSilent, Closing, Session

FAILED = {"failed": "the harness gave up"}
FAILURE = Closing(EndReason.HARNESS_ERROR, error="the harness gave up")


class Left(SimpleNamespace):
    """A host that answers once the child's end is as a test wants it: `leave` shuts what it shuts."""

    async def count_tokens(self, text: str) -> int:
        self.leave()
        return len(text)


def converse(child: socket.socket, ours: socket.socket, leave: Any) -> Closing:
    """One episode whose child calls the host once, and `leave`s before it is answered."""
    child.sendall(wire.encode({"ready": True}) + wire.encode({"id": 0, "ops": [], "call": ["count_tokens", "abc"]}))

    async def run() -> Closing:
        session = Session(wire.Pipe(ours), Left(leave=leave), DEFAULT_LIMITS)
        try:
            return await session.run({}, 30, 30)
        finally:
            await session.close()

    return asyncio.run(run())


@pytest.fixture
def ends():
    child, ours = socket.socketpair()
    with child, ours:
        yield child, ours


@pytest.mark.parametrize("closes", [False, True])
def test_an_answer_that_cannot_be_sent_loses_no_last_word(ends: Any, closes: bool) -> None:
    child, ours = ends

    def leave() -> None:
        child.shutdown(socket.SHUT_RD)
        asyncio.get_running_loop().call_later(0.1, last_word)  # after the answer failed

    def last_word() -> None:
        child.sendall(wire.encode(FAILED))
        if closes:
            child.close()

    assert converse(child, ours, leave) == FAILURE


def test_answers_left_unread_lose_no_last_word(ends: Any) -> None:
    """The kernel then reports a reset, which comes after the data and must not overtake it."""
    child, ours = ends

    def leave() -> None:
        child.sendall(wire.encode(FAILED))
        child.close()  # with its start message unread

    assert converse(child, ours, leave) == FAILURE


def test_a_child_that_takes_no_answer_and_says_nothing_is_silent(ends: Any) -> None:
    child, ours = ends
    with pytest.raises(ChildSilent):
        converse(child, ours, lambda: child.shutdown(socket.SHUT_RD))


def test_a_reset_comes_after_what_was_sent(ends: Any) -> None:
    child, ours = ends
    ours.sendall(b"unread")
    child.sendall(wire.encode(FAILED) + wire.encode({"two": 2}) + b"\0\0")
    child.close()

    async def read_all() -> list[dict[str, Any]]:
        pipe = wire.Pipe(ours)
        messages = [(await pipe.read())[0] for _ in range(2)]
        with pytest.raises((EOFError, ConnectionResetError)):
            await pipe.read()
        return messages

    assert asyncio.run(read_all()) == [FAILED, {"two": 2}]


def test_long_frames_sent_at_once_arrive_whole(ends: Any) -> None:
    child, ours = ends
    messages = [{"number": number, "text": "x" * 300_000} for number in range(8)]

    async def send_and_read() -> list[dict[str, Any]]:
        sender, reader = wire.Pipe(child), wire.Pipe(ours)
        sending = [asyncio.create_task(sender.send(message)) for message in messages]
        read = [(await reader.read())[0] for _ in messages]
        await asyncio.gather(*sending)
        return read

    assert asyncio.run(send_and_read()) == messages
