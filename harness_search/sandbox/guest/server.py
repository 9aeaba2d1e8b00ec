"""The fork server: one warm process per harness. It locks itself in, then forks a child per command.

It compiles the harness and never runs it. Commands arrive as packets of nine bytes: b"F" + id with the descriptor of
the episode's channel, or b"K" + id to kill. It answers with JSON packets: one {"ready"} object, then an {"exit"} object
per child.
"""

import contextlib
import gc
import json
import os
import select
import signal
import socket
import struct
from typing import Any

from harness_search.sandbox.guest import child, filters, kernel
from harness_search.sandbox.guest.loading import Loader, import_allowed


def serve(control_fd: int, job: dict[str, Any]) -> None:
    """Runs until the control socket closes. `job`: source, cage (see `backends.Cage`), server_limits, child_limits."""
    control = socket.socket(fileno=control_fd)
    import_allowed()
    wake, wake_write = socket.socketpair()
    for side in (wake, wake_write):
        side.setblocking(False)
    signal.set_wakeup_fd(wake_write.fileno(), warn_on_full_buffer=False)  # looks at the descriptor: before locking in
    signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        enforced, child_filter = lock_in(job["cage"], job["server_limits"])
    except OSError as error:
        control.send(json.dumps({"ready": False, "fault": f"cannot lock itself in: {error}"}).encode())
        return
    try:
        loader = Loader(job["source"])
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        control.send(json.dumps({"ready": False, "error": f"cannot be compiled: {error}"}).encode())
        return
    child.rehearse()
    loader.close_imports()
    control.send(json.dumps({"ready": True, "enforced": enforced}).encode())
    setup = child.Setup(loader, job["child_limits"], child_filter)
    _Server(control, (wake, wake_write), setup).run()


def lock_in(cage: dict[str, Any], limits: dict[str, int]) -> tuple[list[str], kernel.Seccomp | None]:
    """Closes the cage around this process: what is enforced, in words, and the filter for its children."""
    enforced = []
    if cage["unshare_network"] and kernel.unshare_network():
        enforced.append("network namespace")
    if cage["drop"]:
        kernel.drop_privileges(cage["uid"])
        enforced += ["no_new_privs", "no capabilities"]
        if cage["uid"] is not None:
            enforced.append("host uid dropped")
    kernel.die_with_parent()
    kernel.limit(limits)
    enforced.append("resource limits")
    if cage["landlock"]:
        enforced.append(f"landlock abi {kernel.landlock_deny_all()}")
    if not cage["seccomp"]:
        return enforced, None
    child_filter = kernel.Seccomp(filters.CHILD)
    kernel.Seccomp(filters.SERVER).install()
    return [*enforced, "seccomp allow list"], child_filter


class _Server:
    def __init__(self, control: socket.socket, wake: tuple[socket.socket, socket.socket], setup: child.Setup) -> None:
        self._control = control
        self._wake, self._wake_write = wake
        self._setup = setup
        self._children: dict[int, int] = {}  # episode id by pid

    def run(self) -> None:
        gc.collect()
        gc.freeze()  # what is shared with the children stays shared
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll()}
            if self._wake.fileno() in ready:
                with contextlib.suppress(BlockingIOError):
                    self._wake.recv(4096)
                self._reap()
            if self._control.fileno() in ready and not self._command():
                break
        for pid in list(self._children):
            self._kill(pid)

    def _command(self) -> bool:
        packet, fds, _, _ = socket.recv_fds(self._control, 16, 1)
        if not packet:
            return False
        kind, number = struct.unpack("!cQ", packet)
        if kind == b"F":
            self._fork(number, fds[0])
        else:
            for pid, episode in list(self._children.items()):
                if episode == number:
                    self._kill(pid)
        return True

    def _fork(self, number: int, fd: int) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            os.close(fd)
            self._send({"exit": number, "status": None, "cpu": 0.0, "fault": f"fork: {error}"})
            return
        if pid == 0:
            self._become_child(fd)
        os.close(fd)
        self._children[pid] = number

    def _become_child(self, fd: int) -> None:
        status = child.SETUP_FAILED
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for side in (self._control, self._wake, self._wake_write):
                side.close()
            child.run(fd, self._setup)
            status = 0
        finally:
            os._exit(status)

    def _reap(self) -> None:
        while self._children:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            number = self._children.pop(pid)
            self._send({"exit": number, "status": status, "cpu": usage.ru_utime + usage.ru_stime})

    def _kill(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)  # its descendants, where the backend could not forbid them

    def _send(self, message: dict[str, Any]) -> None:
        self._control.send(json.dumps(message).encode())
