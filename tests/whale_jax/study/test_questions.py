"""The study's questions on made-up results whose answers are known, and with runs missing."""

import pytest

from tests.whale_jax.study.made_study import manifest, result, scores, search
from whale_jax.study.mechanisms import overstatements, picks, switches, transfers
from whale_jax.study.questions import best_arm, contrasts, last, levels, passing
from whale_jax.study.results import read_results

METHODS = ("weight_only", "harness_only", "stagewise", "fixed", "adaptive", "prompt_only", "random_edit", "strong")
SEEDS = (11, 12, 13)


@pytest.fixture
def out(tmp_path):
    """A study of which nothing has been run."""
    runs: dict[str, str | None] = {f"searchqa/{method}/{seed}": None for seed in SEEDS for method in METHODS}
    runs |= {f"searchqa/later/{seed}": f"searchqa/weight_only/{seed}@5" for seed in SEEDS}
    manifest(tmp_path, {**runs, "math/weight_only/11": None, "math/adaptive/11": None})
    return tmp_path


def at(share, tasks=40):
    """Right samples of two, for a share of all: every task alike but for one, so that tasks differ a little."""
    ones = round(share * tasks * 2)
    return tuple(min(2, max(0, ones - 2 * n)) for n in range(tasks))


def test_nothing_is_answered_without_runs(out):
    results = read_results(out)
    assert len(results.missing) == 29
    assert (levels(results, "searchqa"), passing(results, "searchqa"), switches(results, "searchqa")) == ([], [], [])
    assert (overstatements(results, "searchqa"), transfers(results, "searchqa", "adaptive")) == ([], [])
    assert best_arm(results, "searchqa") is None
    asked = contrasts(results, "searchqa")
    assert all(one.estimate is None for one in asked)
    assert [(one.minuend, one.subtrahend) for one in asked] == [
        ("adaptive", "weight_only"), ("adaptive", "harness_only"), ("fixed", "weight_only"), ("fixed", "harness_only"),
        ("adaptive", "prompt_only"), ("fixed", "prompt_only"), ("adaptive", "stagewise"), ("fixed", "stagewise"),
        ("adaptive", "fixed"), ("adaptive", "random_edit"), ("strong", "adaptive"),
        ("harness_only", "strong, initial pair"),
    ]  # fmt: skip
    assert [(one.minuend, one.subtrahend) for one in contrasts(results, "math")] == [("adaptive", "weight_only")]


def test_levels_and_differences(out):
    for seed, shift in zip(SEEDS, (0.0, 0.025, 0.05), strict=True):
        result(out, f"searchqa/weight_only/{seed}", initial=at(0.2), returned=at(0.3 + shift))
        result(out, f"searchqa/adaptive/{seed}", initial=at(0.2), returned=at(0.5 + 2 * shift))
    results = read_results(out)
    weight_only, adaptive = levels(results, "searchqa")
    assert (weight_only.method, adaptive.method, adaptive.seeds) == ("weight_only", "adaptive", [11, 12, 13])
    assert adaptive.initial.mean == pytest.approx(0.2)
    assert adaptive.returned.mean == pytest.approx(0.55)
    assert adaptive.gain.by_seed == pytest.approx({11: 0.3, 12: 0.35, 13: 0.4})
    assert adaptive.validation.mean == 0.5
    assert adaptive.rollouts == 900
    found = {(one.minuend, one.subtrahend): one for one in contrasts(results, "searchqa")}
    joint = found["adaptive", "weight_only"].estimate
    assert joint is not None
    assert joint.by_seed == pytest.approx({11: 0.2, 12: 0.225, 13: 0.25})
    assert joint.verdict == "ahead"
    assert found["adaptive", "harness_only"].estimate is None
    assert found["adaptive", "fixed"].estimate is None


def test_a_seed_that_one_of_two_lacks_is_left_out_of_their_difference(out):
    for seed in SEEDS:
        result(out, f"searchqa/fixed/{seed}", returned=at(0.4), initial=at(0.2))
    result(out, "searchqa/adaptive/12", returned=at(0.5), initial=at(0.2))
    found = {(one.minuend, one.subtrahend): one for one in contrasts(read_results(out), "searchqa")}
    estimate = found["adaptive", "fixed"].estimate
    assert estimate is not None
    assert (estimate.by_seed, estimate.verdict) == (pytest.approx({12: 0.1}), "one seed")


def test_the_best_arm_is_that_of_validation(out):
    """Test would say the other one."""
    for seed in SEEDS:
        better = (("initial", 0, (0, 0)), ("cycle 1, weights", 900, (2, 1)))
        result(out, f"searchqa/weight_only/{seed}", curve=better, returned=(0, 0, 0, 0))
        worse = (("initial", 0, (0, 0)), ("cycle 1, search", 900, (1, 1)))
        result(out, f"searchqa/harness_only/{seed}", curve=worse, returned=(2, 2, 2, 2))
    results = read_results(out)
    assert best_arm(results, "searchqa") == "weight_only"
    notes = {one.subtrahend: one.note for one in contrasts(results, "searchqa") if one.minuend == "adaptive"}
    assert notes["weight_only"] == "the best single arm, by validation"
    assert notes["harness_only"] == ""


def test_the_harness_found_is_held_to_the_one_written_by_hand_before_any_training(out):
    for seed in SEEDS:
        result(out, f"searchqa/strong/{seed}", initial=(1, 1, 1, 1), returned=(2, 2, 2, 2))
        result(out, f"searchqa/harness_only/{seed}", initial=(0, 0, 0, 0), returned=(1, 1, 0, 0))
    by_hand = contrasts(read_results(out), "searchqa")[-1]
    assert by_hand.estimate is not None
    assert by_hand.estimate.mean == -0.25


def test_when_a_joint_run_passed_stagewise(out):
    """The goal is the last score of the same seed; a seed that never got there is no number."""
    joint = (("initial", 0, (0, 0)), ("cycle 1, weights", 300, (1, 0)), ("cycle 1, search", 600, (1, 1)))
    for seed, end in zip(SEEDS, ((1, 0), (1, 1), (2, 1)), strict=True):
        stage = (("initial", 0, (0, 0)), ("cycle 1, weights", 400, (2, 2)), ("cycle 1, search", 800, end))
        result(out, f"searchqa/stagewise/{seed}", curve=stage)
        result(out, f"searchqa/adaptive/{seed}", curve=joint)
    found, itself = passing(read_results(out), "searchqa")
    assert (found.method, found.share, found.estimate) == ("adaptive", {11: 0.375, 12: 0.75, 13: None}, None)
    assert (found.rewritten, itself.rewritten) == (0, 0)
    assert (itself.method, itself.share) == ("stagewise", {11: 0.5, 12: 0.5, 13: 0.5})
    (out / "results/searchqa/stagewise/13.json").unlink()
    searched = [search(0, 0.3, 0.4)]
    result(out, "searchqa/adaptive/12", curve=joint, searches=searched)
    result(out, "searchqa/adaptive/11", curve=joint, searches=searched)
    found, _ = passing(read_results(out), "searchqa")
    assert found.estimate is not None
    assert found.estimate.mean == 0.5625
    assert found.rewritten == 1  # seed 11 was there before its search


def test_seeds_in_which_two_methods_returned_the_same_are_counted(out):
    for seed in SEEDS:
        curve = (("initial", 0, (0, 0)), ("cycle 1, weights", 900, (1, 1)))
        result(out, f"searchqa/weight_only/{seed}", returned=(1, 0, 1, 0), curve=curve)
        other = (1, 0, 1, 0) if seed == 12 else (0, 1, 0, 1)
        result(out, f"searchqa/adaptive/{seed}", returned=other, curve=(*curve, ("cycle 1, search", 950, (2, 1))))
    results = read_results(out)
    joint, *_ = contrasts(results, "searchqa")
    assert joint.estimate is not None
    assert (joint.alike, set(joint.estimate.by_seed.values())) == (1, {0.0})
    at_last, *others = contrasts(results, "searchqa", last)
    assert at_last.estimate is not None
    assert (at_last.alike, at_last.estimate.mean) == (0, 0.25)
    assert len(others) == 10


def test_which_pairs_were_returned(out):
    curve = (
        ("initial", 0, (0, 0)), ("cycle 1, search", 100, (1, 0)), ("cycle 2, weights", 200, (1, 1)),
        ("cycle 2, search", 300, (1, 1)),
    )  # fmt: skip
    searches = [search(0, 0.2, 0.4), search(1, 0.4, 0.4)]
    best = ("cycle 2, weights", "cycle 1, search", "initial")
    for seed, label in zip(SEEDS, best, strict=True):
        result(out, f"searchqa/adaptive/{seed}", curve=curve, best=label, searches=searches, flops=4e12)
    found, *others = picks(read_results(out), "searchqa")
    assert not others
    assert (found.method, found.steps, found.flops, found.offered) == ("adaptive", [9, 9, 9], 4e12, [4, 4, 4])
    assert (found.initial, found.trained, found.searched, found.rewritten) == (1, 1, 1, 2)


def test_how_far_search_scores_promise_too_much(out):
    curve = (
        ("initial", 0, (0, 0)), ("cycle 1, weights", 100, (1, 0)), ("cycle 1, search", 200, (1, 1)),
        ("cycle 2, weights", 300, (1, 1)), ("cycle 2, search", 400, (1, 1)),
    )  # fmt: skip
    for seed, best in zip(SEEDS, (0.4, 0.5, 0.6), strict=True):
        searches = [search(0, 0.3, best, luck=0.02, edits=["topk"]), search(1, 0.4, 0.4, luck=0.04)]
        result(out, f"searchqa/adaptive/{seed}", curve=curve, best="cycle 1, search", searches=searches)
    (found,) = overstatements(read_results(out), "searchqa")
    assert (found.method, found.phases, found.changed) == ("adaptive", 6, 3)
    assert found.promised.by_seed == pytest.approx({11: 0.05, 12: 0.1, 13: 0.15})
    assert found.kept.by_seed == pytest.approx({11: 0.125, 12: 0.125, 13: 0.125})
    assert found.excess.mean == pytest.approx(-0.025)
    assert found.excess_changed is not None
    assert found.excess_changed.by_seed == pytest.approx({11: 0.1 - 0.25, 12: 0.2 - 0.25, 13: 0.3 - 0.25})
    assert found.expected is not None
    assert found.expected.mean == pytest.approx(0.03)
    assert found.over_test is not None
    assert found.over_test.by_seed == pytest.approx({11: -0.1, 12: 0.0, 13: 0.1})
    assert found.excess_on_test is None


def test_a_search_alone_is_held_to_test_as_well(out):
    curve = (("initial", 0, (0, 0)), ("cycle 1, search", 800, (1, 0)))
    options = {"curve": curve, "phases": [], "initial": (0, 0, 0, 0), "returned": (1, 0, 0, 0)}
    result(out, "searchqa/harness_only/11", searches=[search(0, 0.2, 0.5)], **options)
    result(out, "searchqa/harness_only/12", searches=[search(0, 0.2, 0.6)], best="initial", **options)
    (found,) = overstatements(read_results(out), "searchqa")
    assert found.excess_on_test is not None
    assert found.excess_on_test.by_seed == pytest.approx({11: 0.3 - 0.125, 12: 0.4 - 0.125})
    assert found.over_test is not None
    assert list(found.over_test.by_seed) == [11]


def matrix(cells, found_on):
    """Cells by harness and weights as right samples per task, or None."""
    weights = [{"label": f"w{n}", "sha256": f"{n}" * 64} for n in range(len(cells[0]))]
    harnesses = [{"label": f"h{n}", "sha256": f"{n}" * 64, "found_on": at} for n, at in enumerate(found_on)]
    lines = [[None if one is None else scores(one, split="validation") for one in line] for line in cells]
    return {"weights": weights, "harnesses": harnesses, "cells": lines}


def test_what_a_harness_is_worth_on_other_weights(out):
    """h1 was found on w1: two tasks more there, one on w0, none on w2."""
    nothing = (0, 0, 0, 0)
    cells = [[nothing, nothing, nothing], [(2, 0, 0, 0), (2, 2, 0, 0), (0, 0, 0, 0)]]
    for seed in SEEDS:
        result(out, f"searchqa/adaptive/{seed}", matrix=matrix(cells, [None, 1]))
    own, others, first, both, trained = transfers(read_results(out), "searchqa", "adaptive")
    means = [one.estimate.mean if one.estimate else None for one in (own, others, first, both, trained)]
    assert means == pytest.approx([0.5, 0.125, 0.25, 0.375, 0.5])
    assert own.harnesses == 3
    assert own.estimate is not None
    assert own.estimate.over_seeds == (0.5, 0.5)
    assert own.estimate.verdict == "not decided"  # four tasks, two of them unmoved


def test_cells_that_are_missing_and_harnesses_that_were_found_nowhere(out):
    cells = [[(0, 0), None], [(2, 2), (2, 2)], [(2, 2), None]]
    result(out, "searchqa/adaptive/11", matrix=matrix(cells, [None, 0, None]))
    own, *others = transfers(read_results(out), "searchqa", "adaptive")
    assert own.estimate is not None
    assert own.estimate.mean == 1.0
    assert [one.estimate for one in others] == [None] * 4


def test_when_to_switch(out):
    def phases(steps):
        return [{"kind": "weight", "cycle": 0, "rollouts": 1, "steps": steps, "epochs": 1, "reason": ""}] * (steps > 0)

    for method, steps, share in (
        ("weight_only", 31, 0.4), ("harness_only", 0, 0.3), ("stagewise", 18, 0.5), ("later", 24, 0.6),
        ("adaptive", 9, 0.9),
    ):  # fmt: skip
        curve = (("initial", 0, (0, 0)), ("cycle 1, weights", 400, (1, 1)), ("cycle 1, search", 900, (2, 1)))
        searches = [] if method == "weight_only" else [search(0, 0.3, 0.4)]
        best = None if method == "later" else "cycle 1, weights"
        for seed in SEEDS[:2]:
            result(
                out, f"searchqa/{method}/{seed}", initial=at(0.1), returned=at(share), phases=phases(steps),
                curve=curve, searches=searches, best=best,
            )  # fmt: skip
    found = switches(read_results(out), "searchqa")
    assert [(one.method, one.steps) for one in found] == [
        ("harness_only", 0), ("stagewise", 18), ("later", 24), ("weight_only", 31),
    ]  # fmt: skip
    around = {one.method: (one.before and one.before.mean, one.after and one.after.mean) for one in found}
    assert around == dict.fromkeys(("harness_only", "stagewise", "later"), (0.5, 0.75)) | {"weight_only": (None, None)}
    assert [(one.searched, one.runs) for one in found] == [(0, 2), (0, 2), (2, 2), (0, 2)]
    against = {one.method: one.against and one.against.mean for one in found}
    assert against == {
        "harness_only": pytest.approx(-0.2), "stagewise": None, "later": pytest.approx(0.1),
        "weight_only": pytest.approx(-0.1),
    }  # fmt: skip
    assert switches(read_results(out), "math") == []
