"""What the judge reads and how its reply is read.

The rule that it applies is `judge_prompt.md`, in this project's own words, or a user's file. The candidate answer is
what the policy wrote, so it is the one part that may try to talk to the judge (case D109): it stands between two marker
lines that it cannot know, is cut to a length that no answer needs, and only a reply that is a verdict alone counts.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from whale_jax.domains.task import TaskError, canonical_json

MAX_ANSWER_CHARS = 2_000
_PLACEHOLDERS = ("question", "references", "answer")
_PLACEHOLDER = re.compile(r"\{(question|references|answer)\}")
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")


def parse_verdict(reply: str) -> bool | None:
    """True for CORRECT, False for INCORRECT, None for anything else; only case and outer white space do not count.

    A search for either word would find CORRECT in INCORRECT, and both in an explanation (case D107).
    """
    return {"INCORRECT": False, "CORRECT": True}.get(reply.strip().upper())


def build_prompt(template: str, question: str, references: Sequence[str], answer: str) -> str:
    """The prompt for one answer. The same arguments give the same prompt."""
    plain = _plain(answer)
    cut = plain if len(plain) <= MAX_ANSWER_CHARS else plain[:MAX_ANSWER_CHARS] + " [… cut]"
    mark = hashlib.sha256(canonical_json([question, list(references), plain]).encode()).hexdigest()[:16]
    parts = {
        "question": _plain(question),
        "references": "\n".join(f"- {' '.join(_plain(reference).split())}" for reference in references),
        "answer": f"[answer {mark} begins]\n{cut}\n[answer {mark} ends]",
    }
    return _PLACEHOLDER.sub(lambda found: parts[found[1]], template)


def _plain(text: str) -> str:
    """Text that every service accepts: without control characters and lone surrogates."""
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def default_template() -> str:
    """This project's prompt."""
    return resources.files("whale_jax.domains.searchqa").joinpath("judge_prompt.md").read_text(encoding="utf-8")


def read_template(path: Path) -> str:
    """A user's prompt: a UTF-8 text with `{question}`, `{references}` and `{answer}`; other braces are plain text.

    The candidate answer comes with marker lines around it. The prompt must ask for one word, CORRECT or INCORRECT.

    Raises:
        TaskError: the file cannot be read, or lacks a placeholder.
    """
    try:
        template = path.read_text(encoding="utf-8")
    except OSError as error:
        raise TaskError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TaskError(f"{path}: not UTF-8: byte {error.start}") from error
    found = set(_PLACEHOLDER.findall(template))
    missing = [f"{{{name}}}" for name in _PLACEHOLDERS if name not in found]
    if missing:
        raise TaskError(f"{path}: a judge's prompt needs {', '.join(missing)}")
    return template
