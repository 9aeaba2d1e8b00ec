"""The code interpreter: Python snippets that nobody trusts, each in a locked-in process forked from a warm parent.

A call leaves nothing behind for the next one. It has no network, no files, no other processes or threads, and limits on
time, memory and output; what the parent has loaded is all it can import.
"""

import asyncio
import contextlib
import os
import signal
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum

from harness_search.sandbox.backends import Backend, SandboxUnavailable
from harness_search.sandbox.code_server import Call, CodeLimits, CodeServer, Ended, Program, Stop
from harness_search.sandbox.guest.code_child import OUT_OF_MEMORY, RAISED

_MAX_RESTARTS = 8

PYTHON = Program(
    packages=("numpy", "sympy", "mpmath"),
    preload=("numpy.*", "mpmath.*", "sympy.*"),
    # the same random numbers in every call, those of generators that would draw their seed from the system included
    prelude="import numpy.random.bit_generator, sympy.core.random\n"
    "numpy.random.bit_generator.randbits = lambda count: 0\nnumpy.random.seed(0)\nsympy.core.random.seed(0)",
    warm_up="import sympy\nx = sympy.Symbol('x')\nsympy.solve(x**2 - 3*x + 2, x)\nsympy.simplify(sympy.sin(x)**2)\n"
    "sympy.factorint(360)\nsympy.latex(sympy.Rational(1, 2))",
)
"""Python with numpy, sympy and mpmath."""


class CodeEnd(StrEnum):
    """How a snippet ended. Closed."""

    DONE = "done"
    RAISED = "raised"
    """An exception left it; its traceback is the end of the output."""
    EXITED = "exited"
    """It ended its process itself, with a status other than 0."""
    TIMEOUT = "timeout"
    MEMORY = "memory"
    CRASH = "crash"
    """Its process died of a signal."""
    OUTPUT = "output"
    """It printed more than it may, and was stopped."""
    REFUSED = "refused"
    """It is too long, and was not run."""


@dataclass(frozen=True)
class CodeResult:
    """Attributes:
    end: how it ended.
    output: what it printed, errors included, in the order of printing; undecodable bytes are replaced.
    detail: the exit status, the signal, or why it was refused, in words.
    """

    end: CodeEnd
    output: str
    detail: str = ""


class CodeInterpreter:
    """Runs snippets. Cheap to make: the warm parent starts with the first call. Safe to use from any thread.

    A parent that dies is started again, a few times. An interpreter that is not closed ends with its owner.
    """

    def __init__(
        self,
        backend: Backend | Callable[[], Backend],
        *,
        program: Program = PYTHON,
        limits: CodeLimits | None = None,
        concurrency: int | None = None,
    ) -> None:
        """Args:
        backend: the sandbox, or what finds it when the first call is made.
        program: what is loaded.
        limits: of each call.
        concurrency: calls that run at the same time, others wait; default: one per processor.
        """
        self._backend = backend
        self._program = program
        self.limits = limits or CodeLimits()
        self._slots = concurrency or os.cpu_count() or 1
        self._free = threading.BoundedSemaphore(self._slots)
        self._threads = ThreadPoolExecutor(self._slots, thread_name_prefix="code")
        # the kernel ends a process with the thread that started it, so that thread has to live as long as this object
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="code-start")
        self._starting = threading.Lock()
        self._held: list[CodeServer] = []  # the server, if there is one; a list, so that the finalizer sees it
        self._starts = 0
        self._finalizer = weakref.finalize(self, _close_all, self._held)

    def run(self, code: str) -> CodeResult:
        """Runs one snippet and waits for it.

        Raises:
            SandboxUnavailable: the sandbox failed; nothing can be said about the code.
        """
        return self._run(code, _Ticket())

    async def run_async(self, code: str) -> CodeResult:
        """`run` for coroutines. Cancelling it kills the process. Raises as `run` does."""
        ticket = _Ticket()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, self._run, code, ticket)
        except asyncio.CancelledError:
            ticket.cancel()
            raise

    @property
    def enforced(self) -> tuple[str, ...]:
        """What holds the snippets, in words; starts the parent if need be."""
        return self._server().enforced

    def close(self) -> None:
        """Ends the parent and every call. It cannot be used after that."""
        self._starts = _MAX_RESTARTS + 1
        self._finalizer()
        for threads in (self._threads, self._starter):
            threads.shutdown(wait=True, cancel_futures=True)

    def _run(self, code: str, ticket: "_Ticket") -> CodeResult:
        data = code.encode("utf-8", "surrogatepass")
        if len(data) > self.limits.code_bytes:
            return CodeResult(CodeEnd.REFUSED, "", f"{len(data)} bytes of code, more than {self.limits.code_bytes}")
        with self._free:
            call = self._server().call(data)
            ticket.hold(call)
            return self._judged(call.finish(self.limits))

    def _server(self) -> CodeServer:
        with self._starting:
            if not self._held or not self._held[0].alive:
                if self._starts > _MAX_RESTARTS:
                    raise SandboxUnavailable("the code sandbox is closed, or died too often")
                self._starts += 1
                _close_all(self._held)
                backend = self._backend if isinstance(self._backend, Backend) else self._backend()
                starting = self._starter.submit(CodeServer.start, backend, self._program, self.limits)
                self._held.append(starting.result())
            return self._held[0]

    def _judged(self, ended: Ended) -> CodeResult:
        output = ended.output.decode("utf-8", "replace")
        match ended.stopped:
            case Stop.WALL_CLOCK:
                return CodeResult(CodeEnd.TIMEOUT, output)
            case Stop.OUTPUT_FLOOD:
                return CodeResult(CodeEnd.OUTPUT, output)
            case Stop.FORGERY:
                return CodeResult(CodeEnd.CRASH, output, "broken protocol")
            case Stop.CANCELLED:
                raise SandboxUnavailable("the call was cancelled")
        assert ended.status is not None
        return CodeResult(_end(ended, self.limits), output, _detail(ended.status))


class _Ticket:
    """Ties a waiting coroutine to the call that a thread makes for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._call: Call | None = None
        self._cancelled = False

    def hold(self, call: Call) -> None:
        with self._lock:
            self._call = call
            if self._cancelled:
                call.cancel()

    def cancel(self) -> None:
        with self._lock:
            self._cancelled = True
            if self._call is not None:
                self._call.cancel()


def _end(ended: Ended, limits: CodeLimits) -> CodeEnd:
    """The end of a process that the host did not stop, from its wait status."""
    assert ended.status is not None
    if not os.WIFSIGNALED(ended.status):
        known = {0: CodeEnd.DONE, RAISED: CodeEnd.RAISED, OUT_OF_MEMORY: CodeEnd.MEMORY}
        return known.get(os.WEXITSTATUS(ended.status), CodeEnd.EXITED)
    number = os.WTERMSIG(ended.status)
    if number == signal.SIGXCPU or (number == signal.SIGKILL and ended.cpu_seconds >= limits.cpu_seconds):
        return CodeEnd.TIMEOUT
    if number == signal.SIGKILL:
        raise SandboxUnavailable("a call's process was killed from outside")
    return CodeEnd.CRASH


def _detail(status: int) -> str:
    if os.WIFSIGNALED(status):
        return signal.strsignal(os.WTERMSIG(status)) or f"signal {os.WTERMSIG(status)}"
    return f"status {os.WEXITSTATUS(status)}"


def _close_all(servers: list[CodeServer]) -> None:
    while servers:
        with contextlib.suppress(OSError):
            servers.pop().close()
