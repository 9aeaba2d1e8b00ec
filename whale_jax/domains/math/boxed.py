r"""Finding the answer: the last `\boxed{...}` of a text, with balanced braces."""

from __future__ import annotations

import re

THINK_END = "</think>"
_OPEN = re.compile(r"\\boxed\s*\{")


def last_boxed(text: str) -> str | None:
    r"""What the last `\boxed{...}` of `text` encloses; None without one. Linear in the text.

    A last box that never closes is no answer, even if an earlier one closed: the writer was not done. Braces behind a
    backslash are letters, as in LaTeX. Only what follows the last `</think>` is read, should the text hold one.
    """
    visible = text.rpartition(THINK_END)[2]
    start = None
    for match in _OPEN.finditer(visible):
        start = match.end()
    return None if start is None else _balanced(visible, start)


def _balanced(text: str, start: int) -> str | None:
    """From `start` to the brace that closes what was open there."""
    depth, index = 1, start
    while index < len(text):
        character = text[index]
        if character == "\\":
            index += 1  # what follows is a letter or part of a command
        elif character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                return text[start:index]
        index += 1
    return None
