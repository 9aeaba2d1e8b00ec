"""The symbolic comparison as the host sees it: one killable, locked-in process per pair of expressions.

Answers are the model's text, and computer algebra on them may take for ever or all memory (case C076); a limit inside a
thread would not free it. `comparison.py` is what runs inside.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources

from harness_search.sandbox.backends import Backend
from harness_search.sandbox.code import CodeEnd, CodeInterpreter, CodeLimits, CodeResult, Program
from harness_search.sandbox.limits import MIB

_MODULE = "math_comparison"
LIMITS = CodeLimits(cpu_seconds=3, wall_seconds=60.0, memory_bytes=1024 * MIB, output_bytes=4096)


@dataclass(frozen=True)
class Comparison:
    """Attributes:
    equal: whether the answer is the reference; None when the reference itself cannot be read.
    reason: one short line that holds nothing of the reference.
    """

    equal: bool | None
    reason: str


class SymbolicComparer:
    """Compares expressions through math-verify. Safe to use from any thread; starts with the first comparison."""

    def __init__(self, backend: Backend | Callable[[], Backend], *, limits: CodeLimits = LIMITS) -> None:
        self._interpreter = CodeInterpreter(backend, program=program(), limits=limits)

    def compare(self, reference: str, answer: str) -> Comparison:
        """Whether `answer` equals `reference`, both LaTeX without delimiters.

        Raises:
            SandboxUnavailable: the sandbox failed; nothing can be said about the answer.
        """
        result = self._interpreter.run(f"import {_MODULE}\n{_MODULE}.main({reference!r}, {answer!r})")
        return _comparison(result)

    def close(self) -> None:
        """Ends the processes."""
        self._interpreter.close()


def program() -> Program:
    """What the process holds ready: computer algebra, math-verify, and the comparison with its guards."""
    source = resources.files("whale_jax.domains.math").joinpath("comparison.py").read_text(encoding="utf-8")
    return Program(
        packages=("sympy", "mpmath", "antlr4", "latex2sympy2_extended", "math_verify"),
        preload=("mpmath.*", "sympy.*", "antlr4.*", "latex2sympy2_extended.*", "math_verify", _MODULE),
        modules={_MODULE: source},
        distributions=("antlr4-python3-runtime",),  # the parser is chosen by it
        prelude="import sympy.core.random\nsympy.core.random.seed(0)",  # numeric tests draw points at random
        warm_up=f"import {_MODULE}\n{_MODULE}.warm_up()",
    )


def _comparison(result: CodeResult) -> Comparison:
    if result.end is CodeEnd.TIMEOUT:
        return Comparison(False, "timeout: the answer could not be compared in time")
    if result.end is not CodeEnd.DONE:
        return Comparison(False, f"the answer could not be compared: {result.end}")
    try:
        verdict = json.loads(result.output)
    except ValueError:
        return Comparison(False, "the answer could not be compared: no result")
    return Comparison(bool(verdict["equal"]) if verdict["readable"] else None, str(verdict["reason"]))
