"""The numbers behind a report's pictures: the paper's figures 2, 3 and 6 of one run, and its co-adaptation matrix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from whale_jax.evaluation.mean_at_k import paired_difference
from whale_jax.report.archives import SearchArchive
from whale_jax.report.run_files import Moment, RunFiles, read_object
from whale_jax.schedule import steps_of

GENERAL_FIGURES = {
    "answered": "episodes whose returned reply holds an answer in the required format",
    "right_when_answered": "of these, the right ones",
    "ended_by_itself": "episodes whose returned reply the policy ended itself",
    "cut": "episodes in which a reply was cut by a length limit",
    "used_tools": "episodes with a tool call",
    "turns": "mean assistant turns",
    "tool_calls": "mean tool calls",
    "sampled_tokens": "mean sampled tokens",
}
"""What every evaluation measures, whatever the domain (`evaluation.behaviour`)."""


def accuracy(run: RunFiles) -> dict[str, Any]:
    """Figure 2: `points` (evaluations), `phases` (spans of rollouts), `training` (mean reward of each step)."""
    at = {moment.entry["label"]: moment.before for moment in run.of_kind("evaluation") if _is(moment, "validation")}
    points = [
        {
            "rollouts": at.get(moment.entry["label"], moment.before),
            "label": moment.entry["label"],
            "split": moment.entry["split"],
            "step": moment.entry["step"],
            "mean": moment.entry["mean_at_k"],
            "ci95": moment.entry["ci95"],
            "k": moment.entry["k"],
            "tasks": moment.entry["tasks"],
        }
        for moment in run.of_kind("evaluation")
    ]
    training = [
        {"rollouts": step["rollouts_so_far"], **{name: step[name] for name in ("step", "reward", "accepted")}}
        for moment in run.of_kind("weight")
        for step in moment.entry["steps"]
    ]  # fmt: skip
    return {"points": points, "phases": list(_phases(run)), "training": training}


def _is(moment: Moment, split: str) -> bool:
    return moment.entry["split"] == split


def _phases(run: RunFiles) -> Iterator[dict[str, Any]]:
    span: dict[str, Any] | None = None
    for moment in run.moments:
        if moment.kind == "evaluation":
            continue
        key = (moment.kind, moment.entry["cycle"])
        if span is None or (span["kind"], span["cycle"]) != key:
            if span is not None:
                yield span
            span = {"kind": moment.kind, "cycle": moment.entry["cycle"], "start": moment.before}
        span["end"] = moment.after
    if span is not None:
        yield span


def behaviour(run: RunFiles) -> dict[str, Any]:
    """Figure 3: `meanings` by figure, the domain's own first, and `points` of each, by evaluation."""
    meanings = {**run.summary.get("figures", {})}
    points = []
    for moment in accuracy_points_with_evidence(run):
        own, general = moment["evidence"].get("domain_figures", {}), moment["evidence"].get("behaviour", {})
        for name in own:
            meanings.setdefault(name, name.replace("_", " "))
        values = {**{name: general.get(name) for name in GENERAL_FIGURES}, **own}
        where = {name: moment[name] for name in ("rollouts", "label", "split")}
        points += [{**where, "name": name, "value": value} for name, value in values.items() if value is not None]
    measured = {point["name"] for point in points}
    named = {**meanings, **{name: text for name, text in GENERAL_FIGURES.items() if name not in meanings}}
    return {"meanings": {name: text for name, text in named.items() if name in measured}, "points": points}


def accuracy_points_with_evidence(run: RunFiles) -> Iterator[dict[str, Any]]:
    """The points of `accuracy` whose evidence is there, with it."""
    numbers = [moment.entry["entry"] for moment in run.of_kind("evaluation")]
    for number, point in zip(numbers, accuracy(run)["points"], strict=True):
        if number in run.evidence:
            yield {**point, "evidence": run.evidence[number]}


def budgets(run: RunFiles) -> dict[str, Any]:
    """Figure 6: what each phase really took, the signal that its schedule looked at, and why it ended.

    Keys: `tasks` of an epoch (None where the records do not say), `window` (steps that the signal is smoothed over,
    None for schedules without patience), `weights` and `search`, one item per phase.
    """
    settings = run.settings
    tasks = epoch_tasks(run)
    window = None
    if settings.get("schedule") == "adaptive" and tasks is not None:
        window = steps_of(settings["patience_epochs"], tasks, settings["prompts_per_step"])
    return {
        "tasks": tasks,
        "window": window,
        "weights": [_weight_phase(run, cycle, tasks, window) for cycle in _cycles(run, "weight")],
        "search": [_search_phase(run, cycle) for cycle in _cycles(run, "search")],
    }


def epoch_tasks(run: RunFiles) -> int | None:
    """Tasks in an epoch of D_weight: as set, or from the sampler's position once an epoch is over; else None."""
    if run.settings.get("weight_tasks"):
        return run.settings["weight_tasks"]
    for moment in run.of_kind("weight"):
        sampler, given = moment.entry["sampler"], moment.entry["step"] * run.settings["prompts_per_step"]
        if sampler["epoch"] > 0:
            return (given - sampler["position"]) // sampler["epoch"]
    return None


def _cycles(run: RunFiles, kind: str) -> list[int]:
    return list(dict.fromkeys(moment.entry["cycle"] for moment in run.of_kind(kind)))


def _weight_phase(run: RunFiles, cycle: int, tasks: int | None, window: int | None) -> dict[str, Any]:
    entries = [moment.entry for moment in run.of_kind("weight") if moment.entry["cycle"] == cycle]
    steps = [step for entry in entries for step in entry["steps"]]
    epochs = len(steps) * run.settings["prompts_per_step"] / tasks if tasks else None
    rewards = [step["reward"] for step in steps]
    best, signal = None, []
    for place, step in enumerate(steps):
        recent = rewards[max(0, place + 1 - window) : place + 1] if window else [step["reward"]]
        smoothed = sum(recent) / len(recent)
        best = smoothed if best is None else max(best, smoothed)
        signal.append({"step": step["step"], "reward": step["reward"], "smoothed": smoothed, "best": best})
    decision = entries[-1]["decision"]
    reason = decision["reason"] if decision["stop"] else "goes on"
    return {"cycle": cycle, "steps": len(steps), "epochs": epochs, "reason": reason, "signal": signal}


def _search_phase(run: RunFiles, cycle: int) -> dict[str, Any]:
    entries = [moment.entry for moment in run.of_kind("search") if moment.entry["cycle"] == cycle]
    scores = [
        {
            "iteration": entry["iteration"],
            "best": entry["best_score"],
            "candidates": [slot["success_rate"] for slot in entry["slots"] if slot["success_rate"] is not None],
        }
        for entry in entries
    ]
    return {"cycle": cycle, "iterations": len(entries) - 1, "reason": _why(run, entries), "signal": scores}


def _why(run: RunFiles, entries: Sequence[Mapping[str, Any]]) -> str:
    """Why a search phase ended: the journal says that it did; the rule that said so is the schedule's."""
    last, settings = entries[-1], run.settings
    if last["decision"] == "go_on":
        return "goes on"
    if last["decision"] == "budget":
        return "budget used"
    if settings.get("schedule") != "adaptive":
        return "phase length reached"
    cap = settings["max_iterations"] - (1 if settings.get("count_incoming_as_iteration") else 0)
    return "iteration cap reached" if last["iteration"] >= cap else "no better archive score within patience"


def matrices(run: RunFiles, archives: Sequence[SearchArchive]) -> list[dict[str, Any]]:
    """The co-adaptation tables that `evaluate --matrix` left, one for each way of measuring; weights across."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for path in sorted((run.directory / "matrix").glob("*.json")):
        cell = read_object(path)
        if {"weights", "harness", "conditions", "evaluation"} <= cell.keys():
            groups.setdefault(repr(sorted(cell["conditions"].items())), []).append(cell)
    return [_matrix(run, archives, cells) for _, cells in sorted(groups.items())]


def _matrix(run: RunFiles, archives: Sequence[SearchArchive], cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    columns = _arms({run.record["inputs"].get("weights", ""): "initial"}, _weights_made(run), cells, "weights")
    rows = _arms({run.record["inputs"].get("harness", ""): "initial"}, _harnesses_made(archives), cells, "harness")
    first = next((one for one in cells if (one["weights"], one["harness"]) == (columns[0][0], rows[0][0])), None)
    out = []
    for cell in cells:
        figures = cell["evaluation"]
        minus = paired_difference(first["evaluation"]["rewards"], figures["rewards"]).to_json() if first else None
        place = {
            "weights": dict(columns)[cell["weights"]],
            "harness": dict(rows)[cell["harness"]],
            "mean": figures["mean_at_k"],
            "ci95": figures["ci95"],
        }
        out.append({**place, "minus_initial": minus})
    conditions = cells[0]["conditions"]
    return {
        "split": conditions.get("split"),
        "k": conditions.get("samples"),
        "tasks": cells[0]["evaluation"]["tasks"],
        "weights": [label for _, label in columns],
        "harnesses": [label for _, label in rows],
        "cells": out,
    }


def _weights_made(run: RunFiles) -> Iterator[tuple[str, str]]:
    for moment in run.of_kind("weight"):
        if moment.entry["decision"]["stop"]:
            yield moment.entry["weights"], f"cycle {moment.entry['cycle'] + 1}"


def _harnesses_made(archives: Sequence[SearchArchive]) -> Iterator[tuple[str, str]]:
    for archive in archives:
        for one in archive.candidates:
            if one.id == archive.best:
                yield one.harness_hash, f"cycle {archive.cycle + 1}"


def _arms(
    labels: dict[str, str], made: Iterator[tuple[str, str]], cells: Sequence[Mapping[str, Any]], field: str
) -> list[tuple[str, str]]:
    """(hash, label) of what is measured, in the order of the run; what the run does not name goes by its hash."""
    for name, label in made:
        labels[name] = f"{labels[name]} = {label}" if name in labels else label
    used = {cell[field] for cell in cells}
    known = [(name, label) for name, label in labels.items() if name in used]
    return known + [(name, name[:8]) for name in sorted(used - labels.keys())]
