"""What one candidate broke and what it fixed, against another: episode by episode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from harness_search.scoring import EpisodeResult, Score, check_comparable


@dataclass(frozen=True)
class BrokeFixed:
    """Two scores over the same episodes, from `before` to `after`.

    Attributes:
        fixed: (task, seed) of the episodes that failed before and succeed after.
        broke: those that succeeded before and fail after.
        both: how many succeed in both.
        neither: how many fail in both.
        missing: how many have no reward in one of them; nothing can be said about these.
    """

    fixed: tuple[tuple[str, int], ...]
    broke: tuple[tuple[str, int], ...]
    both: int
    neither: int
    missing: int

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "fixed": [list(key) for key in self.fixed], "broke": [list(key) for key in self.broke]}


def broke_fixed(before: Score, after: Score) -> BrokeFixed:
    """Raises TagMismatchError when the scores do not cover the same episodes under the same conditions."""
    check_comparable([before, after])
    new: Mapping[tuple[str, int], EpisodeResult] = {row.key: row for row in after.results}
    pairs = [(row, new[row.key]) for row in before.results]
    known = [(old, now) for old, now in pairs if old.reward is not None and now.reward is not None]
    return BrokeFixed(
        fixed=tuple(old.key for old, now in known if old.failed and not now.failed),
        broke=tuple(old.key for old, now in known if now.failed and not old.failed),
        both=sum(not old.failed and not now.failed for old, now in known),
        neither=sum(old.failed and now.failed for old, now in known),
        missing=len(pairs) - len(known),
    )
