"""A harness that tries to break out, one way per episode; `preflight` runs it.

It reaches past the import guard, as any hostile harness can, so that what it meets is the kernel. Every attempt is
harmless where it succeeds: system calls get arguments that cannot work, and what they answer tells whether they got
through. An attempt returns what it gained, or raises.
"""

import asyncio
import asyncio.selector_events
import json
import random
from collections.abc import Callable, Mapping
from typing import Any

TOOLS = []

os: Any = vars(random)["_os"]
sys: Any = vars(asyncio)["sys"]
select: Any = vars(vars(asyncio.selector_events)["selectors"])["select"]
socket: Any = vars(asyncio.base_events)["socket"]
threading: Any = vars(asyncio.base_events)["threading"]

# name: number on x86_64, on aarch64, arguments that do no harm
SYSTEM_CALLS: Mapping[str, tuple[int, int, tuple[int, ...]]] = {
    "ptrace": (101, 117, (16, 0, 0, 0)),  # PTRACE_ATTACH to nobody
    "process_vm_readv": (310, 270, (0, 0, 0, 0, 0, 0)),
    "mount": (165, 40, (0, 0, 0, 0, 0)),
    "umount2": (166, 39, (0, 0)),
    "pivot_root": (155, 41, (0, 0)),
    "chroot": (161, 51, (0,)),
    "unshare": (272, 97, (0x10000000,)),  # CLONE_NEWUSER
    "setns": (308, 268, (-1, 0)),
    "keyctl": (250, 219, (-1, 0, 0, 0, 0)),
    "add_key": (248, 217, (0, 0, 0, 0, 0)),
    "bpf": (321, 280, (-1, 0, 0)),
    "perf_event_open": (298, 241, (0, 0, -1, -1, 0)),
    "userfaultfd": (323, 282, (-1,)),
    "io_uring_setup": (425, 425, (0, 0)),
    "init_module": (175, 105, (0, 0, 0)),
    "kexec_load": (246, 104, (0, 0, 0, -1)),
    "memfd_create": (319, 279, (0, 0)),
    "pidfd_open": (434, 434, (-1, 0)),
    "execveat": (322, 281, (-1, 0, 0, 0, 0)),
    "open_by_handle_at": (304, 265, (-1, 0, 0)),
    "setuid": (105, 146, (0,)),
    "personality": (135, 92, (0xFFFFFFFF,)),
}


def libc() -> tuple[Any, Mapping[str, Any]]:
    """The C library, through the classes that ctypes left behind, and the names of ctypes itself."""
    classes: list[Any] = object.__subclasses__()
    for kind in classes:
        if kind.__name__ == "CDLL" and "ctypes" in kind.__module__:
            return kind(None, use_errno=True), kind.__init__.__globals__
    raise RuntimeError("ctypes is not in this process")


def system_call(number: int, arguments: tuple[int, ...]) -> str:
    """Gained unless the kernel refused the call as such (EPERM, EACCES, ENOSYS)."""
    library, ctypes = libc()
    result = library.syscall(ctypes["c_long"](number), *(ctypes["c_long"](value) for value in arguments))
    code = ctypes["get_errno"]()
    if result < 0 and code in (1, 13, 38):
        raise PermissionError(code, os.strerror(code))
    return f"the call returned {result} with errno {code}"


def read(path: str) -> str:
    fd = os.open(path, os.O_RDONLY)
    return f"read {len(os.read(fd, 100))} bytes"


def write(path: str) -> str:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    os.unlink(path)
    return "created a file"


def connect(family: int, kind: int, address: Any) -> str:
    with socket.socket(family, kind) as sock:
        sock.settimeout(1)
        sock.connect(address)
        return f"has a socket connected to {address!r}"


def fork() -> str:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    return f"forked process {pid}"


def fork_bomb() -> str:
    return f"forked {sum(fork() != '' for _ in range(64))} processes"


def start_thread() -> str:
    threading._start_new_thread(int, ())
    return "started a thread"


def run_program() -> str:
    try:
        os.execv("/nonexistent/program", ["program"])
    except FileNotFoundError:
        return "may run programs"
    return "ran a program"


def signal_process(pid: int) -> str:
    os.kill(pid, 0)
    return f"may signal {pid}"


def be_root() -> str:
    if 0 in (os.getuid(), os.geteuid()):
        return "is root"
    raise PermissionError(f"it is user {os.geteuid()}")


def see_environment() -> str:
    if extra := sorted(set(os.environ) - {"PYTHONHASHSEED", "PWD", "LC_CTYPE"}):
        return f"sees {extra}"
    raise PermissionError("the environment is empty")


def find_descriptors() -> str:
    """Its channel, the event loop's epoll and the two ends of the loop's own pipe are four."""
    left = []
    for fd in range(256):
        poll = select.poll()
        poll.register(fd, 0)
        if not any(event & 32 for _, event in poll.poll(0)):  # POLLNVAL: closed
            left.append(fd)
    if len(left) > 4:
        return f"holds descriptors {left}"
    raise PermissionError("it holds its own four descriptors alone")


def take_memory() -> str:
    kept = [bytearray(1 << 26) for _ in range(64)]
    return f"took {len(kept) << 26} bytes"


def raise_limits() -> str:
    library, ctypes = libc()
    if library.setrlimit(7, (ctypes["c_ulong"] * 2)(1 << 16, 1 << 16)) != 0:  # RLIMIT_NOFILE
        raise PermissionError(ctypes["get_errno"](), "setrlimit")
    return "raised its own limits"


def execute_data() -> str:
    library, ctypes = libc()
    library.mmap.restype = ctypes["c_ssize_t"]
    long = ctypes["c_long"]
    if library.mmap(None, long(4096), 7, 0x22, -1, long(0)) == -1:
        raise PermissionError(ctypes["get_errno"](), "mmap")
    return "has memory that is writable and executable"


def leave_mark() -> str:
    json.left_behind = True  # pyright: ignore[reportAttributeAccessIssue]
    raise PermissionError("the mark is in its own memory alone")


def find_mark() -> str:
    if hasattr(json, "left_behind"):
        return "found the mark of another episode"
    raise PermissionError("there is no mark of another episode")


def busy_loop() -> str:
    while True:
        pass


def attempts(facts: Mapping[str, Any]) -> dict[str, Callable[[], str]]:
    """Every attempt by name. `facts`: what the host prepared (paths, a port, a process id) and the machine."""
    intel = facts["machine"] == "x86_64"
    unix, inet, stream, dgram = socket.AF_UNIX, socket.AF_INET, socket.SOCK_STREAM, socket.SOCK_DGRAM
    table = {
        "read /etc/shadow": lambda: read("/etc/shadow"),
        "read /etc/passwd": lambda: read("/etc/passwd"),
        "read the run directory": lambda: read(facts["secret"]),
        "list the root folder": lambda: f"listed {os.listdir('/')}",
        "read the environment of the host process": lambda: read(f"/proc/{facts['pid']}/environ"),
        "read the memory of its parent": lambda: read(f"/proc/{os.getppid()}/mem"),
        "write to the run directory": lambda: write(facts["target"]),
        "write to /tmp": lambda: write(f"/tmp/{facts['abstract']}"),
        "write to /dev/shm": lambda: write(f"/dev/shm/{facts['abstract']}"),
        "connect to a port of the host": lambda: connect(inet, stream, ("127.0.0.1", facts["port"])),
        "connect to the metadata address": lambda: connect(inet, stream, ("169.254.169.254", 80)),
        "send UDP": lambda: connect(inet, dgram, ("127.0.0.1", facts["port"])),
        "connect to an abstract socket": lambda: connect(unix, stream, "\0" + facts["abstract"]),
        "fork": fork,
        "fork bomb": fork_bomb,
        "start a thread": start_thread,
        "run a program": run_program,
        "signal its parent": lambda: signal_process(os.getppid()),
        "signal everybody": lambda: signal_process(-1),
        "be root": be_root,
        "see the environment": see_environment,
        "find inherited descriptors": find_descriptors,
        "take 4 GiB of memory": take_memory,
        "raise its own limits": raise_limits,
        "execute data": execute_data,
        "leave a mark for the next episode": leave_mark,
        "find a mark of another episode": find_mark,
        "never yield": busy_loop,
        "use the x32 system calls": lambda: system_call(0x40000000 + 39 if intel else 0x7FFFFFFF, ()),
    }
    for name, (on_intel, on_arm, arguments) in SYSTEM_CALLS.items():
        number = on_intel if intel else on_arm
        table[f"call {name}"] = lambda number=number, arguments=arguments: system_call(number, arguments)
    return table


async def run(task, model, env):
    try:
        gained = attempts(task.facts)[task.attempt]()
    except (OSError, MemoryError, RuntimeError) as error:
        await model.count_tokens(f"denied {type(error).__name__}: {error}")
    else:
        await model.count_tokens(f"gained {gained}")
