"""Sessions of the gemini proposer with a local server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness_search.archive import Archive
from harness_search.proposers.gemini import GeminiProposer, GeminiSettings
from harness_search.proposers.limits import SessionLimits
from harness_search.proposers.tool_loop import Retries
from harness_search.records import IterationRecord
from harness_search.sandbox.backends import Backend
from tests.harness_search.gemini_server import (
    Behaviour,
    Server,
    drip,
    hang,
    reply,
    serving,
    write,
)
from tests.harness_search.small_search import check

BOTH = reply(write("A = 0 + 1\n"), write("A = 3\n"))
RETRIES = Retries(attempts=3, call_seconds=20.0, first_delay=0.0, longest_delay=5.0)
LIMITS = SessionLimits()


@contextmanager
def gemini(
    backend: Backend, behaviours: Sequence[Behaviour], limits: SessionLimits = LIMITS, **more: Any
) -> Iterator[tuple[Server, GeminiProposer]]:
    with serving(behaviours) as server:
        settings = GeminiSettings("gemini-test", base_url=server.url, thinking_level=more.pop("thinking_level", "low"))
        yield (
            server,
            GeminiProposer(
                settings,
                manual="THE MANUAL",
                skill="THE SKILL",
                backend=backend,
                check=check,
                limits=limits,
                **{"retries": RETRIES, **more},
            ),
        )


def patience(behaviour: Behaviour, seconds: float) -> Retries:
    """A wait of `seconds` where the server never answers, and a long one where it does."""
    return replace(RETRIES, call_seconds=seconds) if behaviour in (hang, drip) else RETRIES


def last(directory: Path) -> IterationRecord:
    return Archive(directory).iterations[-1]
