"""Acceptance rules: which archived candidate is the search's best.

A rule names the candidate that should be the incumbent, going by search scores. A rule with `confirmations` does not
stop there: the search then rolls out the incumbent and the challenger afresh, on the same tasks with seeds that nothing
was chosen by, and the rule decides on these rollouts alone (`confirmation`). docs/acceptance.md has the error rates.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from harness_search.paired import ALPHA, PairedComparison, compare_scores
from harness_search.scoring import Score, check_comparable


class AcceptRule(Protocol):
    """A pure choice among scored candidates."""

    @property
    def name(self) -> str: ...

    @property
    def confirmations(self) -> int:
        """Fresh rollouts per task, of each of the two, before a challenger is accepted; 0: none."""
        ...

    def choose(self, scores: Mapping[str, Score], incumbent: str | None, refused: Collection[str]) -> str:
        """The id of the candidate that should be the incumbent.

        Args:
            scores: of every scored candidate by id, oldest first; at least one.
            incumbent: the present one; None before the first.
            refused: candidates that a confirmation has refused.

        Raises:
            TagMismatchError: the scores were not measured under the same conditions.
        """
        ...

    def confirm(self, incumbent: Score, challenger: Score) -> PairedComparison:
        """Compares fresh scores of the two; `better` accepts."""
        ...


def best(scores: Mapping[str, Score]) -> str:
    """Highest success rate; ties go to fewer mean turns, then to the older candidate."""
    check_comparable(list(scores.values()))
    # max keeps the first of equals, and the mapping is ordered oldest first.
    return max(scores, key=lambda one: (scores[one].success_rate, -scores[one].mean_turns))


@dataclass(frozen=True)
class ArchiveMax:
    """The paper's rule: the best search score of the archive. The largest of several noisy scores is too high."""

    name: str = "archive_max"
    confirmations: int = 0

    def choose(self, scores: Mapping[str, Score], incumbent: str | None, refused: Collection[str]) -> str:
        return best(scores)

    def confirm(self, incumbent: Score, challenger: Score) -> PairedComparison:
        return compare_scores(incumbent, challenger)


@dataclass(frozen=True)
class Paired:
    """The incumbent stays until a candidate with a higher search score proves better on fresh rollouts.

    The search score picks the challenger and nothing else, so picking the best of many costs no error: each decision
    accepts one of two identical candidates with a probability of at most `alpha`. A refused challenger does not return.
    """

    confirmations: int = 4
    alpha: float = ALPHA
    name: str = "paired"

    def choose(self, scores: Mapping[str, Score], incumbent: str | None, refused: Collection[str]) -> str:
        if incumbent is None:
            return best(scores)
        eligible = {name: score for name, score in scores.items() if name not in refused and name != incumbent}
        if not eligible:
            return incumbent
        challenger = best(eligible)
        check_comparable([scores[incumbent], scores[challenger]])
        return challenger if scores[challenger].success_rate > scores[incumbent].success_rate else incumbent

    def confirm(self, incumbent: Score, challenger: Score) -> PairedComparison:
        return compare_scores(incumbent, challenger, self.alpha)


archive_max = ArchiveMax()
paired = Paired()
