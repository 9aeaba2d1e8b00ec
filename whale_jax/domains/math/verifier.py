r"""The two verifiers of Math (DESIGN section 12): the paper's rule on strings, and the honest, symbolic one.

Both read the last `\boxed{}` of the returned reply. The paper's looks at the last 100 characters and compares strings;
the honest one takes a box anywhere in the reply, and asks whether it says the same as the reference: exactly where both
are plain numbers, otherwise by computer algebra with guards.

What does not count as a difference: thousands separators, leading zeros, spacing, delimiters, bold, a full stop, a name
and an equals sign before the value, and a unit after it (a percent or degree sign included: 28\% is 28, and not 0.28)
as long as the reference has no other unit. What does: a rounded decimal, a comma as the decimal sign, several answers,
another order in a pair, and anything that leaves work undone, such as `5 \cdot 3` for 15.
"""

from __future__ import annotations

from typing import Protocol

from whale_jax.domains.math.boxed import last_boxed
from whale_jax.domains.math.plain import clean, read_plain, same_number
from whale_jax.domains.math.symbolic import Comparison
from whale_jax.domains.verdict import Verdict

PAPER_CHARS = 100
MAX_ANSWER_CHARS = 2_000


class Comparer(Protocol):
    """See `symbolic.SymbolicComparer`."""

    def compare(self, reference: str, answer: str) -> Comparison: ...


def paper_rule(answer_text: str | None, reference: str) -> Verdict:
    r"""The paper's: the last `\boxed{}` within the last 100 characters is, as a string, the reference."""
    answer = None if answer_text is None else last_boxed(answer_text[-PAPER_CHARS:])
    if answer is None:
        return _unanswered(answer_text)
    return Verdict(1, answer, "same string") if answer == reference else Verdict(0, answer, "another string")


def symbolic_rule(answer_text: str | None, reference: str, comparer: Comparer) -> Verdict:
    r"""The honest one: the last `\boxed{}` of the whole reply says the same as the reference.

    A reference that cannot be read gives no reward at all, rather than 0: it says nothing about the answer.

    Raises:
        SandboxUnavailable: the sandbox of the symbolic comparison failed.
    """
    answer = None if answer_text is None else last_boxed(answer_text)
    if answer is None:
        return _unanswered(answer_text)
    answer = answer.strip()
    if not answer:
        return Verdict(0, answer, "empty box")
    if len(answer) > MAX_ANSWER_CHARS:
        return Verdict(0, answer[:MAX_ANSWER_CHARS], "the answer is too long to be one")
    said, wanted = clean(answer), clean(reference)
    if said == wanted:
        return Verdict(1, answer, "same text")
    number, wanted_number = read_plain(said), read_plain(wanted)
    if number is not None and wanted_number is not None:
        equal = same_number(wanted_number, number)
        return Verdict(1, answer, "same number") if equal else Verdict(0, answer, "another number")
    comparison = comparer.compare(wanted, said)
    if comparison.equal is None:
        return Verdict(None, answer, comparison.reason)
    return Verdict(1 if comparison.equal else 0, answer, comparison.reason)


def _unanswered(answer_text: str | None) -> Verdict:
    return Verdict(0, None, "no reply to read" if answer_text is None else "no box with an answer")
