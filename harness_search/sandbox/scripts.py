"""Runs a script over a folder that it may read and nothing else: one locked-in process per script.

The cage is the harness's (`backends`), with two doors: files beneath the folder can be opened for reading, and what is
printed comes back, cut to a bound. There is no network, no environment, no other process, and no file to write.
"""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness_search.sandbox.backends import Backend, BackendName, SandboxUnavailable
from harness_search.sandbox.forkserver import job_descriptor, shipped
from harness_search.sandbox.guest.script import LOCK_IN_FAILED
from harness_search.sandbox.limits import MIB

PLACE = "/workspace"
"""Where bubblewrap shows the folder; it is the script's working directory under every backend."""

_SHIPPED = (
    *("harness_search", "harness_search.contract", "harness_search.sandbox", "harness_search.sandbox.guest"),
    *(f"harness_search.sandbox.guest.{name}" for name in ("filters", "kernel", "loading", "script")),
)
_READ_BYTES = 1 << 16
_DRAIN_SECONDS = 2.0


@dataclass(frozen=True)
class ScriptLimits:
    """What one script may use."""

    wall_seconds: float = 30.0
    cpu_seconds: int = 30
    memory_bytes: int = 1024 * MIB
    output_bytes: int = 16 * 1024
    """Of each of the two streams; what comes after is read and forgotten."""

    def of_process(self) -> dict[str, int]:
        return {
            "CORE": 0,
            "FSIZE": 0,
            "NPROC": 0,
            "NOFILE": 64,
            "CPU": self.cpu_seconds,
            "AS": self.memory_bytes,
        }


@dataclass(frozen=True)
class ScriptResult:
    """How a script went.

    Attributes:
        status: "ok", "failed" (an exception or a non-zero exit), "timeout", or "killed" (by a limit).
        stdout, stderr: what it printed, undecodable bytes replaced, cut to the limit.
        cut: whether one of them was cut.
    """

    status: str
    stdout: str
    stderr: str
    cut: bool

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


async def run_script(code: str, directory: Path, backend: Backend, limits: ScriptLimits | None = None) -> ScriptResult:
    """Runs Python text with `directory`, an absolute path, as its read-only working directory.

    Raises:
        SandboxUnavailable: the cage could not be closed; the text did not run.
    """
    limits = limits or ScriptLimits()
    folder = str(directory)
    inside = PLACE if backend.name is BackendName.BUBBLEWRAP else folder
    job = {
        "modules": shipped(_SHIPPED),
        "entry": "harness_search.sandbox.guest.script",
        "code": code,
        "directory": inside,
        "cage": backend.cage().to_json(),
        "limits": limits.of_process(),
    }
    boot = Path(__file__).with_name("guest").joinpath("boot.py").read_text("utf-8")
    job_fd = job_descriptor(job)
    unused, control = socket.socketpair()
    with contextlib.closing(unused), contextlib.closing(control):
        try:
            process = await asyncio.create_subprocess_exec(
                *backend.command(["-c", boot, str(control.fileno()), str(job_fd)], {PLACE: folder}),
                env=backend.environment(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=(control.fileno(), job_fd),
                cwd="/",
                start_new_session=True,
            )
        finally:
            os.close(job_fd)
    return await _finish(process, backend, limits)


async def _finish(process: asyncio.subprocess.Process, backend: Backend, limits: ScriptLimits) -> ScriptResult:
    assert process.stdout is not None
    assert process.stderr is not None
    reading = [asyncio.create_task(read_bounded(s, limits.output_bytes)) for s in (process.stdout, process.stderr)]
    ended = asyncio.create_task(process.wait())
    try:
        await asyncio.wait({ended}, timeout=limits.wall_seconds)
        timed_out = not ended.done()
    finally:
        await end_group(process, ended, reading)
    (stdout, out_cut), (stderr, err_cut) = (_result(task) for task in reading)
    code = process.returncode
    if code == LOCK_IN_FAILED and stderr.startswith("cannot lock itself in"):
        raise SandboxUnavailable(f"the {backend.name} sandbox cannot run a script: {stderr.strip()}")
    if backend.name is BackendName.BUBBLEWRAP and code == 1 and stderr.startswith("bwrap: "):
        raise SandboxUnavailable(f"the bubblewrap sandbox did not come up: {stderr.strip()}")
    if timed_out:
        status = "timeout"
    elif code == 0:
        status = "ok"
    else:
        # bubblewrap reports a signal of its child as 128 + number
        status = "killed" if code is not None and (code < 0 or code > 128) else "failed"
    return ScriptResult(status, stdout, stderr, out_cut or err_cut)


async def end_group(
    process: asyncio.subprocess.Process, ended: "asyncio.Task[int]", reading: Sequence["asyncio.Task[Any]"]
) -> None:
    """Kills a process that leads its own session and whatever stayed in its group, and lets the readers finish.

    A descendant that left the group may hold a pipe open: a reader that does not end in time is cancelled.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    await ended
    _, stuck = await asyncio.wait(reading, timeout=_DRAIN_SECONDS)
    for task in stuck:
        task.cancel()
    if stuck:
        await asyncio.wait(stuck)


async def read_bounded(stream: asyncio.StreamReader, limit: int) -> tuple[str, bool]:
    """Reads a stream to its end and keeps the first `limit` bytes of it; also, whether there were more."""
    kept = bytearray()
    cut = False
    while data := await stream.read(_READ_BYTES):
        room = limit - len(kept)
        cut = cut or len(data) > room
        kept += data[:room]
    return kept.decode("utf-8", "replace"), cut


def _result(task: "asyncio.Task[tuple[str, bool]]") -> tuple[str, bool]:
    return ("", True) if task.cancelled() else task.result()
