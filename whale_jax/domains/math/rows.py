r"""Math problems in the layouts of the public sets, from JSONL or Parquet, without their many copies.

| layout | problem | answer |
|---|---|---|
| DAPO-Math-17k | `prompt`: a list of messages, the problem between two instructions | `reward_model.ground_truth` |
| its processed form | `prompt`: a text | `solution`, or `reward_model.ground_truth` |
| AIME (any year) | `problem`, `Problem`, `question` | `answer`, `Answer` |

The first set repeats each problem about a hundred times: copies are dropped and counted. A copy with another answer is
a bad row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from whale_jax.domains.task import (
    BadRow,
    ParsedTask,
    RowError,
    TaskError,
    check_bad_rows,
    content_hash,
    read_rows,
)

NAME = "math"
SUFFIXES = (".jsonl", ".parquet")
_BATCH = 2048
_PROBLEM_KEYS = ("problem", "Problem", "question", "Question")
_ANSWER_KEYS = ("answer", "Answer")
_ID_KEYS = ("id", "ID")
_BEFORE = re.compile(r"^Solve the following math problem step by step\..*?\n\s*\n", re.DOTALL)
_AFTER = re.compile(r"\n\s*\nRemember to put your answer on its own line after \"Answer:\"\.\s*$")

Row = TypeVar("Row")


@dataclass(frozen=True)
class ProblemFile:
    """The distinct problems of a file, how many further copies it holds, and the rows that were left out."""

    problems: list[ParsedTask]
    copies: int
    bad_rows: list[BadRow]


def parse_row(row: Mapping[str, Any]) -> ParsedTask:
    """A row in any of the layouts above.

    Raises:
        RowError: the problem or its answer is missing, empty or of a wrong kind.
    """
    return ParsedTask({"question": _problem(row)}, {"answer": _answer(row)}, _id(row))


def read_problems(path: Path, *, max_bad_rows: float = 0.0) -> ProblemFile:
    """Reads a file of problems, the first of several copies each.

    Raises:
        TaskError: the file cannot be read, is of another kind, holds no problem, or more than the share `max_bad_rows`
            of its rows are bad.
    """
    answers: dict[str, str] = {}

    def parse(row: Mapping[str, Any]) -> ParsedTask | None:
        """None: a copy."""
        problem = parse_row(row)
        content, answer = content_hash(NAME, problem.inputs), problem.reference["answer"]
        if content not in answers:
            answers[content] = answer
            return problem
        if answers[content] != answer:
            raise RowError("the same problem as an earlier row, with another answer")
        return None

    copies = 0
    problems: list[ParsedTask] = []
    bad_rows: list[BadRow] = []
    for item in _rows(path, parse):
        if isinstance(item, BadRow):
            bad_rows.append(item)
        elif item is None:
            copies += 1
        else:
            problems.append(item)
    check_bad_rows(bad_rows, len(problems) + copies + len(bad_rows), max_bad_rows)
    if not problems:
        raise TaskError(f"{path}: no problem in this file")
    return ProblemFile(problems, copies, bad_rows)


def find_file(folder: Path, stem: str) -> Path:
    """`stem` with one of the suffixes that can be read.

    Raises:
        TaskError: there is none.
    """
    for suffix in SUFFIXES:
        path = folder / f"{stem}{suffix}"
        if path.is_file():
            return path
    raise TaskError(f"{folder}: neither {' nor '.join(stem + suffix for suffix in SUFFIXES)} is there")


def _rows(path: Path, parse: Callable[[Mapping[str, Any]], Row]) -> Iterator[Row | BadRow]:
    if path.suffix == ".jsonl":
        return read_rows(path, parse)
    if path.suffix == ".parquet":
        return _parquet_rows(path, parse)
    raise TaskError(f"{path}: the name must end in {' or '.join(SUFFIXES)}")


def _parquet_rows(path: Path, parse: Callable[[Mapping[str, Any]], Row]) -> Iterator[Row | BadRow]:
    """Rows of a Parquet file, a batch in memory at a time; the line of a bad one is its number, from 1."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise TaskError(
            f"{path}: reading Parquet needs pyarrow; install it (pip install pyarrow), or convert the file to JSONL"
        ) from error
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_BATCH):
                for row in batch.to_pylist():
                    number += 1
                    try:
                        yield parse(row)
                    except RowError as error:
                        yield BadRow(str(path), number, str(error))
    except (OSError, ArrowException) as error:
        raise TaskError(f"{path}: cannot be read as Parquet after row {number}: {error}") from error


def _problem(row: Mapping[str, Any]) -> str:
    found = next((row[key] for key in _PROBLEM_KEYS if row.get(key) is not None), row.get("prompt"))
    if isinstance(found, list):
        texts = [message.get("content") for message in found if isinstance(message, dict) and _is_user(message)]
        found = texts[-1] if texts else None
    if not isinstance(found, str):
        raise RowError(f"no problem: one of {', '.join((*_PROBLEM_KEYS, 'prompt'))} must be a text (or messages)")
    text = _AFTER.sub("", _BEFORE.sub("", found.strip(), count=1)).strip()
    if not text:
        raise RowError("the problem is empty")
    return text


def _is_user(message: Mapping[str, Any]) -> bool:
    return message.get("role") == "user"


def _answer(row: Mapping[str, Any]) -> str:
    reward_model = row.get("reward_model")
    found = next((row[key] for key in _ANSWER_KEYS if row.get(key) is not None), None)
    if found is None and isinstance(reward_model, dict):
        found = reward_model.get("ground_truth")
    if found is None and isinstance(row.get("prompt"), str):
        found = row.get("solution")
    if isinstance(found, float) and found.is_integer():
        found = int(found)
    if isinstance(found, bool) or not isinstance(found, str | int | float):
        raise RowError("no answer: `answer`, `Answer` or `reward_model.ground_truth` must be a text or a number")
    text = str(found).strip()
    if not text:
        raise RowError("the answer is empty")
    if text.count("{") != text.count("}"):
        raise RowError(f"the answer has unbalanced braces: {text[:60]!r}")
    return text


def _id(row: Mapping[str, Any]) -> str | None:
    found = next((row[key] for key in _ID_KEYS if row.get(key) is not None), None)
    if found is None and isinstance(row.get("extra_info"), dict):
        found = row["extra_info"].get("index")
    return None if found is None or str(found) == "" else str(found)
