"""Rows of question-answering sets, in the layouts in which the field passes them on.

| layout | question | accepted answers | id |
|---|---|---|---|
| prepared sets (JSONL) | `question` | `golden_answers` | `id` |
| NQ-open, TriviaQA | `question` | `answer`: a list, or `{"value", "aliases"}` | |
| HotpotQA, 2WikiMultihopQA | `question` | `answer` | `_id` |
| MuSiQue | `question` | `answer`, then `answer_aliases` | `id` |
| PopQA | `question` | `possible_answers`: a list, or one as JSON text | `id` |
| training sets for verifiers (Parquet) | `question` | `golden_answers`, or `reward_model.ground_truth.target` | `id` |

The primary answer comes first and stays among the accepted ones, whatever the aliases are worth (cases D111, D112).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from whale_jax.domains.task import ParsedTask, RowError

MAX_QUESTION_CHARS = 8_000


def parse_row(row: Mapping[str, Any]) -> ParsedTask:
    """A row as a task: the question is the input, the answers and the set's name (`data_source`) are the reference.

    Raises:
        RowError: the question or every answer is missing or empty, or the id is no string or whole number.
    """
    question = row.get("question")
    if not isinstance(question, str) or not question.strip():
        raise RowError("`question` must be a text that is not empty")
    if len(question) > MAX_QUESTION_CHARS:
        raise RowError(f"`question` has {len(question)} characters, more than {MAX_QUESTION_CHARS}")
    answers = accepted_answers(row)
    reference: dict[str, Any] = {"answers": answers}
    source = row.get("data_source")
    if isinstance(source, str) and source:
        reference["set"] = source
    row_id = row.get("id", row.get("_id"))
    if row_id is not None and (not isinstance(row_id, str | int) or isinstance(row_id, bool)):
        raise RowError("`id` must be a string or a whole number")
    return ParsedTask({"question": question.strip()}, reference, None if row_id is None else str(row_id))


def accepted_answers(row: Mapping[str, Any]) -> list[str]:
    """The accepted answers of a row, stripped, without repeats, the primary one first. Raises RowError."""
    for name in ("golden_answers", "answers", "answer", "possible_answers", "reward_model"):
        if row.get(name) is not None:
            texts = _texts(name, row[name])
            break
    else:
        raise RowError("`golden_answers` (or `answers`, `answer`, `possible_answers`) is missing")
    if name == "answer" and row.get("answer_aliases") is not None:
        texts += _texts("answer_aliases", row["answer_aliases"])
    usable = list(dict.fromkeys(text.strip() for text in texts if text.strip()))
    if not usable:
        raise RowError(f"`{name}` holds no answer that is not empty (`golden_answers` expected)")
    return usable


def _texts(name: str, value: Any) -> list[str]:
    """The texts under `name`, whichever of the layouts it has."""
    if name == "reward_model":
        truth = value.get("ground_truth") if isinstance(value, Mapping) else None
        value = truth.get("target") if isinstance(truth, Mapping) else truth
    elif name == "possible_answers" and isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise RowError(f"`{name}` is no JSON list: {error}") from error
    elif isinstance(value, Mapping) and "value" in value:
        value = [value["value"], *(value.get("aliases") or [])]
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise RowError(f"`{name}` must be a text or a list of texts (`golden_answers` expected)")
    return list(texts)
