"""The code interpreter's own promises: state, order, concurrency, cancelling, repair."""

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from harness_search.sandbox.backends import Backend, SandboxUnavailable, detect
from harness_search.sandbox.code import CodeEnd, CodeInterpreter, CodeLimits, CodeResult, Program
from harness_search.sandbox.code_server import CodeServer

BARE = Program((), ())
DONE, RAISED = CodeEnd.DONE, CodeEnd.RAISED


@pytest.fixture(scope="module")
def interpreter(any_backend: Backend) -> Iterator[CodeInterpreter]:
    """Python with its packages."""
    interpreter = CodeInterpreter(any_backend, concurrency=4)
    yield interpreter
    interpreter.close()


@pytest.fixture
def bare(any_backend: Backend) -> Iterator[CodeInterpreter]:
    """Without packages: starts fast."""
    interpreter = CodeInterpreter(any_backend, program=BARE, limits=CodeLimits(code_bytes=1000), concurrency=2)
    yield interpreter
    interpreter.close()


WORK = """
import numpy as np, sympy as sp, mpmath, math, itertools, fractions, collections, decimal, random, statistics, functools
x, y, n, k = sp.symbols("x y n k")
def check(name, value, expected):
    if str(value) != str(expected):
        print("WRONG", name, value)
check("solve", sp.solve(x**2 - 5*x + 6), [2, 3])
check("linsolve", sp.linsolve([x + y - 3, x - y - 1], x, y), "{(2, 1)}")
check("nsolve", sp.nsolve(sp.cos(x) - x, 1).round(5), "0.73909")
check("reduce", sp.reduce_inequalities(x**2 < 4, x), "(-2 < x) & (x < 2)")
check("integrate", sp.integrate(sp.exp(-x**2), (x, -sp.oo, sp.oo)), "sqrt(pi)")
check("limit", sp.limit(sp.sin(x)/x, x, 0), 1)
check("series", sp.series(sp.exp(x), x, 0, 3), "1 + x + x**2/2 + O(x**3)")
check("summation", sp.summation(k, (k, 1, n)).subs(n, 100), 5050)
check("simplify", sp.simplify(sp.sin(x)**2 + sp.cos(x)**2), 1)
check("factor", sp.factor(x**3 - 1), "(x - 1)*(x**2 + x + 1)")
check("matrix", sp.Matrix([[1, 2], [3, 4]]).det(), -2)
check("eigen", sorted(sp.Matrix([[2, 0], [0, 3]]).eigenvals()), [2, 3])
check("primes", list(sp.primerange(10, 20)), [11, 13, 17, 19])
check("factorint", sp.factorint(360), {2: 3, 3: 2, 5: 1})
check("totient", sp.totient(36), 12)
check("diophantine", sp.diophantine(3*x + 5*y - 1), "{(5*t_0 + 2, -3*t_0 - 1)}")
check("lambdify", sp.lambdify(x, x**2, "numpy")(np.array([1, 2])).tolist(), [1, 4])
check("lambdify math", sp.lambdify(x, sp.sin(x), "math")(0), 0.0)
check("dsolve", sp.dsolve(sp.Function("f")(x).diff(x) - 1).rhs, "C1 + x")
check("groebner", list(sp.groebner([x**2 - y, y - 1], x, y).exprs), "[x**2 - 1, y - 1]")
check("rsolve", sp.rsolve(sp.Function("a")(n) - 2*sp.Function("a")(n - 1), sp.Function("a")(n)), "2**n*C0")
check("stats", sp.stats.P(sp.stats.Die("D", 6) > 4) if hasattr(sp, "stats") else __import__("sympy.stats").stats.P(
    __import__("sympy.stats").stats.Die("D", 6) > 4), "1/3")
check("geometry", sp.Circle(sp.Point(0, 0), 2).area, "4*pi")
check("minimum", sp.calculus.util.minimum(x**2 - 2*x, x), -1)
check("parse", sp.parse_expr("x**2 + 1"), "x**2 + 1")
check("sympify", sp.sympify("1/3") + 1, "4/3")
check("latex", sp.latex(sp.sqrt(2)), "\\\\sqrt{2}")
check("permutations", sp.combinatorics.Permutation([1, 0]).order(), 2)
check("crt", sp.ntheory.modular.crt([3, 5], [2, 3]), "(8, 15)")
check("piecewise", sp.Piecewise((1, x > 0), (0, True)).subs(x, 1), 1)
check("numpy", np.linalg.solve(np.array([[2., 0], [0, 4]]), np.array([2., 4])).tolist(), [1.0, 1.0])
check("roots", sorted(np.roots([1, -3, 2]).round(6).tolist()), [1.0, 2.0])
check("polynomial", np.polynomial.Polynomial([1, 2])(3), 7.0)
check("fft", np.fft.fft([1, 0]).real.tolist(), [1.0, 1.0])
check("mpmath", mpmath.nstr(mpmath.zeta(2), 6), "1.64493")
check("quad", mpmath.nstr(mpmath.quad(lambda t: t**2, [0, 1]), 5), "0.33333")
check("fractions", fractions.Fraction(1, 3) + 1, "4/3")
check("decimal", decimal.Decimal("0.1") + decimal.Decimal("0.2"), "0.3")
check("comb", math.comb(10, 3), 120)
check("statistics", statistics.median([1, 2, 3]), 2)
print("all checked")
"""


def test_what_mathematics_needs_is_loaded(interpreter: CodeInterpreter) -> None:
    assert interpreter.run(WORK) == CodeResult(DONE, "all checked\n", "status 0")


def test_the_same_code_prints_the_same_numbers(interpreter: CodeInterpreter) -> None:
    code = "import random, numpy\nprint(random.random(), numpy.random.rand(), numpy.random.default_rng().random())\n"
    code += "print(list({'a', 'b', 'c'}))"
    first = interpreter.run(code)
    assert first.end is DONE
    assert interpreter.run(code) == first


def test_output_and_errors_come_in_the_order_of_printing(bare: CodeInterpreter) -> None:
    code = "import os, sys\nprint(1)\nprint(2, file=sys.stderr)\nos.write(1, b'3\\n')\nprint(4, end='')\n1/0"
    result = bare.run(code)
    assert result.end is RAISED
    assert result.output.startswith('1\n2\n3\n4Traceback (most recent call last):\n  File "<code>", line 6')
    assert result.output.endswith("ZeroDivisionError: division by zero\n")


def test_a_traceback_shows_the_code_alone(interpreter: CodeInterpreter) -> None:
    output = interpreter.run("import json\ndef f():\n    return json.loads('x')\nf()").output
    assert output.count("File ") == output.count('File "<code>"') == 2
    assert "return json.loads('x')" in output


def test_code_that_is_too_long_is_not_run(bare: CodeInterpreter) -> None:
    result = bare.run("#" * 1001)
    assert (result.end, result.detail) == (CodeEnd.REFUSED, "1001 bytes of code, more than 1000")


def test_the_parent_outlives_the_thread_that_needed_it_first(bare: CodeInterpreter) -> None:
    first = threading.Thread(target=bare.run, args=("1",))
    first.start()
    first.join()
    process = bare._held[0]._process
    assert bare.run("print(2)").output == "2\n"
    assert process.poll() is None


def test_many_at_once_keep_their_output_apart(interpreter: CodeInterpreter) -> None:
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(interpreter.run, (f"print({number} ** 2)" for number in range(24))))
    assert [result.output for result in results] == [f"{number**2}\n" for number in range(24)]


def test_a_cancelled_call_frees_its_place(bare: CodeInterpreter) -> None:
    async def main() -> CodeResult:
        calls = [asyncio.ensure_future(bare.run_async("import time; print('in'); time.sleep(1000)")) for _ in range(6)]
        await asyncio.wait(calls, timeout=0.3)
        for call in calls:
            call.cancel()
        ended = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) for one in ended)
        return await bare.run_async("print('next')")

    assert asyncio.run(main()).output == "next\n"


def test_a_parent_that_dies_is_started_again(bare: CodeInterpreter) -> None:
    assert bare.run("print(1)").output == "1\n"
    server = bare._held[0]
    call = server.call(b"import time; time.sleep(1000)")
    os.kill(server._process.pid, signal.SIGKILL)
    server._process.wait()
    with pytest.raises(SandboxUnavailable):
        call.finish(bare.limits)
    assert bare.run("print(2)").output == "2\n"


def test_a_parent_that_dies_too_often_is_given_up(any_backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> CodeServer:
        raise SandboxUnavailable("no luck")

    monkeypatch.setattr(CodeServer, "start", fail)
    interpreter = CodeInterpreter(any_backend, program=BARE)
    for _ in range(9):
        with pytest.raises(SandboxUnavailable, match="no luck"):
            interpreter.run("1")
    with pytest.raises(SandboxUnavailable, match="too often"):
        interpreter.run("1")
    interpreter.close()


def test_closing_ends_it_for_good(any_backend: Backend) -> None:
    interpreter = CodeInterpreter(any_backend, program=BARE)
    interpreter.run("1")
    process = interpreter._held[0]._process
    interpreter.close()
    assert process.returncode is not None
    with pytest.raises(SandboxUnavailable, match="closed"):
        interpreter.run("1")
    interpreter.close()


def test_an_interpreter_that_is_dropped_ends_its_parent(any_backend: Backend) -> None:
    interpreter = CodeInterpreter(any_backend, program=BARE)
    interpreter.run("1")
    process = interpreter._held[0]._process
    del interpreter
    assert process.returncode is not None


def test_no_descriptor_is_left(bare: CodeInterpreter) -> None:
    bare.run("1")
    before = len(os.listdir("/proc/self/fd"))
    for code in ("print(1)", "1/0", "import os; os._exit(3)", "import os; os.closerange(0, 99)"):
        bare.run(code)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_package_that_is_not_installed_is_named(any_backend: Backend) -> None:
    interpreter = CodeInterpreter(any_backend, program=Program(("no_such_package",), ()))
    with pytest.raises(SandboxUnavailable, match="needs the package no_such_package; install it"):
        interpreter.run("1")
    interpreter.close()


def test_what_fails_while_it_loads_is_told(any_backend: Backend) -> None:
    interpreter = CodeInterpreter(any_backend, program=Program((), ("no_such_module",)))
    with pytest.raises(SandboxUnavailable, match="did not come up: ModuleNotFoundError"):
        interpreter.run("1")
    interpreter.close()


def test_limits_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match=r"CodeLimits\.cpu_seconds must be > 0, got 0"):
        CodeLimits(cpu_seconds=0)


def test_without_a_sandbox_it_runs_all_the_same() -> None:
    interpreter = CodeInterpreter(detect("none"), program=BARE)
    try:
        assert interpreter.run("import os; print(os.getpid() > 0)").output == "True\n"
        daemon = "import os, time\nif os.fork() == 0:\n    time.sleep(1000)\nprint('left')"
        assert interpreter.run(daemon).output.count("left") == 1
    finally:
        interpreter.close()
