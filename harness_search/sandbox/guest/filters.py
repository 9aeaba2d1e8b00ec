"""Seccomp filters in plain Python: allow lists of system calls, assembled to classic BPF.

Two filters are stacked. SERVER holds for the fork server from before it takes a command; CHILD is added in each
episode's child before the harness runs. What is not listed fails with EPERM: open, exec, socket, connect, clone (in a
child), kill, ptrace, mount, unshare, keyctl, bpf, perf_event_open, userfaultfd, io_uring_setup and all the others, so a
system call that a later kernel adds is denied too. A foreign architecture (32-bit calls on x86-64) kills the process.

References: Documentation/userspace-api/seccomp_filter.rst; the numbers are those of asm/unistd_64.h and
asm-generic/unistd.h.
"""

import errno
import os
import struct
from dataclasses import dataclass

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# name: (x86_64, aarch64); None where the architecture lacks the call
_NUMBERS: dict[str, tuple[int | None, int | None]] = {
    "read": (0, 63),
    "write": (1, 64),
    "close": (3, 57),
    "poll": (7, None),
    "mmap": (9, 222),
    "mprotect": (10, 226),
    "munmap": (11, 215),
    "brk": (12, 214),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "sched_yield": (24, 124),
    "mremap": (25, 216),
    "madvise": (28, 233),
    "nanosleep": (35, 101),
    "getpid": (39, 172),
    "sendto": (44, 206),
    "recvfrom": (45, 207),
    "sendmsg": (46, 211),
    "recvmsg": (47, 212),
    "getsockname": (51, 204),
    "socketpair": (53, 199),
    "getsockopt": (55, 209),
    "clone": (56, 220),
    "fork": (57, None),
    "exit": (60, 93),
    "wait4": (61, 260),
    "kill": (62, 129),
    "fcntl": (72, 25),
    "gettimeofday": (96, 169),
    "getrusage": (98, 165),
    "getuid": (102, 174),
    "getgid": (104, 176),
    "geteuid": (107, 175),
    "getegid": (108, 177),
    "getppid": (110, 173),
    "setsid": (112, 157),
    "sigaltstack": (131, 132),
    "prctl": (157, 167),
    "gettid": (186, 178),
    "time": (201, None),
    "futex": (202, 98),
    "sched_getaffinity": (204, 123),
    "restart_syscall": (219, 128),
    "clock_gettime": (228, 113),
    "clock_getres": (229, 114),
    "clock_nanosleep": (230, 115),
    "exit_group": (231, 94),
    "epoll_wait": (232, None),
    "epoll_ctl": (233, 21),
    "set_robust_list": (273, 99),
    "ppoll": (271, 73),
    "epoll_pwait": (281, 22),
    "epoll_create1": (291, 20),
    "prlimit64": (302, 261),
    "getrandom": (318, 278),
    "rseq": (334, 293),
    "clone3": (435, 435),
    "ioctl": (16, 29),
    "open": (2, None),
    "stat": (4, None),
    "fstat": (5, 80),
    "lstat": (6, None),
    "lseek": (8, 62),
    "pread64": (17, 67),
    "access": (21, None),
    "getcwd": (79, 17),
    "readlink": (89, None),
    "getdents64": (217, 61),
    "openat": (257, 56),
    "newfstatat": (262, 79),
    "readlinkat": (267, 78),
    "faccessat": (269, 48),
    "statx": (332, 291),
    "faccessat2": (439, 439),
}

_PROT_EXEC = 0x4
_CLONE_NEW = 0x00000080 | 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
_CLONE_THREAD = 0x00010000
_AF_UNIX = 1
_PR_SET_PDEATHSIG, _PR_SET_SECCOMP = 1, 22
_FIONBIO = 0x5421


@dataclass(frozen=True)
class Rule:
    """Allows a call; with `bits`, only if argument `arg` has none of them; with `values`, only if it is one of them."""

    name: str
    arg: int = 0
    bits: int = 0
    values: tuple[int, ...] = ()


_CHILD_CALLS = (
    *("read", "write", "recvfrom", "sendto", "epoll_wait", "epoll_pwait", "epoll_ctl", "poll", "ppoll", "close"),
    *("futex", "munmap", "mremap", "madvise", "brk", "clock_gettime", "clock_getres", "gettimeofday", "time"),
    *("clock_nanosleep", "nanosleep", "getrandom", "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sigaltstack"),
    *("exit", "exit_group", "getpid", "gettid", "getppid", "getuid", "getgid", "geteuid", "getegid", "sched_yield"),
    *("restart_syscall", "sched_getaffinity", "getrusage"),
)
_SERVER_CALLS = (
    *("recvmsg", "sendmsg", "wait4", "kill", "setsid", "prlimit64", "set_robust_list", "rseq"),
    *("epoll_create1", "getsockopt", "getsockname", "fcntl", "fork"),
)

CHILD = (
    *(Rule(name) for name in _CHILD_CALLS),
    Rule("mmap", arg=2, bits=_PROT_EXEC),
    Rule("mprotect", arg=2, bits=_PROT_EXEC),
)
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
READER = (
    *CHILD,
    *(Rule(name) for name in ("stat", "fstat", "lstat", "newfstatat", "statx", "lseek", "pread64", "getdents64")),
    *(Rule(name) for name in ("access", "faccessat", "faccessat2", "getcwd", "readlink", "readlinkat", "fcntl")),
    Rule("open", arg=1, bits=_WRITING),
    Rule("openat", arg=2, bits=_WRITING),
)
"""For a script that reads files: CHILD, and opening for reading alone."""
SERVER = (
    *CHILD,
    *(Rule(name) for name in _SERVER_CALLS),
    Rule("clone", arg=0, bits=_CLONE_NEW | _CLONE_THREAD),
    Rule("socketpair", arg=0, values=(_AF_UNIX,)),
    Rule("ioctl", arg=1, values=(_FIONBIO,)),
    Rule("prctl", arg=0, values=(_PR_SET_PDEATHSIG, _PR_SET_SECCOMP)),
)

_LOAD, _JEQ, _JGE, _JSET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_X32_BIT = 0x40000000


def _fail(code: int) -> int:
    return 0x00050000 | code


def assemble(rules: tuple[Rule, ...], machine: str) -> bytes:
    """The program for `machine` ("x86_64" or "aarch64", both little-endian) as an array of struct sock_filter."""
    column = list(AUDIT_ARCH).index(machine)
    program: list[tuple[int, int, int, int]] = [
        (_LOAD, 0, 0, 4),  # seccomp_data.arch
        (_JEQ, 1, 0, AUDIT_ARCH[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, 0),  # seccomp_data.nr
        (_JGE, 0, 1, _X32_BIT),
        (_RETURN, 0, 0, _fail(errno.EPERM)),
    ]
    for rule in rules:
        number = _NUMBERS[rule.name][column]
        if number is None:
            continue
        body = _body(rule)
        program += [(_JEQ, 0, len(body), number), *body]
    clone3 = _NUMBERS["clone3"][column]
    assert clone3 is not None
    # ENOSYS makes the C library fall back to clone, whose flags a filter can read
    program += [(_JEQ, 0, 1, clone3), (_RETURN, 0, 0, _fail(errno.ENOSYS)), (_RETURN, 0, 0, _fail(errno.EPERM))]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def _body(rule: Rule) -> list[tuple[int, int, int, int]]:
    if not rule.bits and not rule.values:
        return [(_RETURN, 0, 0, _ALLOW)]
    body = [(_LOAD, 0, 0, 16 + 8 * rule.arg)]  # low half of seccomp_data.args[arg]
    if rule.bits:
        body += [(_JSET, 1, 0, rule.bits), (_RETURN, 0, 0, _ALLOW)]
    for value in rule.values:
        body += [(_JEQ, 0, 1, value), (_RETURN, 0, 0, _ALLOW)]
    return [*body, (_RETURN, 0, 0, _fail(errno.EPERM))]
