"""Text of ids that arrive piece by piece.

A character may be spread over several ids, and a piece may end in its middle. What is not whole yet waits; what can
never become whole is U+FFFD. The pieces put together are `decode` of all the ids: the ids are the truth.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol


class ByteDecoder(Protocol):
    """What is needed of `qwen3_5.chat.ChatCodec`."""

    def decode_bytes(self, ids: Sequence[int], /) -> bytes: ...


class TextStream:
    """The text of one reply."""

    def __init__(self, codec: ByteDecoder) -> None:
        self._codec = codec
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, ids: Sequence[int]) -> str:
        """The characters that are whole after these ids."""
        return self._decoder.decode(self._codec.decode_bytes(ids))

    def finish(self) -> str:
        """U+FFFD if the reply ends in the middle of a character, else nothing."""
        return self._decoder.decode(b"", final=True)
