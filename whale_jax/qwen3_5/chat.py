"""Conversations as token ids: the tokenizer and chat format of one checkpoint.

Untrusted text (questions, documents, tool results, whatever a harness writes) is encoded by a second tokenizer that has
no added tokens, so that it can never yield a control id: `<|im_end|>` written in a web page becomes ordinary
characters. The usual flags do not do this, because `<tool_call>` and `<think>` are added tokens that are not marked
special. Control ids come from the template and from this module alone.

The head of a conversation is rendered by the checkpoint's own template, since the announcement of tools differs from
model to model. Later turns are written here in Qwen3.5's format (PAPER section 7) and appended: nothing that was
sampled is ever rendered again.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from whale_jax.qwen3_5.config import ConfigError
from whale_jax.qwen3_5.template import ChatTemplate, Span

CONTROL_TOKENS: Mapping[str, str] = {
    "endoftext": "<|endoftext|>",
    "im_start": "<|im_start|>",
    "im_end": "<|im_end|>",
    "tool_call_open": "<tool_call>",
    "tool_call_close": "</tool_call>",
    "tool_response_open": "<tool_response>",
    "tool_response_close": "</tool_response>",
    "think_open": "<think>",
    "think_close": "</think>",
}
"""Field of `SpecialIds` to the text of the added token: what a tokenizer must have to hold a Qwen3.5 conversation."""


@dataclass(frozen=True)
class SpecialIds:
    """The ids of Qwen3.5's control tokens in one checkpoint."""

    endoftext: int
    im_start: int
    im_end: int
    tool_call_open: int
    tool_call_close: int
    tool_response_open: int
    tool_response_close: int
    think_open: int
    think_close: int


@dataclass(frozen=True)
class Piece:
    """Consecutive ids of a conversation's head.

    `source` is "prompt" for what the template alone wrote and "harness" for a run of text that holds harness text
    (template text that touches it is part of the run: tokens may span the seam, as they do in the checkpoint's own
    rendering).
    """

    ids: tuple[int, ...]
    source: Literal["prompt", "harness"]


class ChatCodec:
    """Text to ids and back for one checkpoint; see the module docstring.

    Attributes:
        special: ids of the control tokens.
        control_ids: ids of all added tokens; `encode_text` yields none of them.
        stop_ids: ids that end an assistant turn.
        vocab_size: number of ids the tokenizer knows (the model's embedding may have more rows).
        template_sha256: hash of the chat template's text.
    """

    def __init__(self, tokenizer_json: str, template: ChatTemplate) -> None:
        """Builds both tokenizers from the text of a tokenizer.json.

        Raises:
            ConfigError: the tokenizer lacks a control token, is not byte-level, or has added tokens with white-space
                rules; or the template does not follow Qwen3.5's format.
        """
        try:
            description = json.loads(tokenizer_json)
            self._tokenizer = Tokenizer.from_str(tokenizer_json)
        except Exception as error:  # the tokenizers library raises bare Exception
            raise ConfigError(f"tokenizer.json: {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        added: dict[str, int] = {token["content"]: token["id"] for token in description.get("added_tokens", [])}
        self._check_added(description.get("added_tokens", []))
        self.special = SpecialIds(**{field: added[text] for field, text in CONTROL_TOKENS.items()})
        self.control_ids = frozenset(added.values())
        self.stop_ids = (self.special.im_end, self.special.endoftext)
        self.vocab_size = self._tokenizer.get_vocab_size()
        self._added = added
        self._split = re.compile("(" + "|".join(map(re.escape, sorted(added, key=len, reverse=True))) + ")")
        self._plain = _without_added_tokens(description, added)
        self._check_plain()
        self._template = template
        self.template_sha256 = hashlib.sha256(template.source.encode("utf-8")).hexdigest()
        self._newline = tuple(self.encode_text("\n"))
        self._generation_prompt = {thinking: self._read_generation_prompt(thinking) for thinking in (True, False)}

    @classmethod
    def from_dir(cls, path: str | Path) -> "ChatCodec":
        """Reads `tokenizer.json` and the chat template of a checkpoint directory.

        Raises:
            ConfigError: a file is missing or does not fit; the message names the directory.
        """
        file = Path(path) / "tokenizer.json"
        try:
            return cls(file.read_text(encoding="utf-8"), ChatTemplate.from_dir(path))
        except OSError as error:
            raise ConfigError(f"{file}: cannot be read ({error.strerror})") from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"{file}: not UTF-8 ({error})") from error
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error

    def encode_text(self, text: str) -> list[int]:
        """Ids of untrusted text; never an added token's id. Lone surrogates become U+FFFD."""
        return self._plain.encode(_without_surrogates(text), add_special_tokens=False).ids

    def count_tokens(self, text: str) -> int:
        """Length of `encode_text(text)`."""
        return len(self.encode_text(text))

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, control tokens visible; bytes that are no UTF-8 become U+FFFD."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def decode_bytes(self, ids: Sequence[int]) -> bytes:
        """The bytes that ids stand for, of which `decode` is the text; ids that the tokenizer lacks stand for none."""
        tokens = (self._tokenizer.id_to_token(token) for token in ids)
        return b"".join(_bytes_of(token) for token in tokens if token is not None)

    def start(self, system: str | None, tools: Sequence[Mapping[str, Any]], thinking: bool) -> list[Piece]:
        """The head of a conversation, up to where its first user turn begins; may be empty.

        Raises:
            ConfigError: the checkpoint's template fails, or does not put the user turn after the head.
        """
        head = [{"role": "system", "content": system}] if system is not None else []
        # Qwen3.5's templates refuse a conversation without a user turn, so one is rendered and cut off again.
        spans = self._template.render([*head, {"role": "user", "content": "x"}], tools=tools, thinking=thinking)
        return self._pieces(_cut_user_turn(spans))

    def user(self, text: str) -> list[int]:
        """One whole user turn."""
        return self._turn([Span("<|im_start|>user\n", True), Span(text.strip(), False), Span("<|im_end|>\n", True)])

    def tool(self, text: str) -> list[int]:
        """One whole turn that hands a tool's result to the model."""
        opening, closing = "<|im_start|>user\n<tool_response>\n", "\n</tool_response><|im_end|>\n"
        return self._turn([Span(opening, True), Span(text.strip(), False), Span(closing, True)])

    def close_turn(self, ids: Sequence[int]) -> list[int]:
        """What is missing at the end of an assistant turn before another turn may follow.

        Args:
            ids: the conversation so far, or at least its last few ids.

        Returns:
            `<|im_end|>` and a newline, or the newline alone after a sampled `<|im_end|>`, or nothing after a finished
            turn (or no turn at all).
        """
        last = tuple(ids[-1 - len(self._newline) :])
        if not last or last == (self.special.im_end, *self._newline):
            return []
        if last[-1] == self.special.im_end:
            return list(self._newline)
        return [self.special.im_end, *self._newline]

    def generation_prompt(self, thinking: bool) -> list[int]:
        """The ids that open an assistant turn, as the checkpoint's template writes them."""
        return list(self._generation_prompt[thinking])

    def _turn(self, spans: Iterable[Span]) -> list[int]:
        return [token for piece in self._pieces(spans) for token in piece.ids]

    def _pieces(self, spans: Iterable[Span]) -> list[Piece]:
        """Encodes spans as the full tokenizer would encode their text, but finds added tokens in trusted text alone."""
        pieces: list[Piece] = []
        control: list[int] = []
        run, run_trusted = "", True

        def flush() -> None:
            nonlocal run, run_trusted, control
            if run and run_trusted:
                control += self.encode_text(run)
            elif run:
                if control:
                    pieces.append(Piece(tuple(control), "prompt"))
                    control = []
                pieces.append(Piece(tuple(self.encode_text(run)), "harness"))
            run, run_trusted = "", True

        for span in spans:
            if not span.trusted:
                run, run_trusted = run + span.text, run_trusted and not span.text
                continue
            for text in self._split.split(span.text):
                if text in self._added:
                    flush()
                    control.append(self._added[text])
                else:
                    run += text
        flush()
        if control:
            pieces.append(Piece(tuple(control), "prompt"))
        return pieces

    def _read_generation_prompt(self, thinking: bool) -> tuple[int, ...]:
        messages = [{"role": "user", "content": "x"}]
        without, with_prompt = (
            "".join(span.text for span in self._template.render(messages, thinking=thinking, generation_prompt=asked))
            for asked in (False, True)
        )
        prompt = with_prompt.removeprefix(without)
        if not with_prompt.startswith(without) or not prompt.startswith("<|im_start|>assistant\n"):
            raise ConfigError(f"the chat template's generation prompt is {prompt!r}, not an assistant turn's opening")
        return tuple(self._turn([Span(prompt, True)]))

    def _check_added(self, tokens: Sequence[Mapping[str, Any]]) -> None:
        texts = {token["content"] for token in tokens}
        problems = [f"no added token {text}" for text in CONTROL_TOKENS.values() if text not in texts]
        problems += [
            f"added token {token['content']!r} has {rule} = true, which is not supported"
            for token in tokens
            for rule in ("lstrip", "rstrip", "single_word")
            if token.get(rule)
        ]
        if problems:
            raise ConfigError("tokenizer.json: " + "; ".join(problems))

    def _check_plain(self) -> None:
        """The promise of `encode_text`, tried once on every added token; and that every text can be written."""
        for text in self._added:
            ids = self.encode_text(text)
            if self.control_ids.intersection(ids) or self._plain.decode(ids) != text:
                raise ConfigError(f"tokenizer.json: the text {text!r} cannot be written without its added token")
        missing = set(ByteLevel.alphabet()) - set(self._plain.get_vocab())
        if missing:
            raise ConfigError(f"tokenizer.json: {len(missing)} of 256 single bytes are not in the vocabulary")


def _byte_alphabet() -> dict[str, int]:
    """Byte-level BPE writes printable bytes as themselves and the others, in order, as the characters from 256 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {**{chr(byte): byte for byte in printable}, **{chr(256 + i): byte for i, byte in enumerate(others)}}


_BYTES = _byte_alphabet()


def _bytes_of(token: str) -> bytes:
    """A token outside the byte alphabet (an added one) stands for its own text, as in the tokenizers library."""
    if all(one in _BYTES for one in token):
        return bytes(_BYTES[one] for one in token)
    return token.encode()


def _without_added_tokens(description: Mapping[str, Any], added: Mapping[str, int]) -> Tokenizer:
    """The same tokenizer with its added tokens taken out, out of the model's vocabulary too."""
    model = dict(description["model"])
    if model.get("type") != "BPE":
        raise ConfigError(f'tokenizer.json: model type {model.get("type")!r} is not supported (only "BPE")')
    model["vocab"] = {text: token for text, token in model["vocab"].items() if text not in added}
    model["unk_token"] = None
    plain = {
        **description,
        "model": model,
        "added_tokens": [],
        "post_processor": None,
        "truncation": None,
        "padding": None,
    }
    return Tokenizer.from_str(json.dumps(plain))


def _cut_user_turn(spans: Sequence[Span]) -> list[Span]:
    """Drops the user turn `x` that ends a rendered conversation."""
    opening = "<|im_start|>user\n"
    last_text = max((i for i, span in enumerate(spans) if not span.trusted and span.text == "x"), default=0)
    before = spans[last_text - 1] if last_text else None
    if before is None or not before.trusted or not before.text.endswith(opening):
        raise ConfigError(f"the chat template does not open a user turn with {opening!r}")
    return [*spans[: last_text - 1], Span(before.text.removesuffix(opening), True)]


def _without_surrogates(text: str) -> str:
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
