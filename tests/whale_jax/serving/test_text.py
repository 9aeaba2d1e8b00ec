"""Streamed text is the text of the whole, however the ids are cut."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whale_jax.qwen3_5.chat import ChatCodec
from whale_jax.serving.text import TextStream


@pytest.fixture(scope="module")
def codec() -> ChatCodec:
    return ChatCodec.from_dir(Path(str(resources.files("whale_jax.demo"))) / "checkpoint")


def pieces(codec: ChatCodec, ids: list[int], size: int) -> Iterator[str]:
    stream = TextStream(codec)
    for start in range(0, len(ids), size):
        yield stream.push(ids[start : start + size])
    yield stream.finish()


def test_a_character_over_several_ids_comes_whole(codec: ChatCodec) -> None:
    ids = codec.encode_text("é東😀")
    assert len(ids) > 3, "the characters must be cut into bytes for this test to say anything"
    shown = list(pieces(codec, ids, 1))
    assert "\ufffd" not in "".join(shown)
    assert [text for text in shown if text] == ["é", "東", "😀"]


def test_an_unfinished_character_is_replaced_at_the_end_alone(codec: ChatCodec) -> None:
    *ids, _ = codec.encode_text("a😀")
    shown = list(pieces(codec, ids, 1))
    assert shown[0] == "a"
    assert shown[-1] == "\ufffd"
    assert set(shown[1:-1]) == {""}


def test_control_ids_are_visible_and_cut_a_character_short(codec: ChatCodec) -> None:
    first, *_ = codec.encode_text("😀")
    ids = [first, codec.special.think_close, *codec.encode_text("b")]
    assert "".join(pieces(codec, ids, 1)) == codec.decode(ids) == "\ufffd</think>b"


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_ids_in_any_pieces_give_the_text_of_the_whole(codec: ChatCodec, data: st.DataObject) -> None:
    token = st.integers(0, codec.vocab_size + 20)  # past the end too: an embedding may have more rows
    by_id = st.lists(token, max_size=30)
    by_text = st.text(max_size=12).map(codec.encode_text)
    ids = data.draw(by_id | by_text)
    size = data.draw(st.integers(1, 5))
    assert "".join(pieces(codec, ids, size)) == codec.decode(ids)
