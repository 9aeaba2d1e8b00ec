"""The embedded default: a catalogue of edits, chosen by what the failed traces show. No network, no key."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from harness_search.proposers.base import EmptySlot, Proposal, ProposerUsage
from harness_search.proposers.catalogue import proposals
from harness_search.proposers.edits import Edit, check_catalogue
from harness_search.proposers.signs import Sign, shares
from harness_search.workspace import Workspace

FLOOR = 0.05
"""Weight of an edit that addresses nothing seen: small, and never zero, so that no edit is ruled out."""


class OfflineProposer:
    """Draws edits with a weight that grows with how often the parent's failures show a sign the edit addresses.

    No edit is chosen or left out for its author's expectation (`Edit.kind`) or for a score.
    """

    name = "offline"

    def __init__(self, catalogue: Sequence[Edit]) -> None:
        """Raises ValueError when the catalogue has duplicate names or unknown signs."""
        check_catalogue(catalogue)
        self._catalogue = tuple(catalogue)

    async def propose(
        self, workspace: Workspace, *, iteration: int, slots: int, seed: int
    ) -> AsyncGenerator[Proposal | EmptySlot, None]:
        seen: dict[str, dict[Sign, float]] = {}

        def weigh(parent: str, edit: Edit) -> float:
            if parent not in seen:
                seen[parent] = shares(workspace.failures(parent))
            return FLOOR + max((seen[parent].get(Sign(sign), 0.0) for sign in edit.addresses), default=0.0)

        for item in proposals(self._catalogue, workspace, slots=slots, seed=seed, weigh=weigh):
            yield item

    def usage(self, iteration: int) -> ProposerUsage:
        return ProposerUsage()
