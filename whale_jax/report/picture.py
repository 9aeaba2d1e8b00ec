"""The run in one picture: accuracy against rollouts, phases marked (the paper's figure 2)."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure


@dataclass(frozen=True)
class Point:
    """One evaluation: rollouts spent before it, mean@k and its 95 % interval (shares)."""

    rollouts: int
    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Span:
    """One phase: rollouts at its start and end."""

    kind: str
    start: int
    end: int


_COLOURS = {"weights": "#2a6f97", "search": "#e09f3e"}


def draw(
    path: Path,
    *,
    title: str,
    validation: Sequence[Point],
    training: Sequence[tuple[int, float]],
    phases: Sequence[Span],
) -> None:
    """Writes a PNG.

    Args:
      path: file to write.
      title: one line above the axes.
      validation: points of the line, with intervals.
      training: (rollouts, mean reward) of each training step, drawn faintly.
      phases: shaded spans.
    """
    figure = Figure(figsize=(8, 4.5), dpi=130, layout="constrained")
    axes = figure.subplots()
    named: set[str] = set()
    for span in phases:
        label = {"weights": "weight phase", "search": "search phase"}[span.kind]
        axes.axvspan(
            span.start, span.end, color=_COLOURS[span.kind], alpha=0.13, lw=0, label=None if label in named else label
        )
        named.add(label)
    if training:
        rollouts, rewards = zip(*training, strict=True)
        axes.plot(
            rollouts,
            [100 * reward for reward in rewards],
            ".",
            color="#8a8a8a",
            ms=4,
            label="training reward, per step",
        )
    means = [100 * point.mean for point in validation]
    errors = [
        [mean - 100 * point.low for mean, point in zip(means, validation, strict=True)],
        [100 * point.high - mean for mean, point in zip(means, validation, strict=True)],
    ]
    axes.errorbar(
        [point.rollouts for point in validation], means, yerr=errors, fmt="o-", color="#1b1b1b", ms=4, capsize=3,
        lw=1.5, label="validation, mean@k with 95 % interval",
    )  # fmt: skip
    axes.set_xlabel("training and search rollouts")
    axes.set_ylabel("accuracy, %")
    axes.set_ylim(0, 100)
    axes.set_xlim(left=0)
    axes.grid(alpha=0.25)
    axes.set_title(title, fontsize=10)
    axes.legend(loc="best", fontsize=8, framealpha=0.9)
    figure.savefig(path)
