"""Proposing from a catalogue of source edits: what `offline` and `random_edit` share.

A session walks its slots in order. Each slot gets one edit on one parent: mostly the incumbent, sometimes another
scored candidate; never two slots on one axis; never an edit already tried on that parent, nor a result that is archived
already; and one that was tried on another parent only when no untried edit is left. The two proposers differ in the
weights alone. Everything is a pure function of the workspace and the seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

from harness_search.archive import Candidate
from harness_search.canonical import fingerprint
from harness_search.proposers.base import EmptySlot, Proposal
from harness_search.proposers.edits import Edit
from harness_search.workspace import Workspace

INCUMBENT_SHARE = 0.8
"""Probability that a slot builds on the incumbent."""

Weigh = Callable[[str, Edit], float]
"""(parent id, edit) -> weight > 0 of drawing the edit among the applicable ones."""


def proposals(
    catalogue: Sequence[Edit], workspace: Workspace, *, slots: int, seed: int, weigh: Weigh
) -> Iterator[Proposal | EmptySlot]:
    """One session: a proposal per slot, or an empty slot with its reason where no edit applies."""
    rng = random.Random(seed)
    used_axes: set[str] = set()
    known = {candidate.fingerprint for candidate in workspace.candidates.values()}
    tried = {name for candidate in workspace.candidates.values() for name in candidate.proposal.edits}
    for slot in range(slots):
        for parent in _parents(workspace, rng):
            choices = _applicable(catalogue, workspace, parent, used_axes, known)
            if choices:
                choices = [choice for choice in choices if choice[0].name not in tried] or choices
                weights = [weigh(parent.id, edit) for edit, _ in choices]
                edit, source = rng.choices(choices, weights)[0]
                used_axes.add(edit.axis)
                known.add(fingerprint(source))
                yield Proposal(slot, source, parent.id, edit.hypothesis, edit.axis, (edit.name,))
                break
        else:
            yield EmptySlot(slot, "no edit of the catalogue applies to any archived harness on an axis still free")


def _parents(workspace: Workspace, rng: random.Random) -> list[Candidate]:
    """Scored candidates in the order to try them: the first is the slot's parent unless nothing applies to it."""
    incumbent = workspace.candidates[workspace.incumbent]
    others = [one for one in workspace.candidates.values() if one.score is not None and one.id != incumbent.id]
    rng.shuffle(others)
    return [incumbent, *others] if rng.random() < INCUMBENT_SHARE else [*others, incumbent]


def _applicable(
    catalogue: Sequence[Edit], workspace: Workspace, parent: Candidate, used_axes: set[str], known: set[str]
) -> list[tuple[Edit, str]]:
    """The edits that may be drawn, with the sources they give, in catalogue order."""
    tried = {
        name
        for candidate in workspace.candidates.values()
        if candidate.proposal.parent == parent.id
        for name in candidate.proposal.edits
    }
    choices: list[tuple[Edit, str]] = []
    for edit in catalogue:
        if edit.axis in used_axes or edit.name in tried:
            continue
        source = edit.apply(parent.source)
        if source is not None and fingerprint(source) not in known:
            choices.append((edit, source))
    return choices
