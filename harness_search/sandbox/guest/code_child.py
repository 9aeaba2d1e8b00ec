"""One snippet's process: takes its limits, runs the code, and ends with a status that says how it went.

Everything it says of itself, output and status, may be the snippet's own word and is treated so by the host. That the
cage was closed is told by the first message, before the snippet runs.
"""

import contextlib
import io
import linecache
import os
import random
import socket
import sys
import traceback
import types
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness_search.sandbox.guest import kernel

FILE_NAME = "<code>"
READY = b"r"
RAISED, OUT_OF_MEMORY, EXIT_MASK = 211, 212, 0xFF
"""Exit statuses of a snippet that ended with an exception, or for lack of memory; any other is its own `sys.exit`."""

_write = os.write  # the snippet may put anything in its place
_MAX_FRAMES = 12
_RESERVE_BYTES = 1 << 20


@dataclass(frozen=True)
class Setup:
    """What the server made ready for every child. `prelude` runs before each snippet, in a namespace of its own."""

    prelude: types.CodeType
    limits: Mapping[str, int]
    seccomp: kernel.Seccomp | None


def run(channel: socket.socket, setup: Setup) -> int:
    """Waits for a call on `channel`, runs it, and returns the process's exit status."""
    os.setsid()
    kernel.die_with_parent()
    packet, fds, _, _ = socket.recv_fds(channel, 16, 3)
    channel.close()
    if not packet:  # the server ends
        return 0
    word, code_fd, output_fd = fds
    code = _read(code_fd)
    _attach(output_fd)
    kernel.limit(setup.limits)
    if setup.seccomp is not None:
        setup.seccomp.install()
    _write(word, READY)
    random.seed(0)  # the same code prints the same numbers, so that a run can be repeated
    exec(setup.prelude, {"__name__": "prelude"})
    status = _execute(code)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the snippet may have put anything in their place
            stream.flush()
    with contextlib.suppress(OSError):  # it may have closed it, too
        _write(word, bytes([status]))
    return status


def _read(fd: int) -> str:
    with os.fdopen(fd, "rb") as file:
        return file.read().decode("utf-8", "surrogatepass")


def _attach(output_fd: int) -> None:
    """Makes `output_fd` the standard output and error, of Python and of native code; standard input is empty."""
    import fcntl

    for standard in (0, 1, 2):
        with contextlib.suppress(OSError):
            os.close(standard)
    for standard in (1, 2):
        assert fcntl.fcntl(output_fd, fcntl.F_DUPFD, standard) == standard
    os.close(output_fd)
    sys.stdin = io.StringIO()
    sys.stdout, sys.stderr = (_unbuffered(standard) for standard in (1, 2))


def _unbuffered(fd: int) -> io.TextIOWrapper:
    raw: Any = io.FileIO(fd, "w", closefd=False)
    return io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", write_through=True)


def _execute(code: str) -> int:
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    linecache.cache[FILE_NAME] = (len(code), None, code.splitlines(keepends=True), FILE_NAME)
    for noise in (DeprecationWarning, SyntaxWarning):  # about escapes in string literals, mostly LaTeX
        warnings.simplefilter("ignore", noise)
    reserve = [bytearray(_RESERVE_BYTES)]
    try:
        exec(compile(code, FILE_NAME, "exec", dont_inherit=True), vars(module))
    except SystemExit as error:
        return _exit_status(error)
    except MemoryError as error:
        reserve.clear()
        _report(error)
        return OUT_OF_MEMORY
    except BaseException as error:  # whatever the snippet raises is its own failure
        _report(error)
        return RAISED
    return 0


def _exit_status(error: SystemExit) -> int:
    """As the interpreter's own: a number is the status, nothing is 0, any other value is printed and gives 1."""
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & EXIT_MASK
    with contextlib.suppress(Exception):
        print(error.code, file=sys.stderr)
    return 1


def _report(error: BaseException) -> None:
    """Prints the traceback, as far as it lies in the snippet."""
    with contextlib.suppress(BaseException):  # a hostile exception class may break while it is described
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == FILE_NAME]
        half = _MAX_FRAMES // 2
        shown = frames if len(frames) <= _MAX_FRAMES else [*frames[:half], *frames[-half:]]
        text = "".join(traceback.format_list(shown)) + "".join(traceback.format_exception_only(error))
        heading = "Traceback (most recent call last):\n" if shown else ""
        sys.stderr.write(heading + text)
