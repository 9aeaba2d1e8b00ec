"""Tasks: how many of a smaller unit are so many of a larger one."""

from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from typing import Any

from whale_jax.domains.splits import Splits
from whale_jax.domains.task import ParsedTask, RowError, Split, Task, content_hash

NAME = "units"
FACTORS = {
    ("feet", "inches"): 12, ("yards", "feet"): 3, ("yards", "inches"): 36, ("miles", "feet"): 5280,
    ("miles", "yards"): 1760, ("kilometres", "metres"): 1000, ("metres", "centimetres"): 100,
    ("weeks", "days"): 7, ("days", "hours"): 24, ("hours", "minutes"): 60, ("hours", "seconds"): 3600,
    ("minutes", "seconds"): 60, ("stones", "pounds"): 14, ("pounds", "ounces"): 16,
}  # fmt: skip
AMOUNTS = range(2, 22)
SHARES = {Split.WEIGHT: 0.4, Split.HARNESS: 0.6, Split.VALIDATION: 0.8, Split.TEST: 1.0}
"""Where each split ends, as a share of all tasks."""


def parse_row(row: Mapping[str, Any]) -> ParsedTask:
    """A row of a task file: `question` and `answer`, a whole number. Raises RowError."""
    question, answer = row.get("question"), row.get("answer")
    if not isinstance(question, str) or not question.strip():
        raise RowError("`question` must be a text")
    if not isinstance(answer, int):
        raise RowError("`answer` must be a whole number")
    return ParsedTask({"question": question}, {"answer": answer}, row.get("id"))


@cache
def demo_tasks() -> Splits:
    """280 tasks, cut into the splits and ordered by a hash."""
    rows = [
        {"question": f"How many {small} are {amount} {large}?", "answer": amount * factor}
        for (large, small), factor in FACTORS.items()
        for amount in AMOUNTS
    ]
    parsed = sorted(map(parse_row, rows), key=lambda one: sha256(one.inputs["question"].encode()).digest())
    splits: dict[Split, list[Task]] = {split: [] for split in Split}
    for place, one in enumerate(parsed):
        split = next(split for split, end in SHARES.items() if place < end * len(parsed))
        splits[split].append(Task(content_hash(NAME, one.inputs), NAME, one.inputs, one.reference, split))
    return splits
