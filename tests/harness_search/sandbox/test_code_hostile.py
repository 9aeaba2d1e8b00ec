"""Hostile and broken snippets: each ends as the right end, and none touches a neighbour or the next call."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness_search.sandbox.backends import Backend
from harness_search.sandbox.code import PYTHON, CodeEnd, CodeInterpreter, CodeLimits, CodeResult, Program
from harness_search.sandbox.limits import MIB

DONE, RAISED, EXITED, TIMEOUT = CodeEnd.DONE, CodeEnd.RAISED, CodeEnd.EXITED, CodeEnd.TIMEOUT
MEMORY, CRASH, OUTPUT = CodeEnd.MEMORY, CodeEnd.CRASH, CodeEnd.OUTPUT
DENIED = "Operation not permitted"
SECRET = "the-reference-is-42"


@dataclass(frozen=True)
class Snippet:
    code: str
    end: CodeEnd | tuple[CodeEnd, ...]
    says: str = ""


CORPUS = {
    # what it must not see
    "reads a system file": Snippet("print(open('/etc/passwd').read())", RAISED, DENIED),
    "reads the references": Snippet("print(open(PATH).read())", RAISED, DENIED),
    "lists the root folder": Snippet("import os; print(os.listdir('/'))", RAISED, DENIED),
    "reads its parent's memory": Snippet("import os; os.open(f'/proc/{os.getppid()}/mem', os.O_RDWR)", RAISED, DENIED),
    "reads its own maps": Snippet("print(open('/proc/self/maps').read())", RAISED, DENIED),
    "reads the host's environment": Snippet("import os; print(open('/proc/1/environ').read())", RAISED, DENIED),
    "prints its environment": Snippet("import os; print(sorted(os.environ))", DONE, "PYTHONHASHSEED"),
    "searches its memory for references": Snippet(
        "import gc; print(sum('the-reference' in repr(one)[:9999] for one in gc.get_objects() if type(one) is str))",
        DONE,
        "0",
    ),
    "reads memory of another process": Snippet(
        "import ctypes, os\nbuffer = ctypes.create_string_buffer(64)\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "print(libc.syscall(310, os.getppid(), buffer, 1, buffer, 1, 0), ctypes.get_errno())",
        DONE,
        "-1 1",
    ),
    # the network
    "connects to the metadata address": Snippet(
        "import socket; socket.create_connection(('169.254.169.254', 80), 1)", RAISED, DENIED
    ),
    "sends UDP": Snippet("import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM)", RAISED, DENIED),
    "connects to an abstract socket": Snippet("import socket; socket.socket(socket.AF_UNIX)", RAISED, DENIED),
    "resolves a name": Snippet("import socket; socket.getaddrinfo('example.org', 80)", RAISED, "gaierror"),
    # processes and threads
    "forks without end": Snippet("import os\nwhile True: os.fork()", RAISED, DENIED),
    "becomes a daemon": Snippet("import os\nif os.fork() == 0:\n    os.setsid()", RAISED, DENIED),
    "runs a shell": Snippet("import subprocess; subprocess.run(['/bin/sh', '-c', 'id'])", RAISED, "Error"),
    "replaces itself": Snippet("import os; os.execv('/bin/sh', ['sh'])", RAISED, DENIED),
    "starts a thread": Snippet("import threading; threading.Thread(target=print).start()", RAISED, "new thread"),
    "kills its parent": Snippet("import os; os.kill(os.getppid(), 9)", RAISED, DENIED),
    "kills everybody": Snippet("import os; os.kill(-1, 9)", RAISED, DENIED),
    "raises its limits": Snippet("import resource; resource.setrlimit(9, (-1, -1))", RAISED, "not allowed"),
    "exhausts its descriptors": Snippet("import os\nwhile True: os.dup(1)", RAISED, DENIED),
    # memory
    "takes memory step by step": Snippet("x = []\nwhile True: x.append(bytearray(1 << 22))", MEMORY),
    "takes memory at once": Snippet("x = 'x' * 10**12", MEMORY),
    "takes memory for an array": Snippet("import numpy; numpy.ones((10**6, 10**6))", MEMORY),
    "takes memory outside its own": Snippet("import os; os.memfd_create('x')", RAISED, DENIED),
    "takes memory and hides it": Snippet(
        "x = []\ntry:\n    while True: x.append(bytearray(1 << 22))\nexcept MemoryError: x = None\nprint('fine')",
        DONE,
        "fine",
    ),
    # the disk
    "writes to /tmp": Snippet("open('/tmp/x', 'w').write('x' * 10**9)", RAISED, DENIED),
    "writes to /dev/shm": Snippet("import os; os.open('/dev/shm/x', os.O_CREAT | os.O_RDWR)", RAISED, DENIED),
    # output
    "prints without end": Snippet("while True: print('x' * 1000)", OUTPUT, "xxx"),
    "prints one endless line": Snippet("import sys\nwhile True: sys.stderr.write('x')", OUTPUT, "xxx"),
    "writes natively without end": Snippet("import os\nwhile True: os.write(1, b'x' * 9999)", OUTPUT, "xxx"),
    "raises a long message": Snippet("raise ValueError('x' * 10_000_000)", OUTPUT, "ValueError"),
    "prints what is no text": Snippet("import os; os.write(1, b'\\xff\\xfe ok')", DONE, "\ufffd\ufffd ok"),
    "prints surrogates": Snippet("print('\\ud800')", DONE, "\\ud800"),
    "prints NUL": Snippet("print('a\\0b')", DONE, "a\0b"),
    # time
    "loops": Snippet("while True: pass", TIMEOUT),
    "ignores signals": Snippet(
        "import signal\nfor number in range(1, 65):\n    try: signal.signal(number, signal.SIG_IGN)\n"
        "    except Exception: pass\nwhile True: pass",
        TIMEOUT,
    ),
    "swallows everything": Snippet(
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass", TIMEOUT
    ),
    "loops natively": Snippet("sum(iter(int, 1))", TIMEOUT),
    "backtracks without end": Snippet("import re; re.match('(a*)*b', 'a' * 60)", TIMEOUT),
    "computes a huge power": Snippet("x = 7 ** 9 ** 9; print(x % 10)", (TIMEOUT, MEMORY)),
    "computes a power tower": Snippet("x = 9 ** 9 ** 9 ** 9", (TIMEOUT, MEMORY)),
    "prints a huge integer": Snippet("print(10 ** 10_000)", RAISED, "Exceeds the limit"),
    "converts a huge integer": Snippet(
        "import sys; sys.set_int_max_str_digits(0); print(len(str(3 ** 10**8)))", TIMEOUT
    ),
    # crashes
    "reads address zero": Snippet("import ctypes; ctypes.string_at(0)", CRASH),
    "aborts": Snippet("import os; os.abort()", CRASH),
    "recurses": Snippet("def f(n): return f(n + 1) + 1\nf(0)", RAISED, "RecursionError"),
    "recurses without a limit": Snippet(
        "import sys; sys.setrecursionlimit(10**9)\ndef f(n): return [f(n + 1)]\nf(0)", (CRASH, MEMORY, TIMEOUT)
    ),
    "recurses natively": Snippet(
        "import sys; sys.setrecursionlimit(10**9)\nx = []\nfor _ in range(10**6): x = [x]\nrepr(x)",
        (CRASH, MEMORY, TIMEOUT),
    ),
    "ends its process": Snippet("import os; print('before'); os._exit(7)", EXITED, "before"),
    "ends its process in peace": Snippet("import os; print('before'); os._exit(0)", DONE, "before"),
    "exits with a number": Snippet("import sys; sys.exit(3)", EXITED),
    "exits with a message": Snippet("raise SystemExit('bye')", EXITED, "bye"),
    "exits": Snippet("exit = SystemExit; raise exit", DONE),
    # broken code
    "is no Python": Snippet("print('a", RAISED, "SyntaxError"),
    "holds a surrogate": Snippet("print('\ud800')", RAISED, "surrogates not allowed"),
    "holds a NUL": Snippet("print('a\0b')", RAISED, "null bytes"),
    "is nested too deeply": Snippet("(" * 10_000 + ")" * 10_000, RAISED, "Error"),
    "is an absurd expression": Snippet("-" * 200_000 + "1", (RAISED, MEMORY, CRASH)),
    "raises the unprintable": Snippet(
        "class Evil(BaseException):\n    def __str__(self): raise Evil()\nraise Evil()", RAISED
    ),
    "imports what is missing": Snippet("import pandas", RAISED, "No module named 'pandas'"),
    "asks for input": Snippet("input()", RAISED, "EOFError"),
    # the machinery around it
    "closes all descriptors": Snippet("import os; os.closerange(0, 1024); print('x')", RAISED),
    "closes all descriptors and goes on": Snippet("import os; os.closerange(0, 1024)\nwhile True: pass", TIMEOUT),
    "sends garbage to all descriptors": Snippet(
        "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'garbage')\n    except OSError: pass", CRASH
    ),
    "claims to be done and goes on": Snippet(
        "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'\\0')\n    except OSError: pass\nwhile True: pass",
        DONE,
    ),
    "leaves bombs behind": Snippet(
        "import atexit\nclass Bomb:\n    def __del__(self):\n        while True: pass\n"
        "b = Bomb()\natexit.register(Bomb().__del__)",
        DONE,
    ),
    "breaks the runtime": Snippet(
        "import builtins, os, sys\nsys.stdout = sys.stderr = None\nbuiltins.print = os.write = os._exit = None", DONE
    ),
    "leaves a mark": Snippet(
        "import json, sympy\nprint(hasattr(json, 'mark'), hasattr(sympy, 'mark'))\njson.mark = sympy.mark = 1",
        DONE,
        "False False",
    ),
    "finds a mark": Snippet("import json, sympy\nprint(hasattr(json, 'mark'), hasattr(sympy, 'mark'))", DONE, "False"),
}
SLEEPERS = {
    "sleeps": "import time; time.sleep(3600)",
    "waits for a lock": "import threading; lock = threading.Lock(); lock.acquire(); lock.acquire()",
    "sleeps and ignores signals": "import signal, time\nsignal.signal(15, signal.SIG_IGN)\n"
    "while True:\n    try: time.sleep(3600)\n    except BaseException: pass",
}
GOOD = "import sympy; print(sympy.factorint(2**32 + 1))"
GOOD_OUTPUT = "{641: 1, 6700417: 1}\n"


@pytest.fixture(scope="module")
def results(backend: Backend, tmp_path_factory: pytest.TempPathFactory) -> dict[str, CodeResult]:
    """Every snippet, a few at a time, with good ones between them, in one interpreter."""
    reference: Path = tmp_path_factory.mktemp("references") / "test.jsonl"
    reference.write_text(SECRET)
    reference.chmod(0o644)
    limits = CodeLimits(cpu_seconds=1, wall_seconds=200.0, memory_bytes=400 * MIB, output_bytes=64 * 1024)
    codes = {name: snippet.code.replace("PATH", repr(str(reference))) for name, snippet in CORPUS.items()}
    codes["finds a mark"] = codes.pop("finds a mark")
    for number in range(0, len(codes), 6):
        codes[f"good {number}"] = GOOD
    interpreter = CodeInterpreter(backend, limits=limits, concurrency=4)
    with ThreadPoolExecutor(4) as pool:
        try:
            return dict(zip(codes, pool.map(interpreter.run, codes.values()), strict=True))
        finally:
            interpreter.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", CORPUS)
def test_a_hostile_snippet_ends_its_own_call(results: dict[str, CodeResult], name: str) -> None:
    snippet, result = CORPUS[name], results[name]
    ends = snippet.end if isinstance(snippet.end, tuple) else (snippet.end,)
    assert result.end in ends, result
    assert snippet.says in result.output, result
    assert SECRET not in result.output
    assert len(result.output) <= 64 * 1024


@pytest.mark.slow
def test_the_neighbours_notice_nothing(results: dict[str, CodeResult]) -> None:
    good = [result for name, result in results.items() if name.startswith("good")]
    assert len(good) > 10
    assert {(result.end, result.output) for result in good} == {(DONE, GOOD_OUTPUT)}


def test_the_corpus_is_large_enough() -> None:
    assert len(CORPUS) + len(SLEEPERS) >= 40


@pytest.fixture(scope="module")
def impatient(any_backend: Backend) -> Iterator[CodeInterpreter]:
    """Without packages; its wall clock is short."""
    interpreter = CodeInterpreter(
        any_backend, program=Program((), ()), limits=CodeLimits(wall_seconds=0.5), concurrency=3
    )
    yield interpreter
    interpreter.close()


@pytest.mark.parametrize("name", SLEEPERS)
def test_waiting_ends_by_the_wall_clock(impatient: CodeInterpreter, name: str) -> None:
    assert impatient.run(SLEEPERS[name]).end is TIMEOUT
    assert threading.active_count() < 50


def test_what_is_held_is_said(any_backend: Backend) -> None:
    interpreter = CodeInterpreter(any_backend, program=Program((), ()))
    try:
        assert {"seccomp allow list", "no_new_privs", "resource limits"} <= set(interpreter.enforced)
    finally:
        interpreter.close()


def test_packages_that_are_not_granted_are_not_there(impatient: CodeInterpreter) -> None:
    for name in (*PYTHON.packages, "whale_jax"):
        result = impatient.run(f"import {name}")
        assert (result.end, f"No module named {name!r}" in result.output) == (RAISED, True)
