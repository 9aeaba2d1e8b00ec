r"""Symbolic comparison by math-verify, with guards; runs inside the code sandbox, where this file is shipped as source.

math-verify decides that two expressions are *not* equal; that they are equal is believed only if every guard below
agrees. Each guard stands for answers that math-verify 0.9.0 takes for equal and that are not (the tests list them):
sets for pairs, words for products of letters, roundings and tiny differences for values, equations without solutions
for one another, the last of several claims for the only one, and work left undone for its result.

References: docs of math-verify; cases C069-C104.
"""

from __future__ import annotations

import json
import logging
import re
from typing import Any

import sympy
from math_verify import parse, verify
from math_verify.parser import LatexExtractionConfig
from sympy import Basic, Eq, Expr, Float, MatrixBase, Rational, Symbol
from sympy.concrete.expr_with_limits import ExprWithLimits
from sympy.core.relational import Relational
from sympy.logic.boolalg import BooleanFunction

_DIGITS = 50
_WORDS = re.compile(r"^(?:\\(?:text|textbf|mathrm|textrm|mbox)\s*\{([^{}\\]*)\}|([A-Za-z]{2,}(?: [A-Za-z]+)*))$")
_LETTER = re.compile(r"^\(?[A-Za-z]\)?$")
_SPACED_DIGITS = re.compile(r"(?<![_^\w}])\d+\s+\d")
_SUBSCRIPTED_NUMBER = re.compile(r"\d\s*_")
_LOOSE_LETTER = re.compile(r"(?<![\\A-Za-z])[A-Za-z]")
_DELIMITER = re.compile(r"\$|\\[()\[\]]")
_SUBSCRIPT = re.compile(r"_\{[^{}]*\}")
_WORDY = re.compile(r"\\(?:text|textrm|mathrm|mbox)\s*\{([^{}\\]*)\}")
_SET, _ROUND, _SQUARE, _LIST, _NONE = "set", "round", "square", "list", "none"
_CLOSING = {"(": ")]", "[": ")]"}
_WORK = (
    *(ExprWithLimits, sympy.Limit, sympy.Derivative, sympy.factorial, sympy.binomial),
    *(sympy.Mod, sympy.floor, sympy.ceiling, sympy.Max, sympy.Min),
)
"""What has to be worked out. An answer may hold it only where the reference does."""

logging.disable(logging.CRITICAL)


def warm_up() -> None:
    """Goes through the motions once, so that parsers and caches are warm in every process forked from this one."""
    examples = (r"\frac{1}{2}", r"x^2+\sqrt{3}", r"\{1,2\}", r"(1,\infty)", "x>3", "y=2x", r"\frac{\pi}{3}", r"2\sin x")
    for one in examples:
        for other in (one + "+0", examples[0]):
            main(one, other)


def main(reference: str, answer: str) -> None:
    """Prints one JSON object: `readable` (is the reference?), `equal`, and `reason`, a short line."""
    gold = None if _words(reference) else read(reference)
    if gold is None and not _words(reference):
        verdict: dict[str, Any] = {"readable": False, "equal": False, "reason": "the reference cannot be read"}
    else:
        problem = difference(reference, gold, answer)
        verdict = {"readable": True, "equal": problem is None, "reason": problem or "symbolically equal"}
    print(json.dumps(verdict))


def read(text: str) -> Basic | MatrixBase | None:
    """`text` as one expression, decimals made exact; None if it cannot be read as LaTeX in whole."""
    if _DELIMITER.search(text):
        return None  # it could close the delimiters below, and be read as several
    config = LatexExtractionConfig(boxed_match_priority=-1)
    wrapped = f"${' '.join(text.split())}$"
    found = parse(wrapped, extraction_config=[config], fallback_mode="no_fallback", parsing_timeout=None)  # pyright: ignore[reportArgumentType]
    if not found or isinstance(found[0], str):
        return None
    if "=" in _SUBSCRIPT.sub("", text) and not found[0].has(Relational):
        return None  # only what follows its last equals sign was
    return _exact(found[0])


def difference(reference: str, gold: Basic | MatrixBase | None, answer: str) -> str | None:
    """Why `answer` is not the reference; None if it is. `gold`: the reference as read; not needed if it is words."""
    if gold is None or _words(answer):
        said, wanted = (_words(text) or _letter(text) for text in (answer, reference))
        return None if said == wanted else "other words"
    problem = _textual_problem(reference, answer)
    if problem is not None:
        return problem
    found = read(answer)
    if found is None:
        return "the answer cannot be read"
    problem = _structural_problem(gold, found)
    if problem is not None:
        return problem
    if isinstance(found, sympy.Number) and _LOOSE_LETTER.search(answer) and not _LOOSE_LETTER.search(reference):
        return "letters beside the number"  # taken for a unit, and dropped
    equal = verify(gold, found, numeric_precision=_DIGITS, timeout_seconds=None)  # pyright: ignore[reportArgumentType]
    return None if equal else "not equal"


def _words(text: str) -> str:
    """A text that is words alone, folded; "" otherwise. Read as mathematics it would be a product of letters."""
    match = _WORDS.match(text.strip())
    if match is None:
        return ""
    return " ".join((match[1] if match[1] is not None else match[2]).casefold().strip(" ().").split())


def _letter(text: str) -> str | None:
    """The letter of a choice, folded."""
    return text.strip("()").casefold() if _LETTER.match(text) else None


def _textual_problem(reference: str, answer: str) -> str | None:
    """What shows in the text and is lost once it is parsed."""
    if _SPACED_DIGITS.search(answer) and not _SPACED_DIGITS.search(reference):
        return "digits with a space between them"
    if ("%" in answer) != ("%" in reference):
        return "a percent sign in one of them"
    if _SUBSCRIPTED_NUMBER.search(answer) and not _SUBSCRIPTED_NUMBER.search(reference):
        return "a number in another base"
    if _remarks(answer) - _remarks(reference):
        return "words beside the mathematics"
    shapes = _shape(reference), _shape(answer)
    if shapes[0] != shapes[1] and {_ROUND, _SQUARE} & set(shapes) and {_SET, _LIST} & set(shapes):
        return "a set in place of a pair or interval, or the other way round"
    if set(shapes) == {_ROUND, _SQUARE}:
        return "other end points"
    return None


def _remarks(text: str) -> set[str]:
    """The words that stand beside the mathematics."""
    return {" ".join(one.casefold().split()) for one in _WORDY.findall(text)} - {""}


def _shape(text: str) -> str:
    """What encloses a text as a whole: the braces of a set, round or square brackets, commas alone, or nothing."""
    text = text.strip()
    if text.startswith(r"\{") and text.endswith(r"\}"):
        return _SET
    depth, comma = 0, False
    for index, character in enumerate(text):
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
            if depth == 0 and text[0] in _CLOSING and index == len(text) - 1 and "," in text:
                return _ROUND if text[0] + character == "()" else _SQUARE
            if depth == 0 and text[0] in _CLOSING:
                break
        comma = comma or (character == "," and depth == 0)
    return _LIST if comma else _NONE


def _structural_problem(gold: Basic | MatrixBase, found: Basic | MatrixBase) -> str | None:
    if any(one.has(sympy.zoo, sympy.nan) for one in (gold, found)):
        return "undefined"
    if isinstance(found, BooleanFunction) and not _is_claim(gold):
        return "several claims"
    if isinstance(found, Eq) and not _is_claim(gold):
        if not _is_name(found.lhs):
            return "an equation in place of a value"
        found = found.rhs  # pyright: ignore[reportAssignmentType]
    value = gold.rhs if isinstance(gold, Eq) and _is_name(gold.lhs) else gold
    if isinstance(value, sympy.Number) and isinstance(found, Expr) and not _is_written_out(found):
        return "work left undone"
    work = {kind for kind in _WORK if found.has(kind)}
    if any(not gold.has(kind) for kind in work):
        return "work left undone"
    if isinstance(gold, Eq) and isinstance(found, Eq) and not _same_equation(gold, found):
        return "another equation"
    return None


def _is_claim(value: Any) -> bool:
    """A relation, or several. (To sympy a symbol is a Boolean, too.)"""
    return isinstance(value, Relational | BooleanFunction)


def _is_name(side: Any) -> bool:
    return isinstance(side, Symbol) or (isinstance(side, sympy.Function) and all(map(_is_name, side.args)))


def _is_written_out(value: Any) -> bool:
    """A number with or without a sign; fractions never come here (`plain.read_plain`)."""
    parts = value.args if isinstance(value, sympy.Mul) else (value,)
    return all(isinstance(part, sympy.Number) for part in parts) and sum(part not in (1, -1) for part in parts) <= 1


def _same_equation(gold: Eq, found: Eq) -> bool:
    """Whether the two sides' differences are the same up to a constant factor, or both name the same value."""
    if _is_name(gold.lhs) and _is_name(found.lhs):
        return gold.lhs == found.lhs
    ratio = sympy.simplify((gold.lhs - gold.rhs) / (found.lhs - found.rhs))  # pyright: ignore[reportOperatorIssue]
    return bool(ratio.is_number and ratio.is_finite and not ratio.is_zero)


def _exact(value: Any) -> Any:
    """Every decimal as the fraction that it writes."""
    if not isinstance(value, Basic | MatrixBase):
        return value
    decimals = value.atoms(Float)
    return value.xreplace({one: Rational(str(one)) for one in decimals}) if decimals else value
