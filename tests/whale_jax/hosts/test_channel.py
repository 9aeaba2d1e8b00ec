"""Messages between processes: whole, in order, and an end or a silence that is noticed."""

import queue
import socket

import pytest

from whale_jax.hosts.channel import Channel, HostsError


@pytest.fixture
def pair():
    ends = [Channel(end, name, 60.0) for end, name in zip(socket.socketpair(), ("host 1", "host 0"), strict=True)]
    yield ends
    for end in ends:
        end.close()


def listening(channel):
    """What comes, and why nothing more does."""
    came, gone = queue.Queue(), queue.Queue()
    channel.start(came.put, gone.put)
    return came, gone


def test_messages_come_whole_and_in_order(pair):
    one, other = pair
    came, _ = listening(other)
    one.send("first", b"x" * 300_000, memoryview(b""), text="ünïcode", number=1.5)
    one.send("second")
    first, second = came.get(timeout=30), came.get(timeout=30)
    assert (first.kind, first.fields, second.kind) == ("first", {"text": "ünïcode", "number": 1.5}, "second")
    assert [bytes(blob) for blob in first.blobs] == [b"x" * 300_000, b""]


def test_an_end_is_told_to_the_other_side_alone(pair):
    one, other = pair
    _, mine = listening(one)
    _, gone = listening(other)
    one.close()
    assert gone.get(timeout=30) == "host 0 is lost: its connection ended"
    assert mine.empty()
    with pytest.raises(HostsError, match="host 1 is gone"):
        one.send("more")


def test_silence_is_taken_for_death():
    silent, end = socket.socketpair()
    with silent:
        channel = Channel(end, "host 1", 0.05)
        _, gone = listening(channel)
        assert "host 1 is lost: it gave no sign of life for 0.05 s (--host_timeout_seconds)" in gone.get(timeout=30)
        channel.close()


def test_a_sign_of_life_is_no_message(pair):
    one, other = pair
    came, _ = listening(other)
    one.send("beat")
    one.send("order")
    assert came.get(timeout=30).kind == "order"
