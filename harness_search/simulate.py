"""`python -m harness_search.simulate`: how often acceptance rules err, on populations that are stated and made up.

A population is, per task, the probability that the incumbent solves it and that a challenger does. A decision of
`paired` is: the challenger's search score (one rollout per task) is above the incumbent's, and the trial on fresh
rollouts accepts it. docs/acceptance.md holds the tables that this command prints.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from harness_search.paired import ALPHA, lower_bound, sign_flip_p

TASKS = 256
CANDIDATES_PER_ITERATION = 3
ITERATIONS = 4

Draw = Callable[[np.random.Generator, int], np.ndarray]
"""(generator, tasks) -> success probability per task."""


def mixed(rng: np.random.Generator, tasks: int) -> np.ndarray:
    """Tasks of every difficulty: Beta(0.8, 1.2), mean 0.4."""
    return rng.beta(0.8, 1.2, tasks)


def polar(rng: np.random.Generator, tasks: int) -> np.ndarray:
    """Most tasks are nearly always or nearly never solved: Beta(0.1, 0.15), mean 0.4."""
    return rng.beta(0.1, 0.15, tasks)


def even(rng: np.random.Generator, tasks: int) -> np.ndarray:
    """All tasks alike, at 0.4: the noisiest case."""
    return np.full(tasks, 0.4)


def rare(rng: np.random.Generator, tasks: int) -> np.ndarray:
    """Hardly anything is ever solved: 0.01 everywhere, so nearly all differences are 0."""
    return np.full(tasks, 0.01)


POPULATIONS: dict[str, Draw] = {"mixed": mixed, "polar": polar, "even": even, "rare": rare}


def shifted(chances: np.ndarray, points: float) -> np.ndarray:
    """The same tasks for a challenger that is better by `points` on average: every logit moves by the same amount."""
    safe = np.clip(chances, 1e-9, 1 - 1e-9)
    logits = np.log(safe / (1 - safe))
    low, high = 0.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        reached = np.mean(1 / (1 + np.exp(-(logits + middle)))) - chances.mean()
        low, high = (middle, high) if reached < points else (low, middle)
    return 1 / (1 + np.exp(-(logits + low)))


def rewritten(chances: np.ndarray, points: float, rng: np.random.Generator) -> np.ndarray:
    """A challenger that always solves just enough randomly chosen tasks more, and is the same on all others."""
    better = chances.copy()
    for task in rng.permutation(len(chances)):
        if better.mean() - chances.mean() >= points:
            break
        better[task] = 1.0
    return better


def accepts(before: np.ndarray, after: np.ndarray, rollouts: int, alpha: float = ALPHA) -> bool:
    """The trial's verdict. `before`, `after`: successes per task, of `rollouts` each."""
    differences = (after - before).astype(int)
    if sign_flip_p(differences.tolist()) > alpha:
        return False
    return lower_bound(differences.tolist(), [rollouts] * len(differences), alpha) > 0


def decision(rng: np.random.Generator, old: np.ndarray, new: np.ndarray, rollouts: int) -> bool:
    """One decision of `paired`: the search score's gate, and the trial."""
    if rng.binomial(1, new).sum() <= rng.binomial(1, old).sum():
        return False
    return accepts(rng.binomial(rollouts, old), rng.binomial(rollouts, new), rollouts)


@dataclass(frozen=True)
class SearchErrors:
    """Whole searches among identical candidates.

    Attributes:
        paired: share of searches in which `paired` accepted anything.
        archive_max: the same for `archive_max`.
        inflation: how far the archive's best search score lies above the truth on average, in points of 100.
        confirmed: how far a fresh score of the same candidate does.
    """

    paired: float
    archive_max: float
    inflation: float
    confirmed: float


def false_accepts(draw: Draw, rollouts: int, repeats: int, seed: int = 0, *, gate: bool = True) -> float:
    """Share of decisions that accept a candidate identical to the incumbent; without the gate: of trials."""
    rng = np.random.default_rng(seed)
    hits = 0
    for _ in range(repeats):
        chances = draw(rng, TASKS)
        if gate:
            hits += decision(rng, chances, chances, rollouts)
        else:
            hits += accepts(rng.binomial(rollouts, chances), rng.binomial(rollouts, chances), rollouts)
    return hits / repeats


def power(draw: Draw, kind: str, points: float, rollouts: int, repeats: int, seed: int = 0) -> float:
    """Share of decisions that accept a candidate better by `points` (a share). `kind`: "shifted" or "rewritten"."""
    rng = np.random.default_rng(seed)
    hits = 0
    for _ in range(repeats):
        old = draw(rng, TASKS)
        new = shifted(old, points) if kind == "shifted" else rewritten(old, points, rng)
        hits += decision(rng, old, new, rollouts)
    return hits / repeats


def whole_search(draw: Draw, rollouts: int, repeats: int, seed: int = 0) -> SearchErrors:
    """Searches of 4 iterations with 3 identical candidates each; one rollout per task in the search."""
    rng = np.random.default_rng(seed)
    accepted = replaced = 0
    inflation = confirmed = 0.0
    for _ in range(repeats):
        chances = draw(rng, TASKS)
        truth = chances.mean()
        scores = [rng.binomial(1, chances).mean()]
        incumbent, refused, taken = 0, set[int](), False
        for _ in range(ITERATIONS):
            scores += [rng.binomial(1, chances).mean() for _ in range(CANDIDATES_PER_ITERATION)]
            rest = [number for number in range(len(scores)) if number not in refused and number != incumbent]
            challenger = max(rest, key=lambda number: scores[number])
            if scores[challenger] <= scores[incumbent]:
                continue
            if accepts(rng.binomial(rollouts, chances), rng.binomial(rollouts, chances), rollouts):
                incumbent, taken = challenger, True
            else:
                refused.add(challenger)
        accepted += taken
        replaced += max(scores) > scores[0]
        inflation += max(scores) - truth
        confirmed += rng.binomial(rollouts, chances).mean() / rollouts - truth
    points = 100 / repeats
    return SearchErrors(accepted / repeats, replaced / repeats, inflation * points, confirmed * points)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m harness_search.simulate", description=__doc__)
    parser.add_argument("--repeats", type=int, default=2000, help="simulated decisions per figure (default: 2000)")
    repeats = parser.parse_args(arguments).repeats
    print("| population | false accepts per decision x 1 | x 2 | x 4 | per trial x 4 |\n|---|---|---|---|---|")
    for name, draw in POPULATIONS.items():
        rates = [false_accepts(draw, rollouts, repeats) for rollouts in (1, 2, 4)]
        trial = false_accepts(draw, 4, repeats, gate=False)
        print(f"| {name} | " + " | ".join(f"{100 * rate:.1f} %" for rate in (*rates, trial)) + " |")
    print("\n| population | +8 points as | x 1 | x 2 | x 4 |\n|---|---|---|---|---|")
    for name in ("mixed", "polar", "even"):
        for kind in ("shifted", "rewritten"):
            powers = [power(POPULATIONS[name], kind, 0.08, rollouts, repeats) for rollouts in (1, 2, 4)]
            print(f"| {name} | {kind} | " + " | ".join(f"{value:.2f}" for value in powers) + " |")
    print("\n| population | `paired` accepts any | `archive_max` | its inflation | a fresh score's |")
    print("|---|---|---|---|---|")
    for name, draw in POPULATIONS.items():
        errors = whole_search(draw, 4, max(1, repeats // 4))
        print(
            f"| {name} | {100 * errors.paired:.1f} % | {100 * errors.archive_max:.1f} % | "
            f"{errors.inflation:+.2f} points | {errors.confirmed:+.2f} points |"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
