"""The main job, which kills itself at a boundary: `python -m tests.whale_jax.struck BOUNDARY NUMBER [flags]`.

A real SIGKILL, right after the boundary was crossed for the NUMBER-th time in this job; nothing else is replaced.
"""

import contextlib
import functools
import inspect
import os
import signal
import sys
from typing import Any

import orbax.checkpoint as ocp

import whale_jax.hand_over
import whale_jax.run
from harness_search.proposers.offline import OfflineProposer
from whale_jax.main import main
from whale_jax.policy import Policy

BOUNDARIES: dict[str, tuple[Any, str]] = {
    "evaluated": (whale_jax.run, "write_evidence"),
    "trained": (Policy, "train"),
    "checkpoint written": (ocp.Checkpointer, "save"),
    "proposed": (OfflineProposer, "propose"),
    "exported": (whale_jax.hand_over, "export_checkpoint"),
}
"""What was just done; its journal entry, its rename or its manifest is still to come."""


def arm(boundary: str, number: int) -> None:
    """Puts the kill in its place."""
    owner, name = BOUNDARIES[boundary]
    original, left = getattr(owner, name), [number]

    def crossed() -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    if inspect.isasyncgenfunction(original):

        @functools.wraps(original)
        async def items(*args: Any, **kwargs: Any) -> Any:
            async with contextlib.aclosing(original(*args, **kwargs)) as found:
                async for item in found:
                    yield item
                    crossed()

        setattr(owner, name, items)
        return

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        crossed()
        return result

    setattr(owner, name, call)


if __name__ == "__main__":
    arm(sys.argv[1], int(sys.argv[2]))
    sys.exit(main([sys.argv[0], *sys.argv[3:]]))
