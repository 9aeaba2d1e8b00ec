"""The control of `offline`: the same catalogue, parents and bookkeeping, and an applicable edit uniformly at random."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from harness_search.proposers.base import EmptySlot, Proposal, ProposerUsage
from harness_search.proposers.catalogue import proposals
from harness_search.proposers.edits import Edit, check_catalogue
from harness_search.workspace import Workspace


class RandomEditProposer:
    """Draws edits without looking at any trace."""

    name = "random_edit"

    def __init__(self, catalogue: Sequence[Edit]) -> None:
        """Raises ValueError when the catalogue has duplicate names or unknown signs."""
        check_catalogue(catalogue)
        self._catalogue = tuple(catalogue)

    async def propose(
        self, workspace: Workspace, *, iteration: int, slots: int, seed: int
    ) -> AsyncGenerator[Proposal | EmptySlot, None]:
        for item in proposals(self._catalogue, workspace, slots=slots, seed=seed, weigh=lambda parent, edit: 1.0):
            yield item

    def usage(self, iteration: int) -> ProposerUsage:
        return ProposerUsage()
