"""The study's questions, answered from its results: differences with intervals, whichever way they fall.

`estimates` says how intervals are made. A question whose runs are missing has no answer; nothing is filled in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
        first, last, gain = _means(before), _means(after), difference(before, after)
        validation = _means({seed: run.returned_point.scores for seed, run in runs.items()})
        if first is not None and last is not None and gain is not None and validation is not None:
            spent = fmean(run.rollouts for run in runs.values())
            found.append(Level(method, sorted(runs), first, last, gain, validation, spent))
    return found


def _means(scores: Mapping[int, Scores]) -> Estimate | None:
    return over_seeds({seed: one.mean for seed, one in scores.items()})


@dataclass(frozen=True)
class Contrast:
    """A difference on test that answers a question.

    Attributes:
        question: what it is about.
        minuend, subtrahend: names of what is compared; the estimate is the first minus the second.
        estimate: None where runs are missing.
        note: what a reader must know beside it.
    """

    question: str
    minuend: str
    subtrahend: str
    estimate: Estimate | None
    note: str = ""


def contrasts(results: Results, domain: str) -> list[Contrast]:
    """The paired differences between methods that the study asks about, as far as the domain has such methods."""
    planned = results.methods(domain)
    found: list[Contrast] = []

    def add(question: str, minuend: str, subtrahend: str, note: str = "") -> None:
        if minuend in planned and subtrahend in planned:
            before, after = returned(results.of(domain, subtrahend)), returned(results.of(domain, minuend))
            found.append(Contrast(question, minuend, subtrahend, difference(before, after), note))

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
    if {"strong", "harness_only"} <= set(planned):
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
        "both on the initial weights",
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
        estimate: of the shares, where every seed has one: what is left out of a mean would be the slow ones.
    """

    method: str
    reference: str
    share: Mapping[int, float | None]
    estimate: Estimate | None


def passing(results: Results, domain: str, reference: str = "stagewise") -> list[Passing]:
    """Of each joint method, against the last validation score of the reference with the same seed."""
    found = []
    goals = results.of(domain, reference)
    for method in JOINT:
        runs = results.of(domain, method)
        shares = {seed: _share(runs[seed].curve, goals[seed]) for seed in sorted(runs.keys() & goals.keys())}
        if shares:
            known = {seed: share for seed, share in shares.items() if share is not None}
            estimate = over_seeds(known) if len(known) == len(shares) else None
            found.append(Passing(method, reference, shares, estimate))
    return found


def _share(curve: Sequence[Point], goal: Result) -> float | None:
    wanted = goal.curve[-1].scores.mean
    reached = next((point.rollouts for point in curve if point.scores.mean >= wanted), None)
    return None if reached is None else reached / goal.rollouts
