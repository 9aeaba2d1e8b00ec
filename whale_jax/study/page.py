"""Writes a study's page: the tables between its markers, and the figures beside it. The words are left as they are.

A block stands between `<!-- study: NAME -->` and `<!-- study: end -->`; its content is replaced.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from whale_jax.study import figures, tables
from whale_jax.study.design import StudyError
from whale_jax.study.results import Results, read_results

BLOCKS: Mapping[str, Callable[[Results], str]] = {
    "frozen": tables.frozen,
    "state": tables.state,
    "scores": tables.scores,
    "picked": tables.picked,
    "answers": tables.answers,
    "last": tables.last_pairs,
    "sooner": tables.sooner,
    "overstated": tables.overstated,
    "transfer": tables.transfer,
    "switching": tables.switching,
    "budgets": tables.budgets,
}
"""Tables by the name of their block."""

_BLOCK = re.compile(r"<!-- study: (?P<name>\w+) -->\n(?P<content>.*?)<!-- study: end -->", re.DOTALL)


def write_page(directory: Path, page: Path) -> list[Path]:
    """Rewrites README.md in a folder from a study's results, and the figures that it shows; returns what was written.

    Raises:
        StudyError: the results cannot be read, or there is no such page, or it lacks a block or has an unknown one.
        OSError: something cannot be written.
    """
    results = read_results(directory)
    readme = page / "README.md"
    try:
        text = readme.read_text(encoding="utf-8")
    except OSError as error:
        raise StudyError(
            f"{readme}: cannot be read ({error.strerror}); --page must name a folder with a copy of "
            "docs/study/README.md in it"
        ) from error
    _check_blocks(readme, text)
    drawn = {name: path for name in figures.FIGURES if (path := figures.draw(name, results, page)) is not None}

    def content(match: re.Match[str]) -> str:
        name = match["name"]
        body = BLOCKS[name](results)
        if name in drawn:
            body += f"\n\n![{figures.FIGURES[name].alt}]({drawn[name].name})"
        return f"<!-- study: {name} -->\n{body}\n<!-- study: end -->"

    temporary = readme.with_name(f".{readme.name}.{os.getpid()}.tmp")
    temporary.write_text(_BLOCK.sub(content, text), encoding="utf-8")
    temporary.replace(readme)
    return [readme, *drawn.values()]


def _check_blocks(readme: Path, text: str) -> None:
    names = [match["name"] for match in _BLOCK.finditer(text)]
    if missing := [name for name in BLOCKS if name not in names]:
        raise StudyError(f"{readme}: has no block {', '.join(missing)} (<!-- study: NAME --> … <!-- study: end -->)")
    if unknown := [name for name in names if name not in BLOCKS]:
        raise StudyError(f"{readme}: nothing is called {', '.join(unknown)}; blocks are {', '.join(BLOCKS)}")
