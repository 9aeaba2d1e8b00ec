r"""Answers that are plain numbers: read and compared exactly, without a computer algebra system.

Most references are of this kind (DAPO and AIME: whole numbers), and here every rule can be seen: what counts as a
written-out number, and which decoration does not matter. `5 \cdot 3` is no number but a sum left undone, and is not
read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

MAX_CHARS = 500

_WRAPPERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"), ("__", "__"), ("`", "`"))
_DROPPED = re.compile(r"\\(?:displaystyle|textstyle|left|right|quad|qquad)(?![A-Za-z])|\\[,!;:]")
_SPELLED = {r"\dfrac": r"\frac", r"\tfrac": r"\frac", r"\mathrm{e}": "e", "−": "-", "–": "-", "{,}": ",", "~": " "}
_STYLED_NUMBER = re.compile(r"\\(?:text|textbf|mathbf|mathrm|bf|bm)\s*\{\s*(-?[\d,./]+)\s*\}")
_ASSIGNED = re.compile(r"^(?:[A-Za-z]|\\[a-z]+|[A-Za-z]_\{?\w+\}?)\s*=\s*(?=[^=]*$)")
_NUMBER = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+"
_INTEGER = r"\d{1,3}(?:,\d{3})+|\d+"
_FRACTION = (
    rf"\\frac\s*(?:\{{\s*(?P<over>-?(?:{_INTEGER}))\s*\}}|(?P<over1>\d))\s*"
    rf"(?:\{{\s*(?P<under>-?(?:{_INTEGER}))\s*\}}|(?P<under1>\d))"
)
_PLAIN = re.compile(
    rf"^(?P<sign>[-+]?)\s*(?:(?P<whole>\d+)?\s*{_FRACTION}"
    rf"|(?P<slash_over>{_INTEGER})\s*/\s*(?P<slash_under>{_INTEGER})|(?P<number>{_NUMBER}))(?P<unit>.*)$",
    re.DOTALL,
)
_UNIT = re.compile(
    r"^\s*(?:\\ )?\s*(?:\\(?:text|textrm|mathrm|mbox)\s*\{(?P<text>[^{}\\]*)\}|(?P<bare>[A-Za-z][A-Za-z ]*))$"
)
_MARK = re.compile(r"^\s*(?:\\?%|\^\s*\{?\s*\\circ\s*\}?|°)$")
_BARE_UNITS = frozenset(
    {
        *("mm", "cm", "km", "m", "kg", "g", "mg", "lb", "lbs", "oz", "ft", "mi", "mph", "kph", "hours", "hour"),
        *("minutes", "minute", "seconds", "second", "days", "day", "weeks", "week", "months", "month", "years"),
        *("year", "dollars", "dollar", "cents", "cent", "euros", "degrees", "degree", "units", "unit", "feet"),
        *("foot", "inches", "inch", "miles", "mile", "meters", "meter", "metres", "metre", "people", "ways"),
        *("square", "cubic", "percent"),
    }
)
"""Units that count as such without `\\text{}` around them."""
_NO_UNITS = frozenset(
    {
        *("hundred", "thousand", "million", "billion", "trillion", "dozen", "pi", "tau", "e", "i", "or", "and", "not"),
        *("if", "mod", "modulo", "remainder", "plus", "minus", "times", "over", "to", "infinity"),
    }
)
"""Words that change a value, or join it to another."""


@dataclass(frozen=True)
class Plain:
    """A number with the unit that was written after it ("" for none). A percent or degree sign is a unit."""

    value: Fraction
    unit: str


def clean(text: str) -> str:
    """`text` without decoration that never changes what it says: delimiters, bold, spacing, a full stop."""
    text = text.strip()
    for before, after in _SPELLED.items():
        text = text.replace(before, after)
    text = _DROPPED.sub("", text).strip()
    changed = True
    while changed:
        changed = False
        for opening, closing in _WRAPPERS:
            inner = text[len(opening) : len(text) - len(closing)]
            enclosed = len(text) > len(opening) + len(closing) and text.startswith(opening) and text.endswith(closing)
            if enclosed and opening not in inner:
                text, changed = inner.strip(), True
        if text.endswith((".", ",")):
            text, changed = text[:-1].rstrip(), True
    return _STYLED_NUMBER.sub(r"\1", text)


def read_plain(text: str) -> Plain | None:
    r"""The number that `text` (already cleaned) writes out; None if it is anything else.

    Read: `-12`, `1,000`, `3.50`, `7/3`, `\frac{7}{3}`, `\frac73`, `2\frac{1}{3}`, `x = 12`, `\$12`, and a unit after
    any of them. A comma parts thousands or nothing: `3,14` is not a number (case C096). A percent sign is a unit, so
    28\% is 28 and not 0.28 (case C084); so is a degree sign (C094).
    """
    if len(text) > MAX_CHARS:
        return None
    bare = _ASSIGNED.sub("", text, count=1)
    bare = re.sub(r"^\\?\$\s*", "", bare)
    match = _PLAIN.match(bare.strip())
    if match is None:
        return None
    unit = _unit(match["unit"])
    value = _value(match)
    return None if unit is None or value is None else Plain(value, unit)


def same_number(reference: Plain, answer: Plain) -> bool:
    """Whether two numbers are the same. Units must agree where both are written."""
    units_agree = not reference.unit or not answer.unit or reference.unit == answer.unit
    return units_agree and reference.value == answer.value


def _value(match: re.Match[str]) -> Fraction | None:
    sign = -1 if match["sign"] == "-" else 1
    if match["number"] is not None:
        return sign * Fraction(match["number"].replace(",", "").rstrip("."))
    over = match["over"] or match["over1"] or match["slash_over"]
    under = match["under"] or match["under1"] or match["slash_under"]
    numerator, denominator = (int(part.replace(",", "")) for part in (over, under))
    if denominator == 0 or (match["whole"] is not None and (numerator < 0 or denominator < 0)):
        return None
    return sign * (int(match["whole"] or 0) + Fraction(numerator, denominator))


def _unit(text: str) -> str | None:
    """The unit that `text` is; "" for none, None if it is something else."""
    if not text.strip():
        return ""
    if _MARK.match(text):
        return "%" if "%" in text else "degrees"
    match = _UNIT.match(text)
    if match is None:
        return None
    words = (match["text"] if match["text"] is not None else match["bare"]).casefold().split()
    spaced = text[0].isspace() or text.startswith("\\ ")  # 5m may be a product
    known = match["text"] is not None or all(word in _BARE_UNITS and (spaced or len(word) > 1) for word in words)
    if not known or _NO_UNITS & set(words) or any(character.isdigit() for word in words for character in word):
        return None
    return " ".join(words)
