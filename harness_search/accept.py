"""Acceptance rules: which archived candidate is the search's best."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from harness_search.scoring import Score, check_comparable


class AcceptRule(Protocol):
    """A pure choice among scored candidates."""

    @property
    def name(self) -> str: ...

    def best(self, scores: Mapping[str, Score]) -> str:
        """The id of the best candidate.

        Args:
            scores: of every scored candidate by id, oldest first; at least one.

        Raises:
            TagMismatchError: the scores were not measured under the same conditions.
        """
        ...


@dataclass(frozen=True)
class ArchiveMax:
    """The paper's rule: highest success rate; ties go to fewer mean turns, then to the older candidate."""

    name: str = "archive_max"

    def best(self, scores: Mapping[str, Score]) -> str:
        check_comparable(list(scores.values()))
        # max keeps the first of equals, and the mapping is ordered oldest first.
        return max(scores, key=lambda one: (scores[one].success_rate, -scores[one].mean_turns))


archive_max = ArchiveMax()
