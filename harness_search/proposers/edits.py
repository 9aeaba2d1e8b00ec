"""Source edits: the moves of the offline proposers, written by a domain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from harness_search.proposers.signs import Sign


@dataclass(frozen=True)
class Edit:
    """One mechanism, as a function from source to source.

    Attributes:
        name: unique in its catalogue; recorded in the archive.
        axis: what the edit works on (PAPER section 4: system prompt, user template, query rewriting, ...).
        hypothesis: one falsifiable sentence.
        kind: what its author expects. For readers of reports and for tests; no proposer reads it.
        addresses: values of `Sign` that the edit is meant to make rarer.
        apply: the new source, or None when the edit does not apply (already there, or it cannot compose).
    """

    name: str
    axis: str
    hypothesis: str
    kind: Literal["useful", "useless", "harmful"]
    addresses: tuple[str, ...]
    apply: Callable[[str], str | None]


def check_catalogue(catalogue: Sequence[Edit]) -> None:
    """Raises ValueError naming every duplicate name and every sign that does not exist."""
    errors: list[str] = []
    seen: set[str] = set()
    known = {sign.value for sign in Sign}
    for edit in catalogue:
        if edit.name in seen:
            errors.append(f"edit {edit.name!r} is listed twice")
        seen.add(edit.name)
        errors += [
            f"edit {edit.name!r} addresses unknown sign {sign!r}" for sign in edit.addresses if sign not in known
        ]
    if errors:
        raise ValueError("edit catalogue: " + "; ".join(errors) + f". Known signs: {', '.join(sorted(known))}")
