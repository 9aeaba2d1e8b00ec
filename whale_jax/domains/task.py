"""Tasks, their splits, and the loading of task files."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations
from pathlib import Path
from typing import Any, TypeVar

from whale_jax.domains.row_files import RowFileError, raw_rows


class TaskError(ValueError):
    """Tasks that a run must not start with; the message says which, where, and what to do."""


class Split(StrEnum):
    """The four disjoint sets of tasks (DESIGN section 4)."""

    WEIGHT = "weight"
    HARNESS = "harness"
    VALIDATION = "validation"
    TEST = "test"


@dataclass(frozen=True)
class Task:
    """One task.

    Attributes:
        id: unique in its domain; part of every sampling key.
        domain: the domain's name.
        inputs: JSON values that the harness sees.
        reference: JSON values that the verifier alone sees.
        split: the set that the task belongs to.
    """

    id: str
    domain: str
    inputs: Mapping[str, Any]
    reference: Mapping[str, Any]
    split: Split


@dataclass(frozen=True)
class BadRow:
    """A row of a file that could not be used. `line` counts from 1."""

    path: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.reason}"


@dataclass(frozen=True)
class ParsedTask:
    """What a domain reads from one row of a task file. Without an id, the content hash serves as one."""

    inputs: Mapping[str, Any]
    reference: Mapping[str, Any]
    id: str | None = None


class RowError(ValueError):
    """Raised by a row parser: the row cannot be used, for the reason given."""


Row = TypeVar("Row")

_SURROGATE = re.compile("[\ud800-\udfff]")


def canonical_json(value: Any) -> str:
    """One spelling of a JSON value, whatever the order of its keys."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def content_hash(domain: str, inputs: Mapping[str, Any]) -> str:
    """Hex digest of what is asked. Case and white space of texts do not count, so near copies meet."""
    plain = {
        key: " ".join(value.casefold().split()) if isinstance(value, str) else value for key, value in inputs.items()
    }
    return hashlib.sha256(f"{domain}\n{canonical_json(plain)}".encode()).hexdigest()[:32]


def read_rows(path: Path, parse: Callable[[Mapping[str, Any]], Row]) -> Iterator[Row | BadRow]:
    """Parses each row of a file with `parse`; a row that fails becomes a `BadRow`, empty lines do not count.

    The file is UTF-8 JSON lines, plain, .gz or .zst, or Parquet (see `row_files`).

    Raises:
        TaskError: the file cannot be read.
    """
    try:
        for number, row in raw_rows(path):
            if isinstance(row, bytes) and not row.strip():
                continue
            try:
                yield parse(_json_object(row) if isinstance(row, bytes) else row)
            except RowError as error:
                yield BadRow(str(path), number, str(error))
    except RowFileError as error:
        raise TaskError(str(error)) from error


def _json_object(line: bytes) -> Mapping[str, Any]:
    try:
        row = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise RowError(f"not UTF-8: byte {error.start}") from error
    except (ValueError, RecursionError) as error:
        raise RowError(f"not JSON: {error}") from error
    if not isinstance(row, dict):
        raise RowError(f"a row must be a JSON object, got {type(row).__name__}")
    if rb"\u" in line and _SURROGATE.search(canonical_json(row)):
        raise RowError("holds a lone surrogate (half of a \\u pair): it is not text")
    return row


def check_bad_rows(bad_rows: Sequence[BadRow], rows: int, max_bad_rows: float) -> None:
    """Raises TaskError when more than the share `max_bad_rows` of a file's `rows` (bad ones included) are bad."""
    if bad_rows and len(bad_rows) > max_bad_rows * rows:
        shown = "; ".join(map(str, bad_rows[:5])) + ("; …" if len(bad_rows) > 5 else "")
        raise TaskError(
            f"{bad_rows[0].path}: {len(bad_rows)} of {rows} rows are bad, more than --max_bad_rows={max_bad_rows:g} "
            f"allows; repair them or raise the flag: {shown}"
        )


@dataclass(frozen=True)
class TaskFile:
    """The usable tasks of a file, the bad rows, and how many rows were left out as copies of others."""

    tasks: list[Task]
    bad_rows: list[BadRow]
    copies: int = 0


def load_tasks(
    path: Path,
    *,
    domain: str,
    split: Split,
    parse: Callable[[Mapping[str, Any]], ParsedTask],
    max_bad_rows: float = 0.0,
) -> TaskFile:
    """Reads a JSONL file of tasks. A repeated id or a repeated content counts as a bad row.

    Raises:
        TaskError: the file cannot be read, holds no task, or more than the share `max_bad_rows` of its rows are bad.
    """
    tasks: list[Task] = []
    bad_rows: list[BadRow] = []
    seen: dict[tuple[str, str], str] = {}

    def to_task(row: Mapping[str, Any]) -> Task:
        parsed = parse(row)
        content = content_hash(domain, parsed.inputs)
        task = Task(parsed.id or content, domain, parsed.inputs, parsed.reference, split)
        for key in (("id", task.id), ("content", content)):
            if key in seen:
                raise RowError(f"same {key[0]} as the earlier task {seen[key]!r}")
        seen["id", task.id] = seen["content", content] = task.id
        return task

    for item in read_rows(path, to_task):
        if isinstance(item, BadRow):
            bad_rows.append(item)
        else:
            tasks.append(item)
    check_bad_rows(bad_rows, len(tasks) + len(bad_rows), max_bad_rows)
    if not tasks:
        raise TaskError(f"{path}: no task in this file")
    return TaskFile(tasks, bad_rows)


def check_disjoint(splits: Mapping[Split, Sequence[Task]], *, allow_overlap: bool = False) -> None:
    """Raises TaskError when two splits share a task, by content or by id.

    `allow_overlap` permits shared content (the paper's Math setting draws D_harness from D_weight), except with
    validation or test, and never the same id for different content.
    """
    contents = {
        split: {content_hash(task.domain, task.inputs): task.id for task in tasks} for split, tasks in splits.items()
    }
    problems = []
    for one, two in combinations(splits, 2):
        held_out = {one, two} & {Split.VALIDATION, Split.TEST}
        shared = sorted(contents[one].keys() & contents[two].keys())
        if shared and (held_out or not allow_overlap):
            examples = ", ".join(contents[one][content] for content in shared[:3])
            problems.append(f"{one} and {two} share {len(shared)} task(s), e.g. {examples}")
        ids_one = {task_id: content for content, task_id in contents[one].items()}
        clashes = sorted(
            task_id for content, task_id in contents[two].items() if ids_one.get(task_id, content) != content
        )
        if clashes:
            problems.append(f"{one} and {two} use the same id for different tasks, e.g. {', '.join(clashes[:3])}")
    if problems:
        raise TaskError(
            "splits overlap: "
            + "; ".join(problems)
            + ". Remove the copies, or pass --allow_overlap for weight and harness"
        )
