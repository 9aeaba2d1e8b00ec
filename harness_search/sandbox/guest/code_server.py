"""The code interpreter's warm parent: loads the packages, locks itself in, then forks a child per snippet.

A command is one packet b"C" with four descriptors: the leash, the child's word, the code and the output. All of them
belong to that call alone, so calls need no numbers, and no thread of the host waits for another. On the leash this
process says how the child ended, and when the host lets go of it the child is killed. On its word the child says that
it is ready, and how the snippet ended: that comes sooner than its exit, for taking down an address space of this size
takes longer than most snippets do. For the same reason one child is always forked in advance.
"""

import contextlib
import gc
import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import io
import json
import os
import pkgutil
import select
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness_search.sandbox.guest import code_child
from harness_search.sandbox.guest.loading import import_allowed
from harness_search.sandbox.guest.server import lock_in

SETUP_FAILED = 70
_exit = os._exit  # a snippet may put anything in its place

_ALSO = (
    *("bisect", "concurrent.futures", "fcntl", "gc", "inspect", "io", "locale", "pathlib", "pickle", "platform"),
    *("queue", "secrets", "signal", "sys", "threading", "timeit", "unittest", "uuid", "zlib", "os", "subprocess"),
)
_ALL = ".*"
_SKIPPED = frozenset(
    {
        *("tests", "testing", "benchmarks", "conftest", "plotting", "interactive", "deprecated", "f2py", "distutils"),
        *("_pyinstaller", "typing", "sampling", "autolev", "latex", "pytorch", "_compilation", "hyperexpand_doc"),
        *("meijerint_doc", "compatibility", "trace", "pytest", "randtest", "runtests", "tmpfiles", "this", "cversions"),
        *("galgebra", "quantum", "mechanics", "optics", "control", "continuum_mechanics", "hep", "biomechanics"),
    }
)
"""Parts of packages that are of no use here: tests, documents, physics, what prints or warns, what needs more."""


def serve(control_fd: int, job: dict[str, Any]) -> None:
    """Runs until the control socket closes. `job`: see `code_server.CodeServer.start`."""
    control = socket.socket(fileno=control_fd)
    wake, wake_write = socket.socketpair()
    for side in (wake, wake_write):
        side.setblocking(False)
    try:
        load(job)
        signal.set_wakeup_fd(wake_write.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        enforced, child_filter = lock_in(job["cage"], job["server_limits"])
    except Exception as error:
        fault = f"{type(error).__name__}: {error}"
        control.send(json.dumps({"ready": False, "fault": fault}).encode())
        return
    sys.meta_path[:] = [_Refuse()]
    control.send(json.dumps({"ready": True, "enforced": enforced}).encode())
    setup = code_child.Setup(compile(job["prelude"], "prelude", "exec"), job["child_limits"], child_filter)
    _Server(control, (wake, wake_write), setup).run()


def load(job: Mapping[str, Any]) -> None:
    """Imports everything that snippets may import, and rehearses: a child starts with warm caches."""
    os.environ.update(job["environment"])
    sys.meta_path.insert(1, _Packages(job["packages"], job["versions"]))
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        import_allowed()
        for name in (*_ALSO, *job["preload"]):
            if name.endswith(_ALL):
                _import_all(name.removesuffix(_ALL))
            else:
                importlib.import_module(name)
        exec(compile(job["prelude"] + "\n" + job["warm_up"], "warm_up", "exec"), {"__name__": "warm_up"})


def _import_all(name: str) -> None:
    """A package with all its modules, those apart that lack something they need."""
    if name.rpartition(".")[2] in _SKIPPED:
        return
    module = importlib.import_module(name)
    for info in pkgutil.iter_modules(getattr(module, "__path__", [])):
        with contextlib.suppress(ImportError):
            _import_all(f"{name}.{info.name}")


class _Packages(importlib.metadata.DistributionFinder):
    """Finds the top-level packages that were granted, each in its folder, and no others; knows some versions."""

    def __init__(self, folders: Mapping[str, str], versions: Mapping[str, str]) -> None:
        self._folders = folders
        self._versions = versions

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if path is not None or fullname not in self._folders:
            return None
        return importlib.machinery.PathFinder.find_spec(fullname, [self._folders[fullname]])

    def find_distributions(self, context: Any = None) -> Iterator[importlib.metadata.Distribution]:
        if context is not None and context.name in self._versions:
            yield _Version(context.name, self._versions[context.name])


class _Version(importlib.metadata.Distribution):
    """A distribution of which nothing but the version is known."""

    def __init__(self, name: str, version: str) -> None:
        self._metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"

    def read_text(self, filename: str) -> str | None:
        return self._metadata if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Any:
        raise FileNotFoundError(path)


class _Refuse(importlib.abc.MetaPathFinder):
    """Ends the search for a module that is not loaded."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        raise ModuleNotFoundError(f"No module named {fullname!r} in this sandbox", name=fullname)


class _Server:
    def __init__(
        self, control: socket.socket, wake: tuple[socket.socket, socket.socket], setup: code_child.Setup
    ) -> None:
        self._control = control
        self._wake, self._wake_write = wake
        self._setup = setup
        self._leashes: dict[int, socket.socket] = {}  # by the child's pid
        self._spare: tuple[int, socket.socket] | None = None  # a child that waits for its call
        self._poll = select.poll()

    def run(self) -> None:
        gc.collect()
        gc.freeze()  # what is shared with the children stays shared
        self._poll.register(self._control, select.POLLIN)
        self._poll.register(self._wake, select.POLLIN)
        while True:
            ready = {fd for fd, _ in self._poll.poll(0 if self._spare is None else None)}
            if not ready:
                self._fork()
                ready = {fd for fd, _ in self._poll.poll()}
            if self._wake.fileno() in ready:
                with contextlib.suppress(BlockingIOError):
                    self._wake.recv(4096)
                self._reap()
            for pid, leash in self._leashes.items():
                if leash.fileno() in ready:  # the host let go
                    self._poll.unregister(leash)
                    _kill(pid)
            if self._control.fileno() in ready and not self._command():
                break
        for pid in (*self._leashes, *([self._spare[0]] if self._spare else [])):
            _kill(pid)

    def _command(self) -> bool:
        packet, fds, _, _ = socket.recv_fds(self._control, 16, 4)
        if not packet:
            return False
        leash = socket.socket(fileno=fds[0])
        fault = None if self._spare else self._fork()
        if self._spare is None:
            leash.send(json.dumps({"status": None, "cpu": 0.0, "fault": fault}).encode())
            leash.close()
        else:
            pid, channel = self._spare
            self._spare = None
            with contextlib.suppress(OSError):  # it is dead: its exit will say so
                socket.send_fds(channel, [b"C"], fds[1:])
            channel.close()
            self._leashes[pid] = leash
            self._poll.register(leash, select.POLLIN)
        for fd in fds[1:]:
            os.close(fd)
        return True

    def _fork(self) -> str | None:
        """Forks the next child; what went wrong if it cannot."""
        ours, theirs = socket.socketpair()
        try:
            pid = os.fork()
        except OSError as error:
            ours.close()
            theirs.close()
            return f"fork: {error}"
        if pid == 0:
            ours.close()
            self._become_child(theirs)
        theirs.close()
        self._spare = (pid, ours)
        return None

    def _become_child(self, channel: socket.socket) -> None:
        status = SETUP_FAILED
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for other in (self._control, self._wake, self._wake_write, *self._leashes.values()):
                other.close()
            status = code_child.run(channel, self._setup)
        finally:
            _exit(status)

    def _reap(self) -> None:
        while self._leashes or self._spare:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            _kill_group(pid)
            if self._spare and pid == self._spare[0]:
                self._spare[1].close()
                self._spare = None
                continue
            leash = self._leashes.pop(pid)
            with contextlib.suppress(KeyError):
                self._poll.unregister(leash)
            with contextlib.suppress(OSError):  # the host may be gone from this call
                leash.send(json.dumps({"status": status, "cpu": usage.ru_utime + usage.ru_stime}).encode())
            leash.close()


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    _kill_group(pid)


def _kill_group(pid: int) -> None:
    """Ends the descendants of a child, where the backend could not forbid them."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
