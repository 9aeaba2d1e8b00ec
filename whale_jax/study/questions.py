"""The study's questions, answered from its results: differences with intervals, whichever way they fall.

`estimates` says how intervals are made. A question whose runs are missing has no answer; nothing is filled in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from whale_jax.study.estimates import Estimate, difference, over_seeds
from whale_jax.study.results import Point, Result, Results
from whale_jax.study.scores import Scores

JOINT = ("adaptive", "fixed")
"""Methods that alternate between weights and a free harness."""
ARMS = ("weight_only", "harness_only")
"""Methods that spend everything on one of the two."""


def returned(runs: Mapping[int, Result]) -> dict[int, Scores]:
    """Test scores of the returned pairs, by seed."""
    return {seed: run.returned for seed, run in runs.items()}


def last(runs: Mapping[int, Result]) -> dict[int, Scores]:
    """Validation scores of the last pairs, by seed: those that no score has picked."""
    return {seed: run.curve[-1].scores for seed, run in runs.items()}


def initial(runs: Mapping[int, Result]) -> dict[int, Scores]:
    """Test scores of the initial pairs, by seed."""
    return {seed: run.initial for seed, run in runs.items()}


@dataclass(frozen=True)
class Level:
    """What the runs of a method came to; each estimate is over seeds, in shares of 1.

    Attributes:
        seeds: of the runs that there are.
        initial, returned, gain: on test; the gain is paired.
        validation: of the returned pair, which was picked by it.
        rollouts: mean over runs.
    """

    method: str
    seeds: Sequence[int]
    initial: Estimate
    returned: Estimate
    gain: Estimate
    validation: Estimate
    rollouts: float


def levels(results: Results, domain: str) -> list[Level]:
    """One line per method that has a result."""
    found = []
    for method in results.methods(domain):
        runs = results.of(domain, method)
        before, after = initial(runs), returned(runs)
        start, end, gain = _means(before), _means(after), difference(before, after)
        validation = _means({seed: run.returned_point.scores for seed, run in runs.items()})
        if start is not None and end is not None and gain is not None and validation is not None:
            spent = fmean(run.rollouts for run in runs.values())
            found.append(Level(method, sorted(runs), start, end, gain, validation, spent))
    return found


def _means(scores: Mapping[int, Scores]) -> Estimate | None:
    return over_seeds({seed: one.mean for seed, one in scores.items()})


@dataclass(frozen=True)
class Contrast:
    """A difference that answers a question.

    Attributes:
        question: what it is about.
        minuend, subtrahend: names of what is compared; the estimate is the first minus the second.
        estimate: None where runs are missing.
        alike: seeds in which both had the same score on every single task: the same pair, most likely.
        note: what a reader must know beside it.
    """

    question: str
    minuend: str
    subtrahend: str
    estimate: Estimate | None
    alike: int = 0
    note: str = ""


def contrasts(
    results: Results, domain: str, of: Callable[[Mapping[int, Result]], dict[int, Scores]] = returned
) -> list[Contrast]:
    """The paired differences between methods that the study asks about, as far as the domain has such methods.

    Args:
        of: the scores that are compared: those of the returned pairs on test, or `last`.
    """
    planned = results.methods(domain)
    found: list[Contrast] = []

    def add(question: str, minuend: str, subtrahend: str, note: str = "") -> None:
        if minuend in planned and subtrahend in planned:
            before, after = of(results.of(domain, subtrahend)), of(results.of(domain, minuend))
            alike = sum(before[seed] == after[seed] for seed in before.keys() & after.keys())
            found.append(Contrast(question, minuend, subtrahend, difference(before, after), alike, note))

    best = best_arm(results, domain)
    for joint in JOINT:
        for arm in ARMS:
            note = "the best single arm, by validation" if arm == best else ""
            add("joint against a single arm", joint, arm, note)
    for joint in JOINT:
        add("joint against prompts alone", joint, "prompt_only", _same_schedule(joint))
    for joint in JOINT:
        add("joint against stagewise", joint, "stagewise")
    add("adaptive against fixed", "adaptive", "fixed")
    add("edits by failures against edits at random", "adaptive", "random_edit")
    add("joint from the strong harness against joint from h0", "strong", "adaptive")
    if {"strong", "harness_only"} <= set(planned) and of is returned:
        found.append(_against_by_hand(results, domain))
    return found


def _same_schedule(joint: str) -> str:
    return "the same schedule" if joint == "adaptive" else "prompt_only is adaptive"


def _against_by_hand(results: Results, domain: str) -> Contrast:
    """The harness that a search alone found against the one written by hand, both on the initial weights."""
    found, by_hand = results.of(domain, "harness_only"), results.of(domain, "strong")
    estimate = difference(initial(by_hand), returned(found))
    return Contrast(
        "a harness found against one written by hand", "harness_only", "strong, initial pair", estimate,
        note="both on the initial weights",
    )  # fmt: skip


def best_arm(results: Results, domain: str) -> str | None:
    """The single arm whose returned pairs are best on validation, over the seeds that both arms have."""
    runs = {arm: results.of(domain, arm) for arm in ARMS}
    shared = set.intersection(*(set(one) for one in runs.values()))
    if not shared:
        return None
    return max(ARMS, key=lambda arm: fmean(runs[arm][seed].returned_point.scores.mean for seed in shared))


@dataclass(frozen=True)
class Passing:
    """When a method first had the accuracy that another one ended with, on validation.

    Attributes:
        share: by seed, its rollouts by then as a share of the other's; None where it never had it.
        rewritten: seeds in which the pair that had it had another harness than the run began with.
        estimate: of the shares, where every seed has one: what is left out of a mean would be the slow ones.
    """

    method: str
    reference: str
    share: Mapping[int, float | None]
    rewritten: int
    estimate: Estimate | None


def passing(results: Results, domain: str, reference: str = "stagewise") -> list[Passing]:
    """Of each joint method, against the last validation score of the reference with the same seed.

    Two more show what is no merit of alternating: prompt_only, and the reference itself, which may have had before its
    end what it had at its end.
    """
    found = []
    goals = results.of(domain, reference)
    for method in (*JOINT, "prompt_only", reference):
        runs = results.of(domain, method)
        points = {seed: _reached(runs[seed], goals[seed]) for seed in sorted(runs.keys() & goals.keys())}
        if points:
            shares = {seed: point and point.rollouts / goals[seed].rollouts for seed, point in points.items()}
            known = {seed: share for seed, share in shares.items() if share is not None}
            rewritten = sum(
                point is not None and runs[seed].rewritten_by(point.label) for seed, point in points.items()
            )
            estimate = over_seeds(known) if len(known) == len(shares) else None
            found.append(Passing(method, reference, shares, rewritten, estimate))
    return found


def _reached(run: Result, goal: Result) -> Point | None:
    """The first pair of a run that is as good on validation as the last one of another run."""
    wanted = goal.curve[-1].scores.mean
    return next((point for point in run.curve if point.scores.mean >= wanted), None)
