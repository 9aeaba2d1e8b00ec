"""The figures of a study's page, as SVG; the same results make the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from whale_jax.study.estimates import Interval
from whale_jax.study.mechanisms import kept, promised, switches
from whale_jax.study.questions import contrasts, levels
from whale_jax.study.results import Matrix, Result, Results

_COLOURS = {
    "adaptive": "#1b6ca8", "fixed": "#46a0d6", "stagewise": "#7b52ab", "weight_only": "#c2571a",
    "harness_only": "#d9a404", "prompt_only": "#3f8f5f", "random_edit": "#8a8a8a", "strong": "#1b1b1b",
}  # fmt: skip
_BRANCH_COLOURS = {"switch_09": "#a98bd0", "switch_24": "#4b2a73"}


@dataclass(frozen=True)
class Picture:
    """A figure: what it shows, for those who do not see it, and who draws it (None: there is nothing to draw)."""

    alt: str
    make: Callable[[Results], Figure | None]


def draw(name: str, results: Results, folder: Path) -> Path | None:
    """Writes the figure of a block; None, and no file, where there is nothing to draw."""
    path = folder / f"{name}.svg"
    figure = FIGURES[name].make(results)
    if figure is None:
        path.unlink(missing_ok=True)
        return None
    with matplotlib.rc_context({"svg.hashsalt": "study", "svg.fonttype": "none"}):
        figure.savefig(path, format="svg", facecolor="white", metadata={"Date": None, "Creator": None})
    return path


def _panels(count: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(width * count, height), layout="constrained")
    return figure, list(figure.subplots(1, count, squeeze=False)[0])


def _scores(results: Results) -> Figure | None:
    """Test of the returned pair, by method: mean and interval over seeds, and every seed."""
    found = {domain: lines for domain in results.domains if (lines := levels(results, domain))}
    if not found:
        return None
    figure, panels = _panels(len(found), 4.2, 3.6)
    for axes, (domain, lines) in zip(panels, found.items(), strict=True):
        for place, line in enumerate(lines):
            colour = _colour(line.method)
            _interval(axes, place, line.returned.mean, line.returned.over_seeds, colour)
            for values, marker in ((line.returned.by_seed, "o"), (line.initial.by_seed, "x")):
                beside = place + np.linspace(0.16, 0.36, len(values))
                axes.plot(beside, _percent(values.values()), marker, color=colour, ms=3.5, alpha=0.6)
        axes.set_xticks(range(len(lines)), [line.method for line in lines], rotation=40, ha="right", fontsize=8)
        _label(axes, domain, "", "test of the returned pair, %")
    panels[0].plot([], [], "o", color="#555", ms=4, label="a seed, returned pair")
    panels[0].plot([], [], "x", color="#555", ms=4, label="a seed, initial pair")
    panels[0].legend(fontsize=7)
    return figure


def _answers(results: Results) -> Figure | None:
    """The differences with both intervals, each domain on a scale of its own."""
    found = {
        domain: lines
        for domain in results.domains
        if (lines := [(one, one.estimate) for one in contrasts(results, domain) if one.estimate is not None])
    }
    if not found:
        return None
    heights = [1.2 + len(lines) for lines in found.values()]
    figure = Figure(figsize=(8.5, 0.8 + 0.34 * sum(heights)), layout="constrained")
    panels = list(figure.subplots(len(found), 1, squeeze=False, height_ratios=heights)[:, 0])
    for axes, (domain, lines) in zip(panels, found.items(), strict=True):
        for place, (one, estimate) in enumerate(lines):
            colour = _colour(one.minuend)
            for interval, below, width in ((estimate.over_seeds, 0.0, 4.0), (estimate.over_both, 0.22, 1.5)):
                if interval is not None:
                    at = [place + below] * 2
                    axes.plot(_percent(interval), at, "-", color=colour, lw=width, solid_capstyle="butt")
            axes.plot([100 * estimate.mean], [place], "o", color=colour, ms=5)
        axes.axvline(0, color="#555", lw=0.8)
        axes.set_yticks(range(len(lines)), [f"{one.minuend} - {one.subtrahend}" for one, _ in lines], fontsize=8)
        axes.set_ylim(len(lines) - 0.4, -0.6)
        _label(axes, domain, "", "")
    panels[-1].set_xlabel("difference on test, points (thick: 95 % over seeds; thin: over seeds and tasks)", fontsize=8)
    return figure


def _sooner(results: Results) -> Figure | None:
    """Validation against rollouts: every seed thin, with its pairs as dots, the mean over seeds thick."""
    found = {domain: runs for domain in results.domains if (runs := dict(_curves(results, domain)))}
    if not found:
        return None
    figure, panels = _panels(len(found), 5.0, 3.8)
    for axes, (domain, methods) in zip(panels, found.items(), strict=True):
        for method, runs in methods.items():
            lines = [_line(run) for run in runs]
            for rollouts, values in lines:
                axes.plot(rollouts, values, "-o", color=_colour(method), lw=0.6, ms=2.5, alpha=0.35)
            grid = np.linspace(0, min(rollouts[-1] for rollouts, _ in lines), 60)
            mean = np.mean([np.interp(grid, *line) for line in lines], axis=0)
            axes.plot(grid, mean, "-", color=_colour(method), lw=2, label=method)
        axes.set_xlim(left=0)
        _label(axes, domain, "training and search rollouts", "validation, %")
        axes.legend(fontsize=7)
    return figure


def _curves(results: Results, domain: str) -> Iterator[tuple[str, list[Result]]]:
    for method in results.methods(domain):
        if method in _COLOURS and (runs := results.of(domain, method)):
            yield method, list(runs.values())


def _line(run: Result) -> tuple[list[float], list[float]]:
    return [float(point.rollouts) for point in run.curve], _percent(point.scores.mean for point in run.curve)


def _overstated(results: Results) -> Figure | None:
    """What each search phase promised against what validation kept of it."""
    found = {
        domain: runs
        for domain in results.domains
        if (runs := [run for run in results.by_name.values() if run.domain == domain and run.searches])
    }
    if not found:
        return None
    figure, panels = _panels(len(found), 4.2, 4.0)
    for axes, (domain, runs) in zip(panels, found.items(), strict=True):
        for method in dict.fromkeys(run.method for run in runs):
            mine = [run for run in runs if run.method == method]
            said = _percent(value for run in mine for value in promised(run))
            true = _percent(value for run in mine for value in kept(run))
            axes.plot(said, true, "o", color=_colour(method), ms=4, alpha=0.7, label=method)
        axes.axline((0, 0), slope=1, color="#555", lw=0.8)
        axes.axhline(0, color="#bbb", lw=0.8)
        _label(axes, domain, "gain in search score, points", "gain on validation, points")
    methods = dict.fromkeys(run.method for runs in found.values() for run in runs)
    dots = [Line2D([], [], marker="o", ls="", ms=4, color=_colour(method), label=method) for method in methods]
    figure.legend(handles=dots, loc="outside lower center", ncols=5, fontsize=7)
    return figure


def _transfer(results: Results) -> Figure | None:
    """The matrices: weights across, harnesses down."""
    found = [
        (run.name, run.matrix)
        for domain in results.domains
        for run in results.by_name.values()
        if run.domain == domain and run.matrix is not None
    ]
    if not found:
        return None
    ranges: dict[str, list[float]] = {}
    for name, matrix in found:
        ranges.setdefault(name.split("/")[0], []).extend(100 * scores.mean for scores in matrix.cells.values())
    columns = min(4, len(found))
    rows = -(-len(found) // columns)
    figure = Figure(figsize=(3.4 * columns, 3.0 * rows), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes, (name, matrix) in zip(panels, found, strict=False):
        _heat(axes, name, matrix, ranges[name.split("/")[0]])
    for axes in panels[len(found) :]:
        axes.axis("off")
    return figure


def _heat(axes: Axes, name: str, matrix: Matrix, domain: Sequence[float]) -> None:
    """One matrix; its colours are on the scale of all values of its domain."""
    table = np.full((len(matrix.harnesses), len(matrix.weights)), np.nan)
    for place, scores in matrix.cells.items():
        table[place] = 100 * scores.mean
    axes.imshow(table, cmap="viridis", aspect="auto", vmin=min(domain), vmax=max(domain))
    middle = (min(domain) + max(domain)) / 2
    for (row, column), value in np.ndenumerate(table):
        if np.isfinite(value):
            own = matrix.found_on[row] == column
            text = f"[{value:.0f}]" if own else f"{value:.0f}"
            axes.text(column, row, text, ha="center", va="center", fontsize=8, color="w" if value < middle else "k")
    axes.set_xticks(range(len(matrix.weights)), matrix.weights, fontsize=7, rotation=30, ha="right")
    axes.set_yticks(range(len(matrix.harnesses)), matrix.harnesses, fontsize=7)
    axes.set_title(name, fontsize=8)
    axes.set_xlabel("weights after", fontsize=7)
    axes.set_ylabel("harness accepted in", fontsize=7)


def _switching(results: Results) -> Figure | None:
    """Test of the returned pair against the number of steps before the search."""
    found = {domain: lines for domain in results.domains if (lines := switches(results, domain))}
    if not found:
        return None
    figure, panels = _panels(len(found), 5.0, 3.6)
    for axes, (domain, lines) in zip(panels, found.items(), strict=True):
        axes.plot(
            [line.steps for line in lines], _percent(line.returned.mean for line in lines), "-", color="#555", lw=1
        )
        for line in lines:
            _interval(axes, line.steps, line.returned.mean, line.returned.over_seeds, _colour(line.method))
            each = line.returned.by_seed.values()
            axes.plot([line.steps] * len(each), _percent(each), "_", color=_colour(line.method), ms=7)
            axes.annotate(line.method, (line.steps, 100 * line.returned.mean), fontsize=7, xytext=(4, 4),
                          textcoords="offset points")  # fmt: skip
        axes.margins(x=0.2)
        _label(axes, domain, "training steps before the search", "test of the returned pair, %")
    return figure


def _colour(method: str) -> str:
    return _COLOURS.get(method) or _BRANCH_COLOURS.get(method, "#7b52ab")


def _percent(values: Iterable[float]) -> list[float]:
    return [100 * value for value in values]


def _interval(axes: Axes, at: float, mean: float, interval: Interval | None, colour: str) -> None:
    axes.plot([at], [100 * mean], "o", color=colour, ms=6)
    if interval is not None:
        axes.plot([at, at], _percent(interval), "-", color=colour, lw=1.6)


def _label(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(x, fontsize=8)
    axes.set_ylabel(y, fontsize=8)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.25)


FIGURES: Mapping[str, Picture] = {
    "scores": Picture("Test score of the returned pair of every method, with intervals over seeds", _scores),
    "answers": Picture("Paired differences between methods on test, with both intervals", _answers),
    "sooner": Picture("Validation accuracy against rollouts, by method", _sooner),
    "overstated": Picture("Gain on validation against gain in search score, one point per search phase", _overstated),
    "transfer": Picture(
        "Validation accuracy of every weights under every harness; in brackets where a harness was found", _transfer
    ),
    "switching": Picture("Test score against the number of training steps before the search", _switching),
}
"""By the name of the block that they stand in."""
