"""Requests and traces between processes: the complete JSON form of a trace, compressed.

A trace of 8,000 tokens is about 250 kB of JSON and a third of that on the wire; a float's decimal form is exact.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import zstandard

from whale_jax.domains.task import Split, Task
from whale_jax.rollout.runner import EpisodeRequest
from whale_jax.rollout.trace import Trace

_LEVEL = 1


def packed(traces: Sequence[Trace]) -> bytes:
    """Traces as bytes."""
    return zstandard.compress(json.dumps([trace.to_json() for trace in traces]).encode(), _LEVEL)


def unpacked(data: bytes | bytearray) -> list[Trace]:
    """The inverse of `packed`."""
    return [Trace.from_json(item) for item in json.loads(zstandard.decompress(data))]


def request_to_json(request: EpisodeRequest) -> dict[str, Any]:
    """A request by its task's name: every process has read the same tasks."""
    task = request.task
    return {
        "split": task.split.value, "task": task.id, "sample": request.sample, "purpose": request.purpose,
        "cycle": request.cycle, "step": request.step,
    }  # fmt: skip


class Requests:
    """Finds the tasks that requests of another process name."""

    def __init__(self, splits: Mapping[Split, Sequence[Task]]) -> None:
        self._tasks = {(split.value, task.id): task for split, tasks in splits.items() for task in tasks}

    def read(self, data: Mapping[str, Any]) -> EpisodeRequest:
        """The inverse of `request_to_json`."""
        return EpisodeRequest(
            task=self._tasks[data["split"], data["task"]], sample=data["sample"], purpose=data["purpose"],
            cycle=data["cycle"], step=data["step"],
        )  # fmt: skip
