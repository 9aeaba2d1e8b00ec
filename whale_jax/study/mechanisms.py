"""What lies behind the differences: what search scores promise, what harnesses are worth elsewhere, when to switch.

Beside `questions`, which compares methods; made in the same way, and silent where runs are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from whale_jax.study.estimates import Estimate, crossed, difference, over_seeds, pooled
from whale_jax.study.questions import ARMS, returned
from whale_jax.study.results import Matrix, Result, Results, search_label


@dataclass(frozen=True)
class Overstatement:
    """How far search scores of a method promise more than validation and test keep; estimates over seeds, shares of 1.

    Attributes:
        phases: search phases that it rests on; `changed` of them accepted something.
        promised: search score of the accepted harness minus that of the incoming one, mean over a run's phases.
        kept: validation after the phase minus validation before it, the same.
        excess: `promised` minus `kept`. D_harness and validation hold other tasks, which may be easier or harder: this
            cancels in it.
        excess_changed: the same over the phases that changed the harness alone.
        expected: what `harness_search.inflation` expected the best score to be too high, without another rollout.
        over_test: search score minus test score of the returned pair, over the runs that returned one right after a
            search. Other tasks again, and here nothing cancels.
        excess_on_test: of a method that never trained: `promised` minus what test kept (returned minus initial pair).
    """

    method: str
    phases: int
    changed: int
    promised: Estimate
    kept: Estimate
    excess: Estimate
    excess_changed: Estimate | None
    expected: Estimate | None
    over_test: Estimate | None
    excess_on_test: Estimate | None


def overstatements(results: Results, domain: str) -> list[Overstatement]:
    """One line per method whose runs searched."""
    found = []
    for method in results.methods(domain):
        runs = {seed: run for seed, run in results.of(domain, method).items() if run.searches}
        said = over_seeds({seed: fmean(promised(run)) for seed, run in runs.items()})
        true = over_seeds({seed: fmean(kept(run)) for seed, run in runs.items()})
        excess = over_seeds({seed: fmean(promised(run)) - fmean(kept(run)) for seed, run in runs.items()})
        if said is None or true is None or excess is None:
            continue
        phases = [one for run in runs.values() for one in run.searches]
        luck = {seed: [one["expected_luck"] for one in run.searches] for seed, run in runs.items()}
        found.append(
            Overstatement(
                method=method,
                phases=len(phases),
                changed=sum(one["changed"] for one in phases),
                promised=said,
                kept=true,
                excess=excess,
                excess_changed=over_seeds(_excess_changed(runs)),
                expected=over_seeds({seed: fmean(values) for seed, values in luck.items() if None not in values}),
                over_test=over_seeds(_over_test(runs)),
                excess_on_test=over_seeds(_excess_on_test(runs)),
            )
        )
    return found


def promised(run: Result) -> list[float]:
    """What each search phase of a run says that it gained, on D_harness."""
    return [search["best"] - search["incoming"] for search in run.searches]


def kept(run: Result) -> list[float]:
    """What validation says of each search phase of a run."""
    labels = [point.label for point in run.curve]
    places = [labels.index(search_label(search)) for search in run.searches]
    return [run.curve[place].scores.mean - run.curve[place - 1].scores.mean for place in places]


def _excess_changed(runs: Mapping[int, Result]) -> dict[int, float]:
    found = {}
    for seed, run in runs.items():
        both = zip(promised(run), kept(run), run.searches, strict=True)
        if changed := [said - true for said, true, search in both if search["changed"]]:
            found[seed] = fmean(changed)
    return found


def _over_test(runs: Mapping[int, Result]) -> dict[int, float]:
    return {
        seed: search["best"] - run.returned.mean
        for seed, run in runs.items()
        for search in run.searches
        if search_label(search) == run.returned_point.label
    }


def _excess_on_test(runs: Mapping[int, Result]) -> dict[int, float]:
    return {
        seed: promised(run)[0] - (run.returned.mean - run.initial.mean)
        for seed, run in runs.items()
        if trained(run) == 0
    }


@dataclass(frozen=True)
class Transfer:
    """What accepted harnesses are worth on weights that they were not found on, against h0 on the same weights.

    Attributes:
        where: which weights.
        harnesses: accepted harnesses other than h0, over all seeds.
        estimate: mean gain over a run's harnesses and weights of this kind; None without any.
    """

    where: str
    harnesses: int
    estimate: Estimate | None


def transfers(results: Results, domain: str, method: str) -> list[Transfer]:
    """On the weights that each was found on, on all others, on the initial ones, and differences between these.

    A harness may be worth more on weights that can do less. So the last one leaves the initial weights out.
    """
    matrices = {seed: run.matrix for seed, run in results.of(domain, method).items() if run.matrix is not None}
    if not matrices:
        return []
    own = {seed: _gains(matrix, lambda found, at: at == found) for seed, matrix in matrices.items()}
    others = {seed: _gains(matrix, lambda found, at: at != found) for seed, matrix in matrices.items()}
    first = {seed: _gains(matrix, lambda found, at: at == 0 != found) for seed, matrix in matrices.items()}
    later = {seed: _gains(matrix, lambda found, at: at not in (found, 0)) for seed, matrix in matrices.items()}
    both = {seed: own[seed] - others[seed] for seed in matrices}
    trained_alone = {seed: own[seed] - later[seed] for seed in matrices}
    count = sum(len(matrix.harnesses) - 1 for matrix in matrices.values())
    return [
        Transfer("the weights that it was found on", count, crossed(own)),
        Transfer("all other weights of the run", count, crossed(others)),
        Transfer("the initial weights, where it was not found on them", count, crossed(first)),
        Transfer("own minus other weights", count, crossed(both)),
        Transfer("own minus other trained weights", count, crossed(trained_alone)),
    ]


def _gains(matrix: Matrix, wanted: Callable[[int, int], bool]) -> np.ndarray:
    """Per task, the mean gain over h0 of every accepted harness, on the weights that are wanted of it.

    Args:
        wanted: (column that the harness was found on, column) → whether that column counts.

    Returns:
        [tasks]; NaN where nothing counts.
    """
    base = {column: scores.shares for (row, column), scores in matrix.cells.items() if row == 0}
    gains = [
        scores.shares - base[column]
        for (row, column), scores in matrix.cells.items()
        if row > 0 and column in base and (found := matrix.found_on[row]) is not None and wanted(found, column)
    ]
    return pooled(gains) if gains else np.full(next(iter(matrix.cells.values())).shares.shape, np.nan)


@dataclass(frozen=True)
class Switch:
    """Runs that train first and search after it, once.

    Attributes:
        method: of the runs.
        steps: training steps before the switch.
        returned: test of the returned pair, over seeds.
        before, after: validation before and after the search, over seeds; None where nothing was searched.
        searched: of the runs, those that returned the pair after the search.
        runs: how many there are.
        against: paired difference to stagewise; None for stagewise itself, and where there is none.
    """

    method: str
    steps: float
    returned: Estimate
    before: Estimate | None
    after: Estimate | None
    searched: int
    runs: int
    against: Estimate | None


def switches(results: Results, domain: str, reference: str = "stagewise") -> list[Switch]:
    """By the number of steps before the search: harness_only (none), the branches, stagewise, and weight_only (all)."""
    found = []
    goals = returned(results.of(domain, reference))
    for method in _switching(results, domain, reference):
        runs = results.of(domain, method)
        last = over_seeds({seed: run.returned.mean for seed, run in runs.items()})
        if last is not None:
            steps = fmean(trained(run) for run in runs.values())
            against = None if method == reference else difference(goals, returned(runs))
            before, after = (_around_the_search(runs, place) for place in (-1, 0))
            searched = sum(run.returned_point.label.endswith("search") for run in runs.values())
            found.append(Switch(method, steps, last, before, after, searched, len(runs), against))
    return sorted(found, key=lambda one: one.steps)


def _around_the_search(runs: Mapping[int, Result], place: int) -> Estimate | None:
    """Validation at the point after a run's only search (`place` 0), or at the one before it (-1)."""
    found = {}
    for seed, run in runs.items():
        if run.searches:
            labels = [point.label for point in run.curve]
            found[seed] = run.curve[labels.index(search_label(run.searches[0])) + place].scores.mean
    return over_seeds(found)


def _switching(results: Results, domain: str, reference: str) -> list[str]:
    runs = results.manifest["runs"].items()
    branches = {name.split("/")[1] for name, run in runs if run["branch"] and name.split("/")[0] == domain}
    return [one for one in results.methods(domain) if branches and one in {*branches, *ARMS, reference}]


@dataclass(frozen=True)
class Picked:
    """What the runs of a method were, and which of their pairs validation picked.

    Attributes:
        steps: training steps, by run.
        flops: mean over runs.
        offered: pairs that had a validation score, by run.
        initial, trained, searched: runs that returned the initial pair, one after training, one after a search.
        rewritten: runs whose returned pair has another harness than they began with.
    """

    method: str
    steps: Sequence[int]
    flops: float
    offered: Sequence[int]
    initial: int
    trained: int
    searched: int
    rewritten: int


def picks(results: Results, domain: str) -> list[Picked]:
    """One line per method that has a result."""
    found = []
    for method in results.methods(domain):
        if runs := list(results.of(domain, method).values()):
            labels = [run.returned_point.label for run in runs]
            found.append(
                Picked(
                    method,
                    [trained(run) for run in runs],
                    fmean(run.content["flops"] for run in runs),
                    [len(run.curve) for run in runs],
                    labels.count("initial"),
                    sum(label.endswith("weights") for label in labels),
                    sum(label.endswith("search") for label in labels),
                    sum(run.rewritten for run in runs),
                )
            )
    return found


def trained(run: Result) -> int:
    """Training steps of a run."""
    return sum(phase["steps"] for phase in run.phases if phase["kind"] == "weight")
