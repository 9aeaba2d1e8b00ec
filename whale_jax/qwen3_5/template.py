"""A checkpoint's own chat template, rendered so that untrusted text stays apart from the template's.

The template is Jinja, run in Jinja's sandbox with the settings `transformers` uses (its `tojson` neither sorts keys nor
escapes anything, unlike Jinja's). Untrusted text goes through the template as short placeholders and is put back
afterwards, so the caller learns which characters of a rendered conversation the template wrote and which somebody else
did.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
import jinja2.sandbox

from whale_jax.qwen3_5.config import ConfigError

_TEMPLATE_FAILURES = (
    jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError,
)  # fmt: skip
"""A template is a program, which can fail in any way that an expression can."""

_MARK = "\ue000{}\ue001"
_MARK_PATTERN = re.compile("\ue000(\\d+)\ue001")


@dataclass(frozen=True)
class Span:
    """A piece of a rendered conversation, and whether the template itself wrote it."""

    text: str
    trusted: bool


class ChatTemplate:
    """The template of one checkpoint.

    Attributes:
        source: the template's text.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self._held: list[str] = []
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = self._tojson
        environment.globals["raise_exception"] = _raise_exception
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(f"chat template, line {error.lineno}: {error.message}") from error

    @classmethod
    def from_dir(cls, path: str | Path) -> "ChatTemplate":
        """Reads `chat_template.jinja`, or the older `chat_template` field of `tokenizer_config.json`.

        Raises:
            ConfigError: there is neither, a file is not readable text or JSON, or the template is not valid Jinja.
        """
        directory = Path(path)
        file = directory / "chat_template.jinja"
        if file.exists():
            return cls(_read(file))
        file = directory / "tokenizer_config.json"
        try:
            settings = json.loads(_read(file)) if file.exists() else {}
        except (json.JSONDecodeError, RecursionError) as error:
            raise ConfigError(f"{file}: not valid JSON ({error})") from error
        source = settings.get("chat_template") if isinstance(settings, dict) else None
        if isinstance(source, str):
            return cls(source)
        raise ConfigError(f'{directory}: no chat_template.jinja, and no "chat_template" text in tokenizer_config.json')

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        thinking: bool,
        generation_prompt: bool = False,
    ) -> list[Span]:
        """Renders a conversation; the text of messages and tools comes back in untrusted spans.

        White space at the two ends of a message stays in view of the template, which may trim it.

        Raises:
            ConfigError: the template refuses the conversation or fails on it.
        """
        self._held = []
        try:
            rendered = self._template.render(
                messages=[{**message, "content": self._hold_inner(message["content"])} for message in messages],
                tools=[self._hold_strings(tool) for tool in tools] or None,
                add_generation_prompt=generation_prompt,
                enable_thinking=thinking,
            )
        except _TEMPLATE_FAILURES as error:
            raise ConfigError(f"the checkpoint's chat template failed: {error}") from error
        pieces = _MARK_PATTERN.split(rendered)
        if any(mark in text for text in pieces[::2] for mark in "\ue000\ue001"):
            raise ConfigError("the checkpoint's chat template cuts or changes message text, which is not supported")
        spans = [
            Span(text, True) if index % 2 == 0 else Span(self._held[int(text)], False)
            for index, text in enumerate(pieces)
        ]
        return [span for span in spans if span.text]

    def _hold(self, text: str) -> str:
        self._held.append(text)
        return _MARK.format(len(self._held) - 1)

    def _hold_inner(self, text: str) -> str:
        inner = text.strip()
        start = text.index(inner)
        return text[:start] + (self._hold(inner) if inner else "") + text[start + len(inner) :]

    def _hold_strings(self, value: Any) -> Any:
        """Replaces a tool's texts and keys, except plain names, which a template may compare or look up."""
        if isinstance(value, str):
            return value if value.isidentifier() else self._hold(value)
        if isinstance(value, Mapping):
            return {self._hold_strings(key): self._hold_strings(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._hold_strings(item) for item in value]
        return value

    def _release(self, value: Any) -> Any:
        if isinstance(value, str):
            return _MARK_PATTERN.sub(lambda mark: self._held[int(mark[1])], value)
        if isinstance(value, Mapping):
            return {self._release(key): self._release(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._release(item) for item in value]
        return value

    def _tojson(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: Any = None,
        sort_keys: bool = False,
    ) -> str:
        text = json.dumps(
            self._release(value), ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )
        return self._hold(text)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: not UTF-8 ({error})") from error


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
