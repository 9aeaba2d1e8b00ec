"""Arms, outcomes and scores: the only way to a score is a call of `Evaluate`, and no reference crosses it."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any, Protocol


class TagMismatchError(ValueError):
    """Two scores were compared that were not measured under the same conditions."""


@dataclass(frozen=True)
class Arm:
    """One harness to be rolled out: its candidate id and its source."""

    id: str
    source: str


@dataclass(frozen=True)
class Outcome:
    """One episode of one arm on one task.

    Attributes:
        arm: the arm's id.
        task_id: the task's id.
        seed: which sample of the task it is; an element of the seeds asked for.
        reward: the verifier's binary reward, or None when the episode is missing data (infrastructure).
        end: value of the `EndReason`.
        turns: replies sampled.
        sampled_tokens: ids sampled by the policy.
        trace: JSON-able public trace (texts with their sources, see `proposers.signs`). It holds neither a reference
            answer nor anything that depends on time, load or host: it is archived and hashed.
    """

    arm: str
    task_id: str
    seed: int
    reward: float | None
    end: str
    turns: int
    sampled_tokens: int
    trace: Mapping[str, Any]


class Evaluate(Protocol):
    """Rolls arms out: exactly one outcome per (arm, task, seed), in any order. Calls may overlap.

    The sampling is a pure function of (task, seed), the same for every arm; the order of arms does not matter.
    """

    def __call__(
        self, arms: Sequence[Arm], task_ids: Sequence[str], seeds: Sequence[int], /
    ) -> AsyncIterator[Outcome]: ...


@dataclass(frozen=True)
class ScoreTag:
    """The conditions a score was measured under, as hashes chosen by the caller. All but the harness must agree."""

    model: str
    task_set: str
    verifier: str
    sampling: str

    def to_json(self) -> dict[str, str]:
        return asdict(self)


@dataclass(frozen=True)
class EpisodeResult:
    """One row of a score: which episode, and how it went. `reward` None is missing data, never a 0."""

    task_id: str
    seed: int
    reward: float | None
    end: str
    turns: int
    sampled_tokens: int

    @property
    def key(self) -> tuple[str, int]:
        return (self.task_id, self.seed)

    @property
    def failed(self) -> bool:
        """Scored, and not rewarded. A missing episode has not failed."""
        return self.reward is not None and self.reward <= 0.5


@dataclass(frozen=True)
class Score:
    """A harness's score with its evidence, one row per episode asked for (missing ones included).

    Rates are exact fractions, so that ties are ties on every machine.
    """

    tag: ScoreTag
    harness: str
    results: tuple[EpisodeResult, ...]

    def __post_init__(self) -> None:
        if not self.scored:
            raise ValueError("a score needs at least one scored episode")

    @property
    def scored(self) -> tuple[EpisodeResult, ...]:
        """The rows that have a reward."""
        return tuple(row for row in self.results if row.reward is not None)

    @property
    def success_rate(self) -> Fraction:
        """Mean reward over the scored rows."""
        return sum((Fraction(row.reward or 0) for row in self.scored), Fraction(0)) / len(self.scored)

    @property
    def mean_turns(self) -> Fraction:
        """Mean turns over the scored rows."""
        return Fraction(sum(row.turns for row in self.scored), len(self.scored))

    @property
    def coverage(self) -> Fraction:
        """Scored share of the episodes asked for."""
        return Fraction(len(self.scored), len(self.results))

    @property
    def sampled_tokens(self) -> int:
        return sum(row.sampled_tokens for row in self.results)

    @property
    def ends(self) -> dict[str, int]:
        """Counts by end reason over all rows."""
        return dict(sorted(Counter(row.end for row in self.results).items()))

    def to_json(self) -> dict[str, Any]:
        """Content of scores.json. The summary is there for readers; `from_json` reads the rows alone."""
        return {
            "tag": self.tag.to_json(),
            "harness": self.harness,
            "summary": {
                "success_rate": float(self.success_rate),
                "mean_turns": float(self.mean_turns),
                "episodes": len(self.results),
                "scored": len(self.scored),
                "sampled_tokens": self.sampled_tokens,
                "ends": self.ends,
            },
            "results": [asdict(row) for row in self.results],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Score:
        rows = tuple(EpisodeResult(**row) for row in data["results"])
        return cls(ScoreTag(**data["tag"]), data["harness"], rows)


def check_comparable(scores: Sequence[Score]) -> None:
    """Raises TagMismatchError unless all scores share conditions and cover the same episodes."""
    for other in scores[1:]:
        first = scores[0]
        differing = [name for name, value in asdict(first.tag).items() if value != getattr(other.tag, name)]
        if differing:
            raise TagMismatchError(
                f"scores of harnesses {first.harness[:12]} and {other.harness[:12]} cannot be compared: they were "
                f"measured with different {', '.join(differing)}; evaluate both under the same conditions"
            )
        if {row.key for row in first.results} != {row.key for row in other.results}:
            raise TagMismatchError(
                f"scores of harnesses {first.harness[:12]} and {other.harness[:12]} cannot be compared: they cover "
                "different (task, seed) pairs"
            )
