"""The order in which tasks are trained on: one seeded permutation per epoch, over the whole run.

The position outlives cycles and restarts: it is part of every checkpoint and journal entry.
"""

import hashlib
import warnings
from collections.abc import Sequence
from typing import Any


class TaskSampler:
    """Hands out task ids; every epoch holds each task once, in an order made from (seed, epoch, id) alone.

    The order does not depend on the order of the tasks' file, on numpy's generators, or on the batch sizes asked for,
    with one exception: where a batch crosses the end of an epoch, the tasks it already holds come last in the new one,
    so that no batch holds a task twice (its samples would have the same keys, hence be copies).
    """

    def __init__(self, task_ids: Sequence[str], *, seed: int) -> None:
        """Starts at the first task of epoch 0.

        Raises:
            ValueError: no tasks, or an id that occurs twice.
        """
        self._ids = tuple(sorted(task_ids))
        if not self._ids:
            raise ValueError("task sampler: there are no tasks")
        twice = sorted({first for first, second in zip(self._ids, self._ids[1:], strict=False) if first == second})
        if twice:
            raise ValueError(f"task sampler: {len(twice)} task ids occur more than once, the first is {twice[0]!r}")
        self._seed = seed
        self._start_epoch(0, ())

    def __len__(self) -> int:
        """Tasks in an epoch."""
        return len(self._ids)

    @property
    def epochs(self) -> float:
        """Epochs handed out so far, fractions included."""
        return self._epoch + self._position / len(self._ids)

    def next(self, count: int) -> list[str]:
        """The next `count` ids, all different.

        Raises:
            ValueError: `count` is not between 1 and the number of tasks.
        """
        if not 1 <= count <= len(self._ids):
            raise ValueError(
                f"task sampler: asked for {count} different tasks of {len(self._ids)}; lower --prompts_per_step or "
                "give more tasks"
            )
        batch = list(self._order[self._position : self._position + count])
        self._position += len(batch)
        if self._position == len(self._ids):
            self._start_epoch(self._epoch + 1, tuple(batch) if len(batch) < count else ())
            rest = self._order[: count - len(batch)]
            self._position = len(rest)
            batch += rest
        return batch

    def state_dict(self) -> dict[str, Any]:
        """The position as JSON: together with the tasks and the seed it decides all that follows."""
        return {
            "epoch": self._epoch,
            "position": self._position,
            "deferred": list(self._deferred),
            "seed": self._seed,
            "tasks": self._fingerprint(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Continues at a position from `state_dict`.

        A position in other tasks means nothing here: then the sampler starts at epoch 0 and says so in a warning.

        Raises:
            ValueError: the state was made with another seed, or is no position.
        """
        if state["seed"] != self._seed:
            raise ValueError(f"task sampler: the saved position has seed {state['seed']}, this run has {self._seed}")
        if state["tasks"] != self._fingerprint():
            warnings.warn(
                "task sampler: the tasks are not those of the saved position; starting at epoch 0", stacklevel=2
            )
            self._start_epoch(0, ())
            return
        if state["epoch"] < 0 or not 0 <= state["position"] < len(self._ids):
            raise ValueError(f"task sampler: no such position: epoch {state['epoch']}, task {state['position']}")
        self._start_epoch(state["epoch"], tuple(state["deferred"]))
        self._position = state["position"]

    def _start_epoch(self, epoch: int, deferred: tuple[str, ...]) -> None:
        self._epoch, self._position, self._deferred = epoch, 0, deferred
        late = set(deferred)
        self._order = sorted(self._ids, key=lambda task: (task in late, _place(self._seed, epoch, task)))

    def _fingerprint(self) -> str:
        return hashlib.sha256("\0".join(self._ids).encode()).hexdigest()


def _place(seed: int, epoch: int, task: str) -> bytes:
    """A task's sort key in an epoch: a uniformly random permutation that no library version can change."""
    return hashlib.blake2b(f"{seed}/{epoch}/{task}".encode(), digest_size=16).digest()
