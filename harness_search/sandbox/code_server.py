"""Host side of the code interpreter's warm parent: starts it in a backend, and holds one call at a time per thread.

Nothing here needs an event loop, so one server serves whoever asks: episodes of an asyncio loop through a thread, and
verifiers that run in threads anyway.
"""

import array
import contextlib
import importlib.metadata
import importlib.util
import json
import os
import select
import socket
import struct
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Any

from harness_search.sandbox.backends import Backend, BackendName, SandboxUnavailable
from harness_search.sandbox.forkserver import SHIPPED, launch, namespaces, shipped
from harness_search.sandbox.guest.code_child import READY
from harness_search.sandbox.limits import MIB

_ALSO_SHIPPED = ("harness_search.sandbox.guest.code_child", "harness_search.sandbox.guest.code_server")
_INSIDE = "/packages"
_CLOSE_SECONDS = 2.0
_KILL_SECONDS = 10.0
_CHUNK = 1 << 16


@dataclass(frozen=True)
class CodeLimits:
    """What one call, and the server that forks it, may use of the machine.

    Attributes:
        cpu_seconds: computing time of a call. It decides, for it does not depend on load.
        wall_seconds: for code that waits instead of computing, and for a machine that is too busy to compute.
        memory_bytes: address space, the interpreter with its packages included (about 200 MiB of it untouched).
        output_bytes: a call that prints more is stopped.
        code_bytes: longer code is not run.
        start_seconds: how long the server may take to load its packages, and a call to be forked.
    """

    cpu_seconds: int = 30
    wall_seconds: float = 60.0
    memory_bytes: int = 1024 * MIB
    output_bytes: int = 256 * 1024
    code_bytes: int = 256 * 1024
    start_seconds: float = 120.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value <= 0:
                raise ValueError(f"CodeLimits.{name} must be > 0, got {value}")

    def of_child(self) -> dict[str, int]:
        """Resource limits by name, as `resource.RLIMIT_<name>`."""
        return {
            "CORE": 0,
            "FSIZE": 0,
            "NPROC": 0,
            "NOFILE": 32,
            "CPU": self.cpu_seconds,
            "AS": self.memory_bytes,
        }

    def of_server(self) -> dict[str, int]:
        return {"CORE": 0, "FSIZE": 0, "NOFILE": 1024}


@dataclass(frozen=True)
class Program:
    """What an interpreter holds ready for its snippets.

    Attributes:
        packages: installed top-level packages that are reachable inside, and no others.
        preload: modules imported before the cage closes; "name.*" means all modules of a package. Nothing can be
            imported later.
        modules: further modules by name, as source.
        distributions: installed distributions whose versions are known inside.
        prelude: code that runs before each snippet, in a namespace of its own.
        warm_up: code that runs once, in the parent, before the cage closes: it fills caches.
    """

    packages: Sequence[str]
    preload: Sequence[str]
    modules: Mapping[str, str] = field(default_factory=dict)
    distributions: Sequence[str] = ()
    prelude: str = ""
    warm_up: str = ""

    def folders(self) -> dict[str, str]:
        """Path here of every package folder by name, with the folders of native libraries that lie beside them.

        Raises:
            SandboxUnavailable: a package is not installed.
        """
        found: dict[str, str] = {}
        for name in self.packages:
            spec = importlib.util.find_spec(name)
            if spec is None or not spec.submodule_search_locations:
                raise SandboxUnavailable(f"the code sandbox needs the package {name}; install it (pip install {name})")
            folder = Path(next(iter(spec.submodule_search_locations))).resolve()
            libraries = folder.with_name(f"{name}.libs")
            found |= {one.name: str(one) for one in (folder, libraries) if one.is_dir()}
        return found


class Stop(Enum):
    """Why the host stopped a call."""

    WALL_CLOCK = auto()
    OUTPUT_FLOOD = auto()
    FORGERY = auto()
    """What came from the process is nothing that it is meant to send."""
    CANCELLED = auto()


@dataclass(frozen=True)
class Ended:
    """How a call ended. `status`: the wait status; None when the host stopped it (`stopped` says why)."""

    output: bytes
    status: int | None = None
    cpu_seconds: float = 0.0
    stopped: Stop | None = None


class CodeServer:
    """A warm, locked-in interpreter. Made by `start`; threads may call at the same time."""

    def __init__(self, process: "subprocess.Popen[bytes]", control: socket.socket, stderr_fd: int) -> None:
        self._process = process
        self._control = control
        self._stderr_fd = stderr_fd
        self._closed = False
        control.setblocking(True)
        self.enforced: tuple[str, ...] = ()

    @classmethod
    def start(cls, backend: Backend, program: Program, limits: CodeLimits) -> "CodeServer":
        """Starts the process and waits until it has locked itself in.

        Raises:
            SandboxUnavailable: it did not come up, or is not as locked in as the backend promises.
        """
        cage = backend.cage()
        folders = program.folders()
        caged = backend.name is BackendName.BUBBLEWRAP
        job = {
            "modules": shipped((*SHIPPED, *_ALSO_SHIPPED)) | dict(program.modules),
            "entry": "harness_search.sandbox.guest.code_server",
            "packages": {name: _INSIDE if caged else str(Path(folders[name]).parent) for name in program.packages},
            "versions": {name: importlib.metadata.version(name) for name in program.distributions},
            "preload": list(program.preload),
            "prelude": program.prelude,
            "warm_up": program.warm_up,
            "environment": _numeric_environment(),
            "cage": cage.to_json(),
            "server_limits": limits.of_server(),
            "child_limits": limits.of_child(),
        }
        inside = {f"{_INSIDE}/{name}": here for name, here in folders.items()}
        server = cls(*launch(backend, job, folders=inside))
        try:
            ready, uid = server._await_ready(limits.start_seconds)
            if backend.name is not BackendName.NONE and backend.as_root and uid != cage.uid:
                raise SandboxUnavailable(f"the {backend.name} code sandbox still runs as host user {uid}")
            server.enforced = (*namespaces(backend), *ready["enforced"])
        except BaseException:
            server.close()
            raise
        return server

    @property
    def alive(self) -> bool:
        return not self._closed and self._process.poll() is None

    def call(self, code: bytes) -> "Call":
        """Starts a call.

        Raises:
            SandboxUnavailable: the server is gone.
        """
        leash, their_leash = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        word, their_word = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        reading, writing = os.pipe()
        code_fd = os.memfd_create("code")
        try:
            with open(code_fd, "wb", closefd=False) as file:
                file.write(code)
            os.lseek(code_fd, 0, os.SEEK_SET)
            os.set_blocking(reading, False)
            fds = array.array("i", [their_leash.fileno(), their_word.fileno(), code_fd, writing])
            self._control.sendmsg([b"C"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        except OSError as error:
            leash.close()
            word.close()
            os.close(reading)
            raise SandboxUnavailable(f"the code sandbox cannot be reached: {error}{self._last_words()}") from error
        finally:
            their_leash.close()
            their_word.close()
            os.close(code_fd)
            os.close(writing)
        return Call(leash, word, reading)

    def close(self) -> None:
        """Ends the server and all its calls. Closing twice is harmless."""
        if self._closed:
            return
        self._closed = True
        self._control.close()
        try:
            self._process.wait(_CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._stderr_fd)

    def _await_ready(self, seconds: float) -> tuple[dict[str, Any], int]:
        self._control.settimeout(seconds)
        try:
            packet, ancillary, _, _ = self._control.recvmsg(_CHUNK, socket.CMSG_SPACE(struct.calcsize("3i")))
        except TimeoutError:
            raise SandboxUnavailable(f"the code sandbox did not come up in {seconds:g} s") from None
        finally:
            self._control.settimeout(None)
        message = json.loads(packet) if packet else {"fault": f"it died{self._last_words()}"}
        if "fault" in message:
            raise SandboxUnavailable(f"the code sandbox did not come up: {message['fault']}")
        credentials = (data for _, kind, data in ancillary if kind == socket.SCM_CREDENTIALS)
        uid = next((struct.unpack("3i", data)[1] for data in credentials), -1)
        return message, uid

    def _last_words(self) -> str:
        if self._closed:
            return ""
        os.lseek(self._stderr_fd, 0, os.SEEK_SET)
        lines = os.read(self._stderr_fd, _CHUNK).decode("utf-8", "replace").strip().splitlines()
        return f" ({lines[-1]})" if lines else ""


class Call:
    """One call in flight. `finish` once; `cancel` from any thread, at any time."""

    def __init__(self, leash: socket.socket, word: socket.socket, output_fd: int) -> None:
        self._leash = leash
        self._word = word
        self._output_fd = output_fd
        self._cancelled = False

    def cancel(self) -> None:
        """Lets go of the leash: the server kills the process."""
        self._cancelled = True
        with contextlib.suppress(OSError):  # it has ended
            self._leash.shutdown(socket.SHUT_RDWR)

    def finish(self, limits: CodeLimits) -> Ended:
        """Waits for the end, and reads the output meanwhile.

        Raises:
            SandboxUnavailable: the sandbox failed, not the code.
        """
        try:
            self._await_ready(limits.start_seconds)
            return self._converse(limits)
        finally:
            self._leash.close()
            self._word.close()
            os.close(self._output_fd)

    def _await_ready(self, seconds: float) -> None:
        ready = _poll(seconds, self._word, self._leash)
        if not ready:
            raise SandboxUnavailable(f"a call was not started in {seconds:g} s")
        if self._word.fileno() in ready and self._word.recv(_CHUNK) == READY:
            return
        raise SandboxUnavailable(f"a call was not started: {self._last_message().get('fault') or 'its process died'}")

    def _converse(self, limits: CodeLimits) -> Ended:
        output = bytearray()
        deadline = time.monotonic() + limits.wall_seconds
        open_ends: list[Any] = [self._leash, self._word, self._output_fd]
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                return Ended(bytes(output), stopped=Stop.WALL_CLOCK)
            ready = _poll(left, *open_ends)
            if not self._read(output, limits.output_bytes):
                open_ends = [end for end in open_ends if end != self._output_fd]
            if len(output) > limits.output_bytes:
                return Ended(bytes(output[: limits.output_bytes]), stopped=Stop.OUTPUT_FLOOD)
            if self._word.fileno() in ready:
                word = self._word.recv(_CHUNK)
                if word:
                    self._read(output, limits.output_bytes)
                    return _on_its_word(word, output, limits.output_bytes)
                open_ends.remove(self._word)  # it ends without a word
            if self._leash.fileno() in ready:
                return self._ended(output, limits.output_bytes)

    def _read(self, output: bytearray, limit: int) -> bool:
        """Takes what has been printed, at most a little more than `limit` in all; False at the end of it."""
        while len(output) <= limit:
            try:
                part = os.read(self._output_fd, _CHUNK)
            except BlockingIOError:
                return True
            if not part:
                return False
            output += part
        return True

    def _ended(self, output: bytearray, limit: int) -> Ended:
        if self._cancelled:
            return Ended(bytes(output), stopped=Stop.CANCELLED)
        message = self._last_message()
        if message.get("status") is None:
            raise SandboxUnavailable("the code sandbox died during a call")
        self._read(output, limit)
        stopped = Stop.OUTPUT_FLOOD if len(output) > limit else None
        return Ended(bytes(output[:limit]), message["status"], message["cpu"], stopped)

    def _last_message(self) -> dict[str, Any]:
        """What the server says of the child; nothing if the server is gone."""
        if not _poll(_KILL_SECONDS, self._leash):
            return {}
        with contextlib.suppress(OSError):
            packet = self._leash.recv(_CHUNK)
            return json.loads(packet) if packet else {}
        return {}


def _on_its_word(word: bytes, output: bytearray, limit: int) -> Ended:
    """The end that the process tells of itself: one byte, its exit status."""
    if len(word) != 1:
        return Ended(bytes(output[:limit]), stopped=Stop.FORGERY)
    return Ended(bytes(output[:limit]), word[0] << 8, stopped=Stop.OUTPUT_FLOOD if len(output) > limit else None)


def _poll(seconds: float, *ends: Any) -> set[int]:
    """The descriptors among `ends` that have something to read, or have ended, within `seconds`."""
    poll = select.poll()
    for end in ends:
        poll.register(end, select.POLLIN)
    return {fd for fd, _ in poll.poll(max(0.0, seconds) * 1000)}


def _numeric_environment() -> dict[str, str]:
    """One thread for numerical libraries (there are no others inside), and this machine's choice of kernels."""
    chosen = {name: value for name, value in os.environ.items() if name.startswith("OPENBLAS_")}
    return chosen | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
