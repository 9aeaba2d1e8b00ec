"""A program that may run other programs, in a sandbox: a coding agent at work on some folders.

Bubblewrap gives it a file system of its own: the system's programs and libraries, the folders it is shown, a home and a
/tmp in memory. It sees no process, socket or file beside these, runs as a user of its own (real, when started as
root), and gains no privilege by any program. Its network is a proxy (`egress`), or nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness_search.sandbox.backends import Backend, BackendName, SandboxUnavailable
from harness_search.sandbox.forkserver import job_descriptor, shipped
from harness_search.sandbox.limits import MIB

_SHIPPED = (
    *("harness_search", "harness_search.sandbox", "harness_search.sandbox.guest"),
    *(f"harness_search.sandbox.guest.{name}" for name in ("filters", "kernel", "agent")),
)
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/lib32", "/nix/store", "/gnu/store")
_SETTINGS = (
    *("/etc/ssl", "/etc/pki", "/etc/ca-certificates", "/etc/alternatives", "/etc/ld.so.cache", "/etc/localtime"),
    *("/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/hosts"),
)
_UIDS = (61184, 65520)
_EGRESS = "/run/egress/socket"
HOME = "/home/agent"
LIMITS: Mapping[str, int] = {"CORE": 0, "FSIZE": 256 * MIB, "NPROC": 1024, "NOFILE": 4096}
_MEMORY_FILE_BYTES = 512 * MIB


@dataclass(frozen=True)
class AgentView:
    """What an agent is shown: host paths by the place where it sees them, and where it stands."""

    read_only: Mapping[str, Path]
    writable: Mapping[str, Path]
    directory: str


def own_user() -> int | None:
    """A user id for one agent when this process is root; None keeps the present one."""
    return random.SystemRandom().randrange(*_UIDS) if os.geteuid() == 0 else None


async def start_agent(
    argv: Sequence[str],
    environment: Mapping[str, str],
    view: AgentView,
    backend: Backend,
    *,
    uid: int | None,
    egress: Path | None,
    stdin: bytes,
) -> asyncio.subprocess.Process:
    """Starts the agent with piped output, leading a session of its own.

    Args:
        environment: all there is, beside PATH, HOME and the proxy's variables.
        uid: of `own_user`; the writable folders must be this user's.
        egress: the folder that holds the `Egress` socket, named "socket"; None: no network.
        stdin: what it can read there.

    Raises:
        SandboxUnavailable: the backend cannot hold an agent.
    """
    if backend.name is BackendName.LANDLOCK:
        raise SandboxUnavailable(
            "an agent's command can be locked in by bubblewrap alone; install it, or pass --sandbox=none to run the "
            "command unprotected"
        )
    stdin_fd = os.memfd_create("stdin")
    try:
        os.write(stdin_fd, stdin)
        os.lseek(stdin_fd, 0, os.SEEK_SET)
        if backend.name is BackendName.NONE:
            return await asyncio.create_subprocess_exec(
                *argv,
                env={name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ} | dict(environment),
                cwd=view.directory,
                stdin=stdin_fd,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        job = {
            "modules": shipped(_SHIPPED),
            "entry": "harness_search.sandbox.guest.agent",
            "argv": list(argv),
            "environment": {"PATH": os.environ.get("PATH", os.defpath), "HOME": HOME, **environment},
            "directory": view.directory,
            "uid": uid,
            "limits": dict(LIMITS),
            "egress": None if egress is None else _EGRESS,
        }
        return await _start_locked_in(job, view, backend, egress, stdin_fd)
    finally:
        os.close(stdin_fd)


async def _start_locked_in(
    job: Mapping[str, object], view: AgentView, backend: Backend, egress: Path | None, stdin_fd: int
) -> asyncio.subprocess.Process:
    boot = Path(__file__).with_name("guest").joinpath("boot.py").read_text("utf-8")
    job_fd = job_descriptor(job)
    unused, control = socket.socketpair()
    with contextlib.closing(unused), contextlib.closing(control):
        try:
            python = [backend.python, "-S", "-s", "-P", "-B", "-X", "utf8"]
            return await asyncio.create_subprocess_exec(
                *_bubblewrap(view, backend, egress),
                *("--", *python, "-c", boot, str(control.fileno()), str(job_fd)),
                env={},
                cwd="/",
                stdin=stdin_fd,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=(control.fileno(), job_fd),
                start_new_session=True,
            )
        finally:
            os.close(job_fd)


def _bubblewrap(view: AgentView, backend: Backend, egress: Path | None) -> list[str]:
    command = ["bwrap", "--die-with-parent", "--new-session", "--clearenv", "--hostname", "sandbox"]
    command += ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    if backend.as_root:
        command += ["--cap-drop", "ALL"]
        for capability in ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP"):
            command += ["--cap-add", capability]
    else:
        command += ["--unshare-user"]
    for place in ("/tmp", HOME):
        command += ["--perms", "1777", "--size", str(_MEMORY_FILE_BYTES), "--tmpfs", place]
    command += ["--proc", "/proc", "--dev", "/dev"]
    for path in _SYSTEM:
        if os.path.islink(path):
            command += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            command += ["--ro-bind", path, path]
    interpreter = sorted({sys.base_prefix, sys.base_exec_prefix, backend.python})
    own = [path for path in interpreter if not path.startswith(_SYSTEM)]
    shown = {place: str(path) for place, path in view.read_only.items()}
    if egress is not None:
        shown[str(Path(_EGRESS).parent)] = str(egress)
    command += _folders_above([*own, *shown, *view.writable])
    for path in (*_SETTINGS, *own):
        command += ["--ro-bind-try", path, path]
    for place, path in shown.items():
        command += ["--ro-bind", path, place]
    for place, path in view.writable.items():
        command += ["--bind", str(path), place]
    return [*command, "--chdir", "/", "--remount-ro", "/"]


def _folders_above(places: Sequence[str]) -> list[str]:
    """Creates what lies above the places, open to the agent as bubblewrap alone would not leave it."""
    folders = {str(folder): None for place in places for folder in reversed(Path(place).parents)}
    there = {"/", "/etc", "/tmp", HOME, str(Path(HOME).parent)}
    made = [folder for folder in folders if folder not in there and not folder.startswith(_SYSTEM)]
    return [part for folder in made for part in ("--perms", "0755", "--dir", folder)]
