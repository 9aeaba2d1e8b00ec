"""Host side of the fork server: starts it in a backend, asks it for children, hears of their ends."""

import array
import asyncio
import json
import os
import socket
import struct
import subprocess
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness_search
from harness_search.contract import HarnessError
from harness_search.sandbox.backends import Backend, BackendName, SandboxUnavailable
from harness_search.sandbox.limits import Limits

SHIPPED = (
    "harness_search",
    "harness_search.contract",
    "harness_search.sandbox",
    *(f"harness_search.sandbox.guest{name}" for name in ("", ".filters", ".kernel", ".channel", ".api", ".loading")),
    *("harness_search.sandbox.guest.child", "harness_search.sandbox.guest.server"),
)
_CLOSE_SECONDS = 2.0


@dataclass(frozen=True)
class Exit:
    """How a child ended: its wait status (None when it never ran, or the server is gone) and its computing time."""

    status: int | None
    cpu_seconds: float
    fault: str | None = None


class Child:
    """One forked process; `exited` resolves when the server has reaped it."""

    def __init__(self, number: int, exited: "asyncio.Future[Exit]") -> None:
        self.number = number
        self.exited = exited


class ForkServer:
    """A warm, locked-in process that holds one compiled harness. Lives on the event loop that started it."""

    def __init__(self, process: "subprocess.Popen[bytes]", control: socket.socket, stderr_fd: int) -> None:
        self._process = process
        self._control = control
        self._stderr_fd = stderr_fd
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[tuple[dict[str, Any], int]] = self._loop.create_future()
        self._children: dict[int, Child] = {}
        self._next = 0
        self._outbox: deque[tuple[bytes, socket.socket | None]] = deque()
        self.alive = True
        self.enforced: tuple[str, ...] = ()
        self._loop.add_reader(control.fileno(), self._readable)

    @classmethod
    async def start(cls, source: str, backend: Backend, limits: Limits) -> "ForkServer":
        """Starts the process and waits until it has locked itself in.

        Raises:
            HarnessError: the source does not compile.
            SandboxUnavailable: the process did not come up, or is not as locked in as the backend promises.
        """
        cage = backend.cage()
        job = {
            "modules": shipped(SHIPPED),
            "entry": "harness_search.sandbox.guest.server",
            "source": source,
            "cage": cage.to_json(),
            "server_limits": limits.of_server(),
            "child_limits": limits.of_child(),
        }
        server = cls(*launch(backend, job))
        try:
            ready, uid = await asyncio.wait_for(asyncio.shield(server._ready), limits.start_seconds)
            if "error" in ready:
                raise HarnessError(ready["error"])
            if "fault" in ready:
                raise SandboxUnavailable(f"the {backend.name} sandbox did not come up: {ready['fault']}")
            if backend.name is not BackendName.NONE and backend.as_root and uid != cage.uid:
                raise SandboxUnavailable(f"the {backend.name} sandbox still runs as host user {uid}, not {cage.uid}")
            server.enforced = (*namespaces(backend), *ready["enforced"])
        except TimeoutError:
            await server.close()
            raise SandboxUnavailable(
                f"the {backend.name} sandbox did not come up in {limits.start_seconds} s"
            ) from None
        except BaseException:
            await server.close()
            raise
        return server

    def fork(self, channel: socket.socket) -> Child:
        """Asks for a child that serves `channel`, which is closed here once it is sent."""
        child = Child(self._next, self._loop.create_future())
        self._next += 1
        if not self.alive:
            channel.close()
            child.exited.set_result(Exit(None, 0.0, "the sandbox server is gone"))
            return child
        self._children[child.number] = child
        self._outbox.append((struct.pack("!cQ", b"F", child.number), channel))
        self._flush()
        return child

    def kill(self, child: Child) -> None:
        """Ends a child and whatever it started; does nothing when it has ended."""
        if self.alive and not child.exited.done():
            self._outbox.append((struct.pack("!cQ", b"K", child.number), None))
            self._flush()

    async def close(self) -> None:
        """Ends the server and all its children."""
        self._gone("the sandbox was closed")
        try:
            await asyncio.to_thread(self._process.wait, _CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)

    def _flush(self) -> None:
        while self._outbox:
            packet, channel = self._outbox[0]
            ancillary = []
            if channel is not None:
                ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [channel.fileno()]))]
            try:
                self._control.sendmsg([packet], ancillary)
            except BlockingIOError:
                self._loop.add_writer(self._control.fileno(), self._flush)
                return
            except OSError as error:
                self._gone(f"the sandbox server cannot be reached: {error}")
                return
            if channel is not None:
                channel.close()
            self._outbox.popleft()
        self._loop.remove_writer(self._control.fileno())

    def _readable(self) -> None:
        try:
            packet, ancillary, _, _ = self._control.recvmsg(1 << 16, socket.CMSG_SPACE(struct.calcsize("3i")))
        except BlockingIOError:
            return
        except OSError as error:
            self._gone(f"the sandbox server cannot be reached: {error}")
            return
        if not packet:
            self._gone("the sandbox server died")
            return
        message = json.loads(packet)
        if "ready" in message:
            uid = next(
                (struct.unpack("3i", data)[1] for _, kind, data in ancillary if kind == socket.SCM_CREDENTIALS), -1
            )
            if not self._ready.done():
                self._ready.set_result((message, uid))
            return
        child = self._children.pop(message["exit"], None)
        if child is not None and not child.exited.done():
            child.exited.set_result(Exit(message["status"], message["cpu"], message.get("fault")))

    def _gone(self, why: str) -> None:
        if not self.alive:
            return
        self.alive = False
        self._loop.remove_reader(self._control.fileno())
        self._loop.remove_writer(self._control.fileno())
        self._control.close()
        os.lseek(self._stderr_fd, 0, os.SEEK_SET)
        last = os.read(self._stderr_fd, 1 << 16).decode("utf-8", "replace").strip().splitlines()[-1:]
        os.close(self._stderr_fd)
        detail = f"{why} ({last[0]})" if last else why
        for _, channel in self._outbox:
            if channel is not None:
                channel.close()
        self._outbox.clear()
        if not self._ready.done():
            self._ready.set_result(({"ready": False, "fault": detail}, -1))
        for child in self._children.values():
            if not child.exited.done():
                child.exited.set_result(Exit(None, 0.0, detail))
        self._children.clear()


def launch(
    backend: Backend, job: dict[str, Any], *, folders: Mapping[str, str] | None = None
) -> tuple["subprocess.Popen[bytes]", socket.socket, int]:
    """Starts the process; returns it with the host's end of the control socket and what its stderr is written to.

    `folders`: see `Backend.command`.
    """
    boot = Path(__file__).with_name("guest").joinpath("boot.py").read_text("utf-8")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    ours.setblocking(False)
    job_fd, stderr_fd = job_descriptor(job), os.memfd_create("stderr")
    try:
        process = subprocess.Popen(
            backend.command(["-c", boot, str(theirs.fileno()), str(job_fd)], folders),
            env=backend.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr_fd,
            pass_fds=(theirs.fileno(), job_fd),
            cwd="/",
        )
    except BaseException:
        ours.close()
        os.close(stderr_fd)
        raise
    finally:
        os.close(job_fd)
        theirs.close()
    return process, ours, stderr_fd


def job_descriptor(job: Mapping[str, Any]) -> int:
    """A file in memory that holds a job, for a process to inherit; the caller closes it."""
    fd = os.memfd_create("job")
    with open(fd, "wb", closefd=False) as file:
        file.write(json.dumps(job).encode())
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def shipped(names: Sequence[str]) -> dict[str, str]:
    """Source texts of this package's modules, by name, as a job carries them."""
    return {name: _source_of(name) for name in names}


def _source_of(module: str) -> str:
    base = Path(harness_search.__file__).parent.joinpath(*module.split(".")[1:])
    path = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
    return path.read_text("utf-8")


def namespaces(backend: Backend) -> tuple[str, ...]:
    """What the backend puts around a process before it starts, in words."""
    if backend.name is not BackendName.BUBBLEWRAP:
        return ()
    names = ("mount", "pid", "network", "ipc", "uts", *(() if backend.as_root else ("user",)))
    return ("read-only file system of the interpreter alone", *(f"{name} namespace" for name in names))
