"""Watches an agent's process: its time, what it writes, what it prints, and how it ends."""

from __future__ import annotations

import asyncio
import math
import os
import re
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import TYPE_CHECKING

from harness_search.proposers.base import ProposerUsage
from harness_search.proposers.redact import Redactor
from harness_search.sandbox.guest.agent import NOT_STARTED
from harness_search.sandbox.scripts import end_group

if TYPE_CHECKING:
    from harness_search.proposers.command import CommandSettings

MAX_ENTRIES = 10_000
MAX_BYTES = 256 * 1024 * 1024
_LINGER_SECONDS = 60.0
_PIECE = 1 << 16
_ERROR_CHARS = 500
_MAX_COST_BYTES = 1 << 20


class Watch:
    """One agent. `looks` first; the other attributes are right once it has ended.

    Attributes:
        all_filled: set by the caller: every slot is taken, and the agent gets a minute to end.
        problem: why the session failed; None when it did not.
        status: the exit status, negative for a signal.
        stdout, stderr: the last part of its output, secrets cut out.
    """

    def __init__(
        self, process: asyncio.subprocess.Process, slots: Path, settings: CommandSettings, redact: Redactor
    ) -> None:
        self._process, self._slots, self._settings, self._redact = process, slots, settings, redact
        self._limit = settings.output_bytes
        self.all_filled = False
        self.problem: str | None = None
        self.status: int | None = None
        self.stdout = self.stderr = ""

    @property
    def not_started(self) -> bool:
        """Whether the program could not be run at all."""
        return self.status == NOT_STARTED and self.stderr.startswith("cannot start")

    async def looks(self) -> AsyncGenerator[bool, None]:
        """Yields False whenever it is time to look at the slots, and True once after the end."""
        process, settings = self._process, self._settings
        assert process.stdout is not None
        assert process.stderr is not None
        # A few more bytes than are kept, so that a secret which the cut goes through is whole when it is looked for.
        kept = self._limit + self._redact.longest * 4
        reading = [asyncio.create_task(read_tail(stream, kept)) for stream in (process.stdout, process.stderr)]
        ended = asyncio.create_task(process.wait())
        try:
            deadline = time.monotonic() + settings.seconds
            filled_at: float | None = None
            while not ended.done():
                left = deadline - time.monotonic()
                if left <= 0:
                    self.problem = f"the agent was stopped at its limit of {settings.seconds:g} s"
                    break
                if self._wrote_too_much():
                    self.problem = f"the agent wrote more than {MAX_ENTRIES} files or {MAX_BYTES} bytes into its slots"
                    break
                await asyncio.wait({ended}, timeout=min(left, settings.look_seconds))
                yield False
                if self.all_filled:
                    filled_at = filled_at or time.monotonic()
                    if time.monotonic() - filled_at > _LINGER_SECONDS:
                        break
            stopped = not ended.done()
        finally:
            await end_group(process, ended, reading)
        self.status = process.returncode
        texts = [b"" if task.cancelled() else task.result() for task in reading]
        self.stdout, self.stderr = (self._shown(text) for text in texts)
        if not stopped and self.status:
            self.problem = f"the agent ended with status {self.status}: {self.stderr.strip()[-_ERROR_CHARS:]}"
        yield True

    def _shown(self, data: bytes) -> str:
        return self._redact(data.decode("utf-8", "replace"))[-self._limit :]

    def _wrote_too_much(self) -> bool:
        entries = size = 0
        for folder, folders, files in os.walk(self._slots):
            entries += len(folders) + len(files)
            for name in files:
                try:
                    size += os.lstat(os.path.join(folder, name)).st_size
                except OSError:
                    continue  # it was removed in the meantime
            if entries > MAX_ENTRIES or size > MAX_BYTES:
                return True
        return False


async def read_tail(stream: asyncio.StreamReader, limit: int) -> bytes:
    """Reads a stream to its end and keeps the last `limit` bytes of it."""
    kept = bytearray()
    while data := await stream.read(_PIECE):
        kept += data
        if len(kept) > 2 * limit:
            del kept[:-limit]
    return bytes(kept[-limit:])


def read_cost(settings: CommandSettings, stdout: str, stderr: str, slots: Path) -> ProposerUsage:
    """What the agent says it used, where the settings say it stands."""
    unknown = ProposerUsage(calls=1, dollars=None, calls_without_usage=1)
    if settings.cost_pattern is None:
        return unknown
    texts = {"stdout": stdout, "stderr": stderr}
    text = texts[settings.cost_from] if settings.cost_from in texts else _file(slots / settings.cost_from)
    matches = list(re.finditer(settings.cost_pattern, text))
    if not matches:
        return unknown
    said = {name: _number(value) for name, value in matches[-1].groupdict().items()}
    dollars, received, written = (said.get(name) for name in ("dollars", "input_tokens", "output_tokens"))
    silent = received is None and written is None and dollars is None
    return ProposerUsage(1, int(received or 0), int(written or 0), dollars, 0, int(silent))


def _file(path: Path) -> str:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return ""
    with open(fd, "rb") as file:
        return file.read(_MAX_COST_BYTES).decode("utf-8", "replace")


def _number(text: str | None) -> float | None:
    try:
        value = float((text or "").replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None
