"""A run at a glance: the returned pair against the initial one, what it cost, and what a reader must know beside it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

from whale_jax.evaluation.mean_at_k import paired_difference
from whale_jax.report.account import account
from whale_jax.report.archives import SearchArchive
from whale_jax.report.figures import accuracy_points_with_evidence
from whale_jax.report.run_files import RunFiles

LUCK = 0.05
"""A best search score that is likely to be this much too high, or is this far above its confirmation, is shown."""
MISMATCH = 0.05
"""Mean absolute difference of the trainer's and the sampler's log-probabilities (nats) that is pointed out."""


class Level(StrEnum):
    """How much a warning matters."""

    SERIOUS = "serious"
    """Do not rest a claim on this run before it is settled."""
    CAUTION = "caution"
    """A figure needs to be read with care."""
    NOTE = "note"


def glance(run: RunFiles, archives: Sequence[SearchArchive]) -> dict[str, Any]:
    """`initial`, `latest` (the returned pair, or the best so far), `differences` by split, `account`, `other_share`
    (`Account.other_share`), `warnings`."""
    points = list(accuracy_points_with_evidence(run))
    label = _latest_label(run, points)
    pairs, differences = {}, {}
    for split in ("validation", "test"):
        first, last = (_of(points, split, name) for name in ("initial", label))
        pairs[split] = {"initial": _figures(first), "latest": _figures(last)}
        if first is not None and last is not None and first is not last:
            before, after = first["evidence"]["rewards"], last["evidence"]["rewards"]
            differences[split] = paired_difference(before, after).to_json()
    spent = account([moment.entry for moment in run.moments], run.directory / "metrics.jsonl")
    warnings = [*_warnings(run, archives, differences, label), *(_line(Level.NOTE, note) for note in spent.notes)]
    order = list(Level)
    return {
        "label": label,
        "finished": run.finished,
        "pairs": pairs,
        "differences": differences,
        "account": spent.to_json(),
        "seconds": run.summary.get("seconds"),
        "other_share": run.summary.get("other_share", spent.other_share()),
        "warnings": sorted(warnings, key=lambda one: order.index(one["level"])),
    }


def latest(run: RunFiles) -> dict[str, Mapping[str, Any]]:
    """The evaluations of the returned pair, or of the best so far, by split, with their evidence."""
    points = list(accuracy_points_with_evidence(run))
    label = _latest_label(run, points)
    found = {split: _of(points, split, label) for split in ("validation", "test")}
    return {split: point for split, point in found.items() if point is not None}


def _latest_label(run: RunFiles, points: Sequence[Mapping[str, Any]]) -> str:
    if run.finished:
        return run.summary["returned"]["label"]
    split = "test" if run.settings.get("select_on") == "test" else "validation"
    measured = [point for point in points if point["split"] == split]
    return max(measured, key=lambda point: point["mean"])["label"] if measured else "initial"


def _of(points: Sequence[Mapping[str, Any]], split: str, label: str) -> Mapping[str, Any] | None:
    return next((point for point in points if (point["split"], point["label"]) == (split, label)), None)


def _figures(point: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if point is None else {name: point[name] for name in ("mean", "ci95", "k", "tasks", "rollouts", "step")}


def _line(level: Level, text: str, detail: str = "") -> dict[str, Any]:
    return {"level": level, "text": text, "detail": detail}


def _warnings(
    run: RunFiles, archives: Sequence[SearchArchive], differences: Mapping[str, Any], label: str
) -> Iterator[dict[str, Any]]:
    settings = run.settings
    for line in run.warnings:
        serious = "--sandbox=none" in line or "unseal" in line
        yield _line(Level.SERIOUS if serious else Level.CAUTION, line)
    if settings.get("sandbox") == "none" and not any("--sandbox=none" in line for line in run.warnings):
        yield _line(Level.SERIOUS, "--sandbox=none: harness code ran with the user's rights")
    if settings.get("select_on") == "test":
        yield _line(Level.CAUTION, "the returned pair was picked on test: its test score is too high for that")
    if settings.get("allow_overlap"):
        yield _line(Level.CAUTION, "D_harness may hold tasks of D_weight (--allow_overlap)")
    yield from _about_search(archives)
    yield from _about_steps(run)
    yield from _about_missing(run)
    decisive = differences.get("test") or differences.get("validation")
    if label == "initial" and run.finished:
        yield _line(Level.NOTE, "no pair was better than the initial one on the selecting split: it is returned")
    elif decisive and decisive["ci95"][0] <= 0 <= decisive["ci95"][1]:
        split = "test" if "test" in differences else "validation"
        yield _line(Level.CAUTION, f"the gain on {split} is not more than noise: its 95 % interval holds zero")


def _about_search(archives: Sequence[SearchArchive]) -> Iterator[dict[str, Any]]:
    for archive in archives:
        where = f"cycle {archive.cycle + 1}"
        flagged = [one.id for one in archive.candidates if one.audit.get("flagged")]
        if flagged:
            winner = archive.best in flagged
            text = f"{where}: flagged for the right answer in text that the harness wrote: {', '.join(flagged)}"
            detail = "the accepted candidate is among them" if winner else "none of them was accepted"
            yield _line(Level.SERIOUS if winner else Level.CAUTION, text, detail)
        trials = [entry["confirmation"] for entry in archive.iterations if entry.get("confirmation")]
        best = next((one for one in archive.candidates if one.id == archive.best and one.score), None)
        confirmed = next((one["comparison"]["after"] for one in reversed(trials) if one["accepted"]), None)
        if best is not None and best.score is not None and confirmed is not None:
            excess = float(best.score.success_rate) - confirmed
            if excess > LUCK:
                above = f"{100 * excess:.1f} points above its confirmation"
                text = f"{where}: the accepted candidate's search score is {above}"
                yield _line(Level.CAUTION, text, "trust the confirmation: it chose nothing")
        luck = archive.inflation
        if not trials and luck is not None and LUCK < luck["expected"] < luck["best_search_score"]:
            points = f"{100 * luck['expected']:.1f} points too high"
            text = f"{where}: the best search score ({100 * luck['best_search_score']:.1f} %) is likely to be {points}"
            yield _line(Level.CAUTION, text, "the best of several noisy scores, with no fresh rollouts to confirm it")
        failed = sum(entry["session"] == "failed" for entry in archive.iterations)
        if failed:
            yield _line(Level.NOTE, f"{where}: {failed} of {len(archive.iterations) - 1} proposer sessions failed")
        invalid = sum(one.score is None for one in archive.candidates)
        if archive.candidates and 2 * invalid > len(archive.candidates):
            text = f"{where}: {invalid} of {len(archive.candidates)} candidates did not pass validation"
            yield _line(Level.NOTE, text)


def _about_steps(run: RunFiles) -> Iterator[dict[str, Any]]:
    steps = [step for moment in run.of_kind("weight") for step in moment.entry["steps"]]
    idle = [str(step["step"]) for step in steps if step["accepted"] == 0]
    if idle:
        shown = ", ".join(idle[:8]) + (", …" if len(idle) > 8 else "")
        text = f"{len(idle)} of {len(steps)} training steps accepted nothing and changed nothing"
        yield _line(Level.CAUTION, text, f"step {shown}")
    means = [line.get("mismatch_mean") for line in run.metrics if line.get("kind") == "weight"]
    known = [value for value in means if isinstance(value, int | float)]
    if any(isinstance(value, str) for value in means):  # "nan" and "inf" are written as texts
        yield _line(Level.SERIOUS, "trainer and sampler disagree: a step's mismatch is not finite")
    if known and max(known) > MISMATCH:
        text = f"trainer and sampler disagree: log-probabilities differ by {max(known):.3g} nats on average in a step"
        yield _line(Level.SERIOUS, text, "the tokens trained on are less likely under the trained model than recorded")


def _about_missing(run: RunFiles) -> Iterator[dict[str, Any]]:
    missing = episodes = 0
    for moment in run.moments:
        entry = moment.entry
        if moment.kind == "weight":
            missing += sum(step["unscored"] for step in entry["steps"])
            episodes += entry["rollouts"]
        elif moment.kind == "search":
            missing += entry["missing"]
            episodes += entry["rollouts"]
        elif moment.kind == "evaluation":
            missing += entry["unscored"]
            episodes += entry["episodes"]
    if missing:
        share = missing / episodes if episodes else math.nan
        text = f"{missing:,} of {episodes:,} episodes have no verdict ({100 * share:.2g} %)"
        yield _line(Level.CAUTION, text, "missing data, never counted as wrong")
