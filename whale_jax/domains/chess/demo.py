"""The embedded demo: mates in one and two with few pieces, made by `generate.py` and shipped as rows."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any

from whale_jax.domains.chess.tasks import NAME, parse_row
from whale_jax.domains.task import Split, Task, content_hash

FILE = "demo_puzzles.jsonl"


def demo_rows() -> Iterator[Mapping[str, Any]]:
    """The shipped rows: `fen`, `moves`, `themes`, `split`; already in the order of a seeded hash."""
    text = resources.files("whale_jax.domains.chess").joinpath(FILE).read_text(encoding="utf-8")
    return map(json.loads, text.splitlines())


@functools.cache
def demo_tasks() -> dict[Split, tuple[Task, ...]]:
    """The tasks of each split, in the order of a seeded hash. Every position and move is checked on the way."""
    tasks: dict[Split, list[Task]] = {split: [] for split in Split}
    for row in demo_rows():
        split = Split(row["split"])
        parsed = parse_row(row)
        task_id = f"demo-{content_hash(NAME, parsed.inputs)[:12]}"
        tasks[split].append(Task(task_id, NAME, parsed.inputs, parsed.reference, split))
    return {split: tuple(found) for split, found in tasks.items()}
