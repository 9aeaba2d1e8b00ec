r"""Math problems in the layouts of the public sets, without their many copies. Files are those of `row_files`.

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
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
_PROBLEM_KEYS = ("problem", "Problem", "question", "Question")
_ANSWER_KEYS = ("answer", "Answer")
_ID_KEYS = ("id", "ID")
_BEFORE = re.compile(r"^Solve the following math problem step by step\..*?\n\s*\n", re.DOTALL)
_AFTER = re.compile(r"\n\s*\nRemember to put your answer on its own line after \"Answer:\"\.\s*$")


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
        TaskError: the file cannot be read, holds no problem, or more than the share `max_bad_rows` of its rows are bad.
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
    for item in read_rows(path, parse):
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
