"""Corpora as files of any size: rows as a stream, in the layouts that are found in the field."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from whale_jax.domains.searchqa.corpus import Document
from whale_jax.domains.task import BadRow, RowError, read_rows


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
