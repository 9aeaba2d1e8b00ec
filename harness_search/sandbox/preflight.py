"""The sandbox's check of itself: lets a hostile harness loose in the real worker and reports what it gained."""

import asyncio
import inspect
import os
import platform
import secrets
import socket
import tempfile
from collections.abc import Collection
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from harness_search.contract import Budgets, EndReason, TaskView
from harness_search.sandbox import attempts
from harness_search.sandbox.backends import Backend
from harness_search.sandbox.limits import DEFAULT_LIMITS, Limits
from harness_search.sandbox.scripted import ScriptedHost
from harness_search.sandbox.worker import HarnessWorker

_WALL_SECONDS = 20.0
_HANG_SECONDS = 1.0
_AT_ONCE = 4


class Held(StrEnum):
    """What became of one attempt."""

    DENIED = "denied"
    CONTAINED = "contained"
    """It cost the harness its own episode and nobody else anything."""
    ESCAPED = "escaped"


@dataclass(frozen=True)
class Attempt:
    name: str
    held: Held
    detail: str


@dataclass(frozen=True)
class PreflightReport:
    """What a backend enforces here, and how every attempt against it went."""

    backend: str
    enforced: tuple[str, ...]
    attempts: tuple[Attempt, ...]

    @property
    def escapes(self) -> tuple[str, ...]:
        return tuple(attempt.name for attempt in self.attempts if attempt.held is Held.ESCAPED)

    def to_json(self) -> dict[str, Any]:
        return {
            "backend": self.backend,
            "enforced": list(self.enforced),
            "attempts": [asdict(attempt) for attempt in self.attempts],
            "escapes": list(self.escapes),
        }


def preflight(
    backend: Backend, limits: Limits = DEFAULT_LIMITS, only: Collection[str] | None = None
) -> PreflightReport:
    """Runs every attempt (or those named) in an episode of its own; to be called where no event loop runs.

    Raises:
        SandboxUnavailable: the backend does not come up.
    """
    return asyncio.run(run_attempts(backend, limits, only))


async def run_attempts(
    backend: Backend, limits: Limits = DEFAULT_LIMITS, only: Collection[str] | None = None
) -> PreflightReport:
    """`preflight` inside a running event loop."""
    source = inspect.getsource(attempts)
    slots = asyncio.Semaphore(_AT_ONCE)
    with (
        tempfile.TemporaryDirectory() as folder,
        socket.socket() as listener,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        facts = _prepare(Path(folder), listener, abstract)
        async with await HarnessWorker.start(source, backend=backend, limits=limits) as worker:

            async def attempt(name: str) -> Attempt:
                async with slots:
                    return await _attempt(worker, name, facts)

            names = [name for name in attempts.attempts(facts) if only is None or name in only]
            made = await asyncio.gather(*map(attempt, names))
            return PreflightReport(str(backend.name), worker.enforced, tuple(made))


async def _attempt(worker: HarnessWorker, name: str, facts: dict[str, Any]) -> Attempt:
    host = _Listener()
    wall_seconds = _HANG_SECONDS if name == "never yield" else _WALL_SECONDS
    outcome = await worker.run_episode(
        episode_id=name,
        task=TaskView(name, {"attempt": name, "facts": facts}),
        budgets=Budgets(assistant_tokens=0, turns=0, tool_calls=0, wall_seconds=wall_seconds),
        seed=0,
        host=host,
    )
    if host.heard.startswith("gained"):
        return Attempt(name, Held.ESCAPED, host.heard)
    if host.heard.startswith("denied"):
        return Attempt(name, Held.DENIED, host.heard)
    if outcome.end is EndReason.INFRASTRUCTURE:
        return Attempt(name, Held.ESCAPED, f"took the sandbox down: {outcome.error}")
    if outcome.end is EndReason.TIMEOUT or "the harness process" in (outcome.error or ""):
        return Attempt(name, Held.CONTAINED, f"{outcome.end}: {outcome.error}")
    raise RuntimeError(f"the attempt {name!r} is broken: {outcome}")


class _Listener(ScriptedHost):
    """Hears what the attempt says of itself."""

    def __init__(self) -> None:
        super().__init__([""])
        self.heard = ""

    async def count_tokens(self, text: str) -> int:
        self.heard = text
        return 0


def _prepare(folder: Path, listener: socket.socket, abstract: socket.socket) -> dict[str, Any]:
    """Things within reach of any process that is not locked in."""
    folder.chmod(0o777)
    secret = folder / "secret"
    secret.write_text("reference answers")
    secret.chmod(0o644)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    name = f"preflight-{secrets.token_hex(8)}"
    abstract.bind("\0" + name)
    abstract.listen()
    return {
        "secret": str(secret),
        "target": str(folder / "target"),
        "port": listener.getsockname()[1],
        "abstract": name,
        "pid": os.getpid(),
        "machine": platform.machine(),
    }
