"""The kernel's own means, through ctypes: dropping privileges, Landlock, seccomp, namespaces, resource limits."""

import ctypes
import os
import platform
import resource
import struct
from collections.abc import Mapping

from harness_search.sandbox.guest import filters

_libc = ctypes.CDLL(None, use_errno=True)

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 4, 22, 24, 38
_SECCOMP_MODE_FILTER = 2
_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWIPC, _CLONE_NEWUSER, _CLONE_NEWNET = (
    0x00020000,
    0x04000000,
    0x08000000,
    0x10000000,
    0x40000000,
)
_LANDLOCK_CREATE_RULESET, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT_SELF = 444, 445, 446
_LANDLOCK_PATH_BENEATH, _LANDLOCK_READ_FILE, _LANDLOCK_READ_DIR = 1, 1 << 2, 1 << 3
_CAPSET = {"x86_64": 126, "aarch64": 91}
_SIGKILL = 9


def _check(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def _prctl(option: int, *args: int) -> int:
    return _libc.prctl(ctypes.c_int(option), *(ctypes.c_ulong(arg) for arg in (*args, 0, 0, 0, 0)[:4]))


def landlock_abi() -> int:
    """Landlock's ABI version here; 0 where the kernel lacks it or has it switched off."""
    return max(0, _libc.syscall(_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1)))


def landlock_deny_all(readable: str | None = None) -> int:
    """Denies this process every file operation, TCP, and (from ABI 6) signals and abstract sockets of outsiders.

    Open descriptors stay usable, and what lies beneath the folder `readable` may be listed and read. Needs
    no_new_privs. Returns the ABI version used.
    """
    abi = landlock_abi()
    if not abi:
        raise OSError("the kernel has no Landlock")
    file_rights = {1: 13, 2: 14, 3: 15, 4: 15}.get(abi, 16)
    attributes = struct.pack("=Q", (1 << file_rights) - 1)
    if abi >= 4:
        attributes += struct.pack("=Q", 0b11)  # bind and connect of TCP
    if abi >= 6:
        attributes += struct.pack("=Q", 0b11)  # abstract sockets and signals leave the domain no more
    size = ctypes.c_size_t(len(attributes))
    fd = _check(_libc.syscall(_LANDLOCK_CREATE_RULESET, attributes, size, ctypes.c_uint32(0)), "landlock ruleset")
    try:
        if readable is not None:
            _allow_reading(fd, readable)
        _check(_libc.syscall(_LANDLOCK_RESTRICT_SELF, ctypes.c_int(fd), ctypes.c_uint32(0)), "landlock restrict")
    finally:
        os.close(fd)
    return abi


def _allow_reading(ruleset: int, folder: str) -> None:
    parent = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        rule = struct.pack("=Qi", _LANDLOCK_READ_FILE | _LANDLOCK_READ_DIR, parent)
        add = (ctypes.c_int(ruleset), ctypes.c_int(_LANDLOCK_PATH_BENEATH), rule, ctypes.c_uint32(0))
        _check(_libc.syscall(_LANDLOCK_ADD_RULE, *add), "landlock rule")
    finally:
        os.close(parent)


def unshare_network() -> bool:
    """Moves this process to an empty network (and IPC, UTS) namespace of its own; False where that is not permitted."""
    flags = _CLONE_NEWNET | _CLONE_NEWIPC | _CLONE_NEWUTS
    if os.geteuid() == 0 and _libc.unshare(flags) == 0:
        return True
    return _libc.unshare(flags | _CLONE_NEWUSER) == 0


def drop_privileges(uid: int | None) -> None:
    """Becomes the unprivileged user and group `uid` (None keeps the present ones), without any capability, for good."""
    if uid is not None:
        for capability in range(64):
            _prctl(_PR_CAPBSET_DROP, capability)  # fails beyond the kernel's last capability, and that is fine
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    header = struct.pack("=II", 0x20080522, 0)
    _check(_libc.syscall(_CAPSET[platform.machine()], header, bytes(24)), "capset")
    _check(_prctl(_PR_SET_NO_NEW_PRIVS, 1), "no_new_privs")
    _check(_prctl(_PR_SET_DUMPABLE, 0), "dumpable")


def die_with_parent() -> None:
    _check(_prctl(_PR_SET_PDEATHSIG, _SIGKILL), "parent death signal")


class Seccomp:
    """A filter made ready beforehand, so that installing it is one system call."""

    def __init__(self, rules: tuple[filters.Rule, ...]) -> None:
        program = filters.assemble(rules, platform.machine())
        self._buffer = ctypes.create_string_buffer(program, len(program))
        self._fprog = ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(self._buffer)))

    def install(self) -> None:
        _check(_prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(self._fprog)), "seccomp")


def limit(limits: Mapping[str, int]) -> None:
    """Sets soft and hard resource limits by name ("AS", "NOFILE", ...); never above the present hard limit.

    CPU gets a second between the two, so that its end shows as SIGXCPU.
    """
    for name, value in limits.items():
        which = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(which)[1]
        wanted = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (wanted, wanted + 1 if name == "CPU" and wanted == value else wanted))
