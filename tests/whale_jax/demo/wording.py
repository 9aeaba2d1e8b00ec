"""Runs of words that two sources have in common."""

import ast
import inspect
import re
from collections.abc import Iterable, Iterator
from types import ModuleType


def runs_of_words(texts: Iterable[str], count: int = 5) -> set[tuple[str, ...]]:
    runs = set()
    for text in texts:
        words = re.findall(r"[\w<>/]+", text.lower())
        runs |= {tuple(words[start : start + count]) for start in range(len(words) - count + 1)}
    return runs


def literals(module: ModuleType) -> Iterator[str]:
    tree = ast.parse(inspect.getsource(module))
    return (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))


def shared(module: ModuleType, prompts: ModuleType, h0: ModuleType) -> set[tuple[str, ...]]:
    """Five words in a row of `module` that `prompts` has as well, and `h0` has not."""
    both = (runs_of_words(literals(module)) & runs_of_words(literals(prompts))) - runs_of_words(literals(h0))
    return {run for run in both if any(len(word) > 1 for word in run)}  # not the files of a chess board
