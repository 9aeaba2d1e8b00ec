"""Verdicts, and the page that they make."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

_NAME_WIDTH, _MARK_WIDTH = 12, 5


class Mark(StrEnum):
    """How a check went; one FAIL is a no-go."""

    OK = "ok"
    WARN = "warn"
    FAIL = "FAIL"


@dataclass(frozen=True)
class Verdict:
    """One line of the page.

    Attributes:
        name: what was looked at, in a word or two.
        seen: what was found.
        change: what to do about it; empty where nothing is to be done.
    """

    name: str
    mark: Mark
    seen: str
    change: str = ""

    def __str__(self) -> str:
        indent = " " * (_NAME_WIDTH + _MARK_WIDTH)
        seen = self.seen.replace("\n", "\n" + indent)
        line = f"{self.name:<{_NAME_WIDTH}}{self.mark:<{_MARK_WIDTH}}{seen}"
        return f"{line}\n{indent}-> {self.change}" if self.change else line


def ok(name: str, seen: str) -> Verdict:
    """Nothing to change."""
    return Verdict(name, Mark.OK, seen)


def warn(name: str, seen: str, change: str) -> Verdict:
    """A run would start, and may not do what was meant."""
    return Verdict(name, Mark.WARN, seen, change)


def fail(name: str, seen: str, change: str) -> Verdict:
    """A run would not start, would end, or would compute something else."""
    return Verdict(name, Mark.FAIL, seen, change)


def goes(verdicts: Iterable[Verdict]) -> bool:
    """Go: nothing failed."""
    return all(verdict.mark is not Mark.FAIL for verdict in verdicts)


def conclusion(verdicts: Sequence[Verdict]) -> str:
    """The last line of the page."""
    failed = [verdict.name for verdict in verdicts if verdict.mark is Mark.FAIL]
    warned = sum(verdict.mark is Mark.WARN for verdict in verdicts)
    warnings = f", {warned} to look at" if warned else ""
    if failed:
        return f"NO-GO: {', '.join(failed)} failed{warnings}; do what the lines with -> say"
    return f"GO: {len(verdicts)} checks, none failed{warnings}"


def as_json(verdicts: Sequence[Verdict], **more: Any) -> dict[str, Any]:
    """The page as one object; `more` are figures that were measured on the way."""
    return {"go": goes(verdicts), "verdicts": [asdict(verdict) for verdict in verdicts], **more}
