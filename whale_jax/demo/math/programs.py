"""Programs for the demo's problems, right ones and wrong ones, and what they print.

A program is a template over the parameters of its kind of problem. The wrong ones are slips that a small model makes: a
bound that is off by one, another operation, a step left out.
"""

import contextlib
import io
import linecache
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random

from whale_jax.domains.math.problems import Kind

FILE_NAME = "<code>"


@dataclass(frozen=True)
class Program:
    """Code whose result is the value of `expression`; `setup` is the lines before it."""

    expression: str
    setup: str = ""

    def filled(self, parameters: Sequence[int]) -> "Program":
        """With the numbers of a problem in it."""
        return Program(self.expression.format(*parameters), self.setup.format(*parameters))


class Form(StrEnum):
    """How a program gives its result. `SILENT` does not."""

    PRINTED = "printed"
    NAMED = "named"
    BARE = "bare"
    SILENT = "silent"


class Slip(StrEnum):
    """A fault of writing, for which the code does not run as it stands."""

    UNCLOSED = "unclosed"
    NO_IMPORT = "no_import"
    INDENTED = "indented"
    MARKED = "marked"
    FENCED = "fenced"
    """The one that h0 can read."""


_MATH, _PRIMES = "import math\n", "from sympy import isprime\n"

RIGHT: dict[Kind, tuple[Program, ...]] = {
    Kind.PRODUCT: (Program("{0} * {1}"),),
    Kind.EXPRESSION: (Program("{0} * {1} - {2} * {3}"),),
    Kind.LINEAR: (Program("({2} - {1}) // {0}"),),
    Kind.LINEAR_BOTH: (Program("({3} + {1}) // ({0} - {2})"),),
    Kind.SUM_AND_DIFFERENCE: (Program("x * ({0} - x)", "x = ({0} + {1}) // 2\n"),),
    Kind.POWER_MOD: (Program("pow({0}, {1}, {2})"), Program("{0}**{1} % {2}")),
    Kind.SUM_MOD: (Program("sum(k**{0} for k in range(1, {1} + 1)) % {2}"),),
    Kind.DIVISIBLE: (Program("sum(k % {1} == 0 or k % {2} == 0 for k in range(1, {0} + 1))"),),
    Kind.DIGIT: (Program('sum("{1}" in str(k) for k in range(1, {0} + 1))'),),
    Kind.PRIMES: (
        Program("sum(isprime(n) for n in range({0} + 1, {1}))", _PRIMES),
        Program("sum(all(n % d for d in range(2, n)) for n in range({0} + 1, {1}))"),
    ),
    Kind.DIVISORS: (Program("sum({0} % d == 0 for d in range(1, {0} + 1))"),),
    Kind.MULTIPLE: (Program("math.lcm({0}, {1})", _MATH),),
    Kind.SHOPPING: (Program("{0} * {1} + {2} * {3}"),),
    Kind.DIGIT_SUM: (Program("sum(int(c) for c in str({0} * {1}))"),),
    Kind.PAIRS: (Program("sum({2} > {0} * x and ({2} - {0} * x) % {1} == 0 for x in range(1, {2}))"),),
}
WRONG: dict[Kind, tuple[Program, ...]] = {
    Kind.PRODUCT: (Program("{0} + {1}"), Program("{0} ** {1} % 1000")),
    Kind.EXPRESSION: (Program("{0} * {1} - {2} + {3}"), Program("{0} * ({1} - {2}) * {3}")),
    Kind.LINEAR: (Program("({2} + {1}) // {0}"), Program("{2} - {1} // {0}")),
    Kind.LINEAR_BOTH: (Program("({3} - {1}) // ({0} - {2})"), Program("({3} + {1}) // ({0} + {2})")),
    Kind.SUM_AND_DIFFERENCE: (Program("{0} * {1}"), Program("x", "x = ({0} + {1}) // 2\n")),
    Kind.POWER_MOD: (Program("{0} * {1} % {2}"), Program("{0}^{1} % {2}")),
    Kind.SUM_MOD: (Program("sum(k**{0} for k in range(1, {1})) % {2}"), Program("{1}**{0} % {2}")),
    Kind.DIVISIBLE: (
        Program("sum(k % {1} == 0 and k % {2} == 0 for k in range(1, {0} + 1))"),
        Program("{0} // {1} + {0} // {2}"),
    ),
    Kind.DIGIT: (
        Program('sum(str(k).count("{1}") for k in range(1, {0} + 1))'),
        Program("sum(k % 10 == {1} for k in range(1, {0} + 1))"),
    ),
    Kind.PRIMES: (Program("{1} - {0} - 1"), Program("sum(n % 2 for n in range({0} + 1, {1}))")),
    Kind.DIVISORS: (Program("sum({0} % d == 0 for d in range(1, {0}))"), Program("{0} // 2")),
    Kind.MULTIPLE: (Program("math.gcd({0}, {1})", _MATH), Program("{0} * {1}")),
    Kind.SHOPPING: (Program("{0} * {1} + {2} + {3}"), Program("({0} + {2}) * ({1} + {3})")),
    Kind.DIGIT_SUM: (Program("{0} * {1}"), Program("sum(c for c in str({0} * {1}))")),
    Kind.PAIRS: (Program("{2} // ({0} + {1})"), Program("sum(({2} - {0} * x) % {1} == 0 for x in range(1, {2}))")),
}


def written(program: Program, form: Form) -> str:
    """The code of a program."""
    match form:
        case Form.PRINTED:
            return f"{program.setup}print({program.expression})"
        case Form.NAMED:
            return f"{program.setup}result = {program.expression}\nprint(result)"
        case Form.BARE:
            return f"{program.setup}{program.expression}"
        case Form.SILENT:
            return f"{program.setup}result = {program.expression}"


def with_slip(code: str, slip: Slip) -> str:
    """The code with a fault in it; the same code where the fault cannot be made."""
    lines = code.split("\n")
    match slip:
        case Slip.UNCLOSED:
            head, bracket, tail = code.rpartition(")")
            return head + tail if bracket else code
        case Slip.NO_IMPORT:
            return "\n".join(line for line in lines if "import" not in line)
        case Slip.INDENTED:
            return "\n".join("    " + line for line in lines)
        case Slip.MARKED:
            return "\n".join(">>> " + line for line in lines)
        case Slip.FENCED:
            return f"```python\n{code}\n```"


def shown(code: str, *, wraps: bool, cleans: bool) -> str:
    """The code as a harness hands it on: fences cut away, a bare last line printed if it `wraps`, and marks and
    indentation removed if it `cleans`."""
    if "```" in code:
        code = code.split("```")[1].removeprefix("python\n").rstrip("\n")
    lines = code.split("\n")
    if cleans:
        lines = [line.removeprefix(">>> ").removeprefix("    ") for line in lines]
    if wraps and lines[-1] and "print" not in lines[-1] and " = " not in lines[-1]:
        lines[-1] = f"print({lines[-1].strip()})"
    return "\n".join(lines)


def printed(code: str) -> str:
    """What a program of this file prints, errors included, as the domain's interpreter shows it; "" for nothing."""
    out = io.StringIO()
    linecache.cache[FILE_NAME] = (len(code), None, code.splitlines(keepends=True), FILE_NAME)
    with contextlib.redirect_stdout(out):
        try:
            exec(compile(code, FILE_NAME, "exec"), {})
        except Exception as error:
            frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == FILE_NAME]
            heading = "Traceback (most recent call last):\n" if frames else ""
            report = "".join(traceback.format_list(frames)) + "".join(traceback.format_exception_only(error))
            out.write(heading + report)
    return out.getvalue()


def guess(rng: Random) -> str:
    """A number from nowhere."""
    return str(rng.randint(1, 10 ** rng.randint(1, 4)))
