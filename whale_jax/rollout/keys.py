"""Sampling keys: what an episode samples is a pure function of who asks, never of when or beside whom."""

from __future__ import annotations

import hashlib


def sampling_key(
    run_seed: int, purpose: str, cycle: int, step: int, task_id: str, sample: int, chat: int, turn: int
) -> tuple[int, int]:
    """Two uint32 words for one assistant turn; the engine folds in the absolute position of each token.

    BLAKE2b over the fields, each written with its length, so that no two different tuples give the same message.

    Args:
        run_seed: the run's seed.
        purpose: what the rollout is for (`train`, `search`, `validation`, `test`, …).
        cycle: cycle of the alternation.
        step: weight step or search iteration.
        task_id: the task's id.
        sample: ordinal within the group.
        chat: ordinal of the chat in the episode.
        turn: ordinal of the assistant turn in the chat; a turn that is extended keeps its key.
    """
    return _words((run_seed, purpose, cycle, step, task_id, sample, chat, turn))


def harness_seed(run_seed: int, purpose: str, cycle: int, step: int, task_id: str, sample: int) -> int:
    """Seed (uint32) for the harness child's own `random`, from the episode's part of the key."""
    return _words((run_seed, purpose, cycle, step, task_id, sample, "harness"))[0]


def _words(fields: tuple[int | str, ...]) -> tuple[int, int]:
    digest = hashlib.blake2b(digest_size=8)
    for value in fields:
        data = str(value).encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    raw = digest.digest()
    return int.from_bytes(raw[:4], "little"), int.from_bytes(raw[4:], "little")
