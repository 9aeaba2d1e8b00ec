"""The documents that can be retrieved, in the field's format: rows `{"id", "contents"}`, JSONL or Parquet.

The first line of `contents` is the quoted title, the rest the text (the layout of the wiki-18 corpus). Rows
`{"id", "title", "text"}` is read too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whale_jax.domains.searchqa.passages import Passage
from whale_jax.domains.task import BadRow, RowError, TaskError, check_bad_rows, read_rows


@dataclass(frozen=True)
class Document:
    """One row of a corpus."""

    id: str
    contents: str

    @property
    def title(self) -> str:
        """The first line without its quotes; "" when there is only one line, which then is the text."""
        first, newline, _ = self.contents.partition("\n")
        return first.strip().strip('"').strip() if newline else ""

    @property
    def text(self) -> str:
        """What follows the title."""
        first, newline, rest = self.contents.partition("\n")
        return rest.strip() if newline else first.strip()


def documents(passages: Iterable[Passage]) -> list[Document]:
    """Passages as rows of a corpus."""
    return [Document(passage.id, f'"{passage.title}"\n{passage.text}') for passage in passages]


def load_corpus(path: Path, *, max_bad_rows: float = 0.0) -> tuple[list[Document], list[BadRow]]:
    """Reads a whole corpus: its documents, and the rows that were left out.

    Raises:
        TaskError: the file cannot be read, holds no document, or more than the share `max_bad_rows` of rows are bad.
    """
    good: list[Document] = []
    bad: list[BadRow] = []
    for item in stream_corpus(path):
        if isinstance(item, BadRow):
            bad.append(item)
        else:
            good.append(item)
    check_bad_rows(bad, len(good) + len(bad), max_bad_rows)
    if not good:
        raise TaskError(f"{path}: no document in this file")
    return good, bad


def stream_corpus(path: Path) -> Iterator[Document | BadRow]:
    """The documents of a corpus one by one: JSONL (plain, .gz, .zst) or Parquet. Raises TaskError."""
    yield from read_rows(path, parse_document)


def parse_document(row: Mapping[str, Any]) -> Document:
    """A row `{"id", "contents"}`, the quoted title on the first line of the contents, or `{"id", "title", "text"}`.

    Raises:
        RowError: the id or the content is missing.
    """
    document_id = row.get("id", row.get("_id"))
    if not isinstance(document_id, str | int) or isinstance(document_id, bool):
        raise RowError("`id` must be a string or a whole number")
    contents = row.get("contents")
    if contents is None and isinstance(row.get("text"), str):
        title = row.get("title")
        contents = f'"{title}"\n{row["text"]}' if isinstance(title, str) and title.strip() else row["text"]
    if not isinstance(contents, str) or not contents.strip():
        raise RowError("`contents` (or `text`) must be a text that is not empty")
    return Document(str(document_id), contents)
