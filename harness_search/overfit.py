"""The overfit check: does a harness hold text of the tasks it will be scored on?"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterable, Sequence

WINDOW = 40
"""A stretch of a task of at least this many characters may not occur in a candidate."""
SHORTEST_TASK = 10
"""Task texts shorter than this are common words; only whole texts of at least this length count as quoted."""
MAX_REPORTED = 3


class OverfitCheck:
    """Finds stretches of task texts in a source: in its text, and in its strings put together in order.

    Text that the initial harness holds already does not count. White space and case are folded on both sides.
    """

    def __init__(self, task_texts: Sequence[str], *, allowed_source: str = "") -> None:
        """`task_texts`: inputs of the D_harness tasks, one text per string (for instance the questions)."""
        allowed = "\x00".join(_stretches(allowed_source))
        folded = [text for text in map(_fold, task_texts) if len(text) >= SHORTEST_TASK and text not in allowed]
        self._short: dict[int, set[str]] = {}
        windows: set[str] = set()
        for text in folded:
            if len(text) <= WINDOW:
                self._short.setdefault(len(text), set()).add(text)
            else:
                windows.update(_windows(text, WINDOW))
        self._windows = windows.difference(_windows(allowed, WINDOW))

    def errors(self, source: str) -> list[str]:
        """One line per quoted stretch, the first few of them; empty when there is none."""
        quoted: list[str] = []
        for text in _stretches(source):
            for length, wanted in [*sorted(self._short.items(), reverse=True), (WINDOW, self._windows)]:
                hits = [window for window in _windows(text, length) if window in wanted]
                quoted += [hit for hit in hits[:1] if hit not in quoted]
        return [f"holds text of a D_harness task: {text!r}" for text in quoted[:MAX_REPORTED]]


def _stretches(source: str) -> list[str]:
    """The source's text, and its string constants joined in two ways, so that a split string is seen whole."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return [_fold(source)]
    found: list[tuple[int, int, str]] = []
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)):
                found.append((node.lineno, node.col_offset, text))
            case ast.Constant(value=bytes(data)):
                found.append((node.lineno, node.col_offset, data.decode("utf-8", "ignore")))
    texts = [text for _, _, text in sorted(found)]
    return [_fold(source), _fold("".join(texts)), _fold(" ".join(texts))]


def _windows(text: str, length: int) -> Iterable[str]:
    return (text[start : start + length] for start in range(len(text) - length + 1))


def _fold(text: str) -> str:
    return " ".join(text.casefold().split())
