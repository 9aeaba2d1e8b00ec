"""`archive_max`, and what scores may be compared."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness_search.accept import best
from harness_search.scoring import EpisodeResult, Score, ScoreTag, TagMismatchError

TAG = ScoreTag("m", "t", "v", "s")


def score(rewards: Sequence[float | None], turns: Sequence[int] | None = None, tag: ScoreTag = TAG) -> Score:
    turns = turns or [2] * len(rewards)
    rows = [
        EpisodeResult(f"task-{index}", 0, reward, "answered", turn, 1)
        for index, (reward, turn) in enumerate(zip(rewards, turns, strict=True))
    ]
    return Score(tag, "hash", tuple(rows))


def test_the_highest_success_rate_wins() -> None:
    assert best({"000": score([0, 1]), "001": score([1, 1]), "002": score([0, 0])}) == "001"


def test_ties_go_to_fewer_turns_then_to_the_older() -> None:
    scores = {"000": score([0, 1], [2, 4]), "001": score([1, 0], [2, 3]), "002": score([1, 0], [3, 2])}
    assert best(scores) == "001"


def test_missing_episodes_count_neither_as_failures_nor_in_the_turns() -> None:
    half = score([1, 0, None, None], [2, 2, 99, 99])
    assert half.success_rate == Fraction(1, 2)
    assert half.mean_turns == 2
    assert half.coverage == Fraction(1, 2)
    assert [row.failed for row in half.results] == [False, True, False, False]
    assert best({"000": score([1, 0, 0, 0]), "001": half}) == "001"


def test_a_tie_of_different_denominators_is_a_tie() -> None:
    third = score([1, 0, 0, None, None, None])
    sixth = score([1, 1, 0, 0, 0, 0], [1, 2, 2, 2, 2, 2])
    assert best({"000": third, "001": sixth}) == "001"


@pytest.mark.parametrize("part", ["model", "task_set", "verifier", "sampling"])
def test_scores_of_other_conditions_refuse_comparison(part: str) -> None:
    other = ScoreTag(**{**TAG.to_json(), part: "other"})
    with pytest.raises(TagMismatchError, match=f"different {part}"):
        best({"000": score([1]), "001": score([1], tag=other)})


def test_scores_of_other_episodes_refuse_comparison() -> None:
    with pytest.raises(TagMismatchError, match="pairs"):
        best({"000": score([1]), "001": score([1, 1])})


def test_nothing_scored_is_no_score() -> None:
    with pytest.raises(ValueError, match="at least one"):
        score([None, None])


@settings(deadline=None)
@given(st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=6))
def test_the_best_is_never_beaten_and_is_the_oldest_of_its_equals(rows: list[list[bool]]) -> None:
    scores = {f"{index:03d}": score([float(one) for one in row]) for index, row in enumerate(rows)}
    chosen = best(scores)
    top = max(sum(row) for row in rows)
    assert chosen == f"{[sum(row) for row in rows].index(top):03d}"
