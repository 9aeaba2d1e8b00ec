"""Ways to lock a process in, from the strongest this machine has to none at all.

Every backend but `none` ends in the same cage, which the process closes around itself before it takes a command:
another user (when started as root), no capabilities, no_new_privs, Landlock where the kernel has it, a seccomp allow
list without open, exec or socket (and for an episode's child without clone), and resource limits. Bubblewrap puts
namespaces around that: an almost empty, read-only file system, and process, network, IPC and host-name namespaces of
its own.

The drop to another user happens inside, after the interpreter has loaded (`os.setresuid`), because an interpreter under
/root could not be read by the new user. It is real all the same: no user namespace stands between, and the host checks
the kernel's word for it (`SCM_CREDENTIALS`) before a harness is accepted.
"""

import ctypes
import os
import platform
import random
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType

from harness_search.sandbox.guest.filters import AUDIT_ARCH


class SandboxUnavailable(Exception):
    """No sandbox of the requested kind works here; the message is one line that says why and what to do."""


class BackendName(StrEnum):
    BUBBLEWRAP = "bubblewrap"
    LANDLOCK = "landlock"
    NONE = "none"


@dataclass(frozen=True)
class Cage:
    """What the process inside does to itself (`guest.server`)."""

    drop: bool
    uid: int | None
    unshare_network: bool
    landlock: bool
    seccomp: bool

    def to_json(self) -> dict[str, bool | int | None]:
        return asdict(self)


@dataclass(frozen=True)
class Backend:
    """A way to start a locked-in interpreter. Made by `detect`."""

    name: BackendName
    python: str
    as_root: bool
    landlock: bool

    def cage(self) -> Cage:
        """The cage of one new server; as root each gets a user id of its own."""
        if self.name is BackendName.NONE:
            return Cage(drop=False, uid=None, unshare_network=False, landlock=False, seccomp=False)
        uid = random.SystemRandom().randrange(*_UIDS) if self.as_root else None
        alone = self.name is BackendName.LANDLOCK
        return Cage(drop=True, uid=uid, unshare_network=alone, landlock=self.landlock, seccomp=True)

    def command(self, program: Sequence[str], read_only: Mapping[str, str] = MappingProxyType({})) -> list[str]:
        """The command line that starts the interpreter with the arguments `program`.

        `read_only`: folders of the host by the place where bubblewrap shows them; other backends show no places.
        """
        python = [self.python, "-S", "-s", "-P", "-B", "-X", "utf8", *program]
        if self.name is BackendName.BUBBLEWRAP:
            return [*_bubblewrap(self.python, self.as_root, read_only), "--", *python]
        return python

    def environment(self) -> dict[str, str]:
        """All there is of an environment; string hashing is fixed, so that set order is the same in every run."""
        return {"PYTHONHASHSEED": "0"}


_UIDS = (61184, 65520)  # systemd's range for dynamic users: nobody's files, nobody's processes
_TMP_BYTES = 16 * 1024 * 1024


def detect(requested: str = "auto") -> Backend:
    """The requested backend, tried out; "auto" takes the strongest that works and never `none`.

    Raises:
        SandboxUnavailable: it does not work here, or the name is unknown.
    """
    if requested not in ("auto", *BackendName):
        raise SandboxUnavailable(f"--sandbox must be auto, {', '.join(BackendName)}; got {requested!r}")
    if not sys.platform.startswith("linux"):
        raise SandboxUnavailable(f"the harness sandbox needs Linux; this is {sys.platform}")
    if requested == BackendName.NONE:
        return _backend(BackendName.NONE)
    reasons = []
    if platform.machine() not in AUDIT_ARCH:
        reasons.append(f"no seccomp filter is written for {platform.machine()} (only {', '.join(AUDIT_ARCH)})")
    else:
        for name, problem in ((BackendName.BUBBLEWRAP, _bubblewrap_problem), (BackendName.LANDLOCK, _landlock_problem)):
            if requested not in ("auto", name):
                continue
            reason = problem()
            if reason is None:
                return _backend(name)
            reasons.append(f"{name}: {reason}")
    raise SandboxUnavailable(
        f"no sandbox works here ({'; '.join(reasons)}); install bubblewrap, use a kernel with Landlock, "
        "or pass --sandbox=none to run harness code unprotected"
    )


def _backend(name: BackendName) -> Backend:
    return Backend(name, _interpreter(), os.geteuid() == 0, name is not BackendName.NONE and _landlock_abi() > 0)


def _interpreter() -> str:
    """The real interpreter behind a virtual environment's link."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def _landlock_abi() -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    return max(0, libc.syscall(444, None, ctypes.c_size_t(0), ctypes.c_uint32(1)))


def _landlock_problem() -> str | None:
    return None if _landlock_abi() else "this kernel has no Landlock, or it is switched off"


def _bubblewrap_problem() -> str | None:
    if shutil.which("bwrap") is None:
        return "bwrap is not installed"
    trial = [*_bubblewrap(_interpreter(), os.geteuid() == 0), "--", _interpreter(), "-S", "-s", "-P", "-B", "-c", "0"]
    done = subprocess.run(trial, env={}, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    if done.returncode == 0:
        return None
    return (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]


def _bubblewrap(python: str, as_root: bool, read_only: Mapping[str, str] = MappingProxyType({})) -> list[str]:
    bwrap = shutil.which("bwrap")
    assert bwrap is not None
    command = [bwrap, "--die-with-parent", "--new-session", "--clearenv", "--setenv", "PYTHONHASHSEED", "0"]
    command += ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    command += ["--hostname", "sandbox"]
    if as_root:
        # no user namespace: in one, root outside would stay root outside whatever the id inside
        command += [
            "--cap-drop",
            "ALL",
            "--cap-add",
            "CAP_SETUID",
            "--cap-add",
            "CAP_SETGID",
            "--cap-add",
            "CAP_SETPCAP",
        ]
    else:
        command += ["--unshare-user"]
    # /tmp comes before the interpreter, which may lie in it
    command += ["--perms", "1777", "--size", str(_TMP_BYTES), "--tmpfs", "/tmp"]
    command += _read_only_binds(python)
    for place, folder in read_only.items():
        command += ["--ro-bind", folder, place]
    command += ["--chdir", "/", "--remount-ro", "/"]
    return command


def _read_only_binds(python: str) -> list[str]:
    """The interpreter's installation and the system's libraries, without any installed package."""
    binds: list[str] = []
    for path in ("/lib", "/lib64", "/lib32", "/usr/lib", "/usr/lib64", "/nix/store", "/gnu/store"):
        if os.path.islink(path):
            binds += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            binds += ["--ro-bind", path, path]
    binds += ["--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    prefixes = sorted({sys.base_prefix, sys.base_exec_prefix})
    for prefix in prefixes:
        if prefix != "/usr":
            binds += ["--ro-bind", prefix, prefix]
    binds += ["--ro-bind", python, python]
    for folder in _package_folders(prefixes):
        binds += ["--size", "4096", "--tmpfs", folder, "--remount-ro", folder]
    return binds


def _package_folders(prefixes: Sequence[str]) -> list[str]:
    """Folders of installed packages inside what is bound; they are covered, for a package may hold anything."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    bases = {sysconfig.get_path("stdlib", vars={"installed_base": prefix}) for prefix in prefixes}
    bases |= {f"/usr/lib/{version}", "/usr/lib/python3", "/usr/lib64/python3"}
    found = []
    for base in sorted(bases):
        for name in ("site-packages", "dist-packages"):
            folder = Path(base, name)
            if folder.is_dir() and not folder.is_symlink():
                found.append(str(folder))
    return found
