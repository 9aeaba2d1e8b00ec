"""Frames from a process nobody trusts."""

import contextlib
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness_search.sandbox import wire
from harness_search.sandbox.wire import MAX_DEPTH, ProtocolBreach

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=50)
@given(st.dictionaries(st.text(), JSON, max_size=4))
def test_what_is_encoded_is_decoded(message: dict[str, object]) -> None:
    frame = wire.encode(message)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert wire.decode(frame[4:]) == message


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_an_object_or_a_breach(payload: bytes) -> None:
    with contextlib.suppress(ProtocolBreach):
        assert isinstance(wire.decode(payload), dict)


@pytest.mark.parametrize("depth", [MAX_DEPTH, 1_000, 1_000_000])
def test_depth_is_limited(depth: int) -> None:
    payload = b'{"a": ' + b"[" * depth + b"]" * depth + b"}"
    with pytest.raises(ProtocolBreach, match="nested"):
        wire.decode(payload)


def test_depth_counts_nesting_and_not_brackets() -> None:
    assert wire.decode(b'{"a": [' + b"[]," * 1000 + b"[]]}")["a"][:1] == [[]]
    inner = b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1)
    assert wire.decode(b'{"a": ' + inner + b"}")


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"[]",
        b"1",
        b"{",
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'\xff{"a": 1}',
        b'{"a": "\\udc00"}',
        b'{"\\ud800": 1}',
    ],
)
def test_what_is_no_json_object_is_a_breach(payload: bytes) -> None:
    with pytest.raises(ProtocolBreach):
        wire.decode(payload)


def test_pairs_of_surrogates_are_text() -> None:
    assert wire.decode(json.dumps({"a": "😀"}).encode()) == {"a": "😀"}
