"""Several runs side by side: the paper's tables 2 (methods by domain) and 3 (schedules), from the user's own runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from statistics import fmean, median, stdev
from typing import Any

from scipy.special import stdtrit

from whale_jax.report.figures import accuracy, budgets
from whale_jax.report.run_files import RunFiles


def method(settings: Mapping[str, Any]) -> str:
    """What a run is called in a comparison: its schedule, and whatever else is not as it usually is."""
    schedule = str(settings.get("schedule", "fixed"))
    names = {"weight_only": "weight-only", "harness_only": "harness-only"}
    name = names.get(schedule, schedule)
    if schedule == "fixed":
        name = f"fixed ({settings['weight_phase_epochs']:g}, {settings['search_phase_iterations']})"
    parts = [name]
    if settings.get("search_space") == "prompt_only":
        parts.append("prompts only")
    if schedule != "weight_only" and settings.get("proposer", "offline") != "offline":
        parts.append(str(settings["proposer"]))
    if settings.get("harness"):
        parts.append(f"from {PurePath(settings['harness']).name}")
    return ", ".join(parts)


def comparison(runs: Sequence[RunFiles]) -> dict[str, Any]:
    """`runs` (one line each, in order), `methods` (table 2) and `schedules` (table 3)."""
    lines = [_line(index, run) for index, run in enumerate(runs)]
    return {"runs": lines, "methods": _methods(lines), "schedules": _schedules(lines)}


def _line(index: int, run: RunFiles) -> dict[str, Any]:
    measured = accuracy(run)
    realised = budgets(run)
    returned = run.summary.get("returned", {}).get("label")
    scores = {}
    for split in ("validation", "test"):
        points = [point for point in measured["points"] if point["split"] == split]
        first = next((point["mean"] for point in points if point["label"] == "initial"), None)
        last = next((point["mean"] for point in points if point["label"] == returned), None)
        scores[split] = {"initial": first, "returned": last}
    return {
        "run": index,
        "name": run.name,
        "method": method(run.settings),
        "domain": run.settings.get("domain"),
        "seed": run.settings.get("seed"),
        "finished": run.finished,
        "scores": scores,
        "rollouts": run.moments[-1].after if run.moments else 0,
        "cycles": len({moment.entry["cycle"] for moment in run.moments if "cycle" in moment.entry}),
        "epochs": [phase["epochs"] for phase in realised["weights"] if phase["epochs"] is not None],
        "steps": [phase["steps"] for phase in realised["weights"]],
        "iterations": [phase["iterations"] for phase in realised["search"]],
        "curve": [[one["rollouts"], one["mean"]] for one in measured["points"] if one["split"] == "validation"],
    }


def _methods(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Table 2: one row per method and domain; the returned pair's score over seeds, of finished runs alone."""
    rows = []
    for (domain, name), group in _groups(lines).items():
        for split in ("test", "validation"):
            returned = _known(line["scores"][split]["returned"] for line in group)
            if returned:
                initial = _known(line["scores"][split]["initial"] for line in group)
                seeds = [line["seed"] for line in group]
                row = {"domain": domain, "method": name, "split": split, "seeds": seeds}
                rows.append({**row, "initial": over_seeds(initial), "returned": over_seeds(returned)})
    return rows


def _schedules(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Table 3: what each method really spent, and the rollouts after which it passed the reference's final accuracy.

    The reference of a domain is its stagewise runs, or where there are none the first method named. Its accuracy is the
    mean over seeds of the last validation score.
    """
    rows = []
    groups = _groups(lines)
    for (domain, name), group in groups.items():
        methods = [other for where, other in groups if where == domain]
        reference = next((other for other in methods if other.startswith("stagewise")), methods[0])
        goal = fmean(line["curve"][-1][1] for line in groups[domain, reference])
        cost = fmean(line["rollouts"] for line in groups[domain, reference])
        passed = [_passed(line["curve"], goal) for line in group]
        reached = [at for at in passed if at is not None]
        rows.append({
            "domain": domain,
            "method": name,
            "runs": len(group),
            "cycles": median(line["cycles"] for line in group),
            "epochs": _median(epochs for line in group for epochs in line["epochs"]),
            "steps": _median(steps for line in group for steps in line["steps"]),
            "iterations": _median(count for line in group for count in line["iterations"]),
            "rollouts": fmean(line["rollouts"] for line in group),
            "validation": over_seeds(_known(line["scores"]["validation"]["returned"] for line in group)),
            "reference": reference,
            "passed": fmean(reached) / cost if reached and cost else None,
            "passed_runs": len(reached),
        })  # fmt: skip
    return rows


def _groups(lines: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], list[Mapping[str, Any]]]:
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for line in lines:
        if line["finished"] and line["curve"]:
            groups.setdefault((line["domain"], line["method"]), []).append(line)
    return groups


def _passed(curve: Sequence[Sequence[float]], goal: float) -> float | None:
    """Rollouts at the first evaluation at or above the goal; None if there is none."""
    return next((rollouts for rollouts, mean in curve if mean >= goal), None)


def over_seeds(scores: Sequence[float]) -> dict[str, Any] | None:
    """Mean of one score per seed, with Student's 95 % interval where there are two seeds or more."""
    if not scores:
        return None
    mean, count = fmean(scores), len(scores)
    if count < 2:
        return {"mean": mean, "ci95": None, "seeds": count}
    half = float(stdtrit(count - 1, 0.975)) * stdev(scores) / count**0.5
    return {"mean": mean, "ci95": [max(0.0, mean - half), min(1.0, mean + half)], "seeds": count}


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _median(values: Iterable[float]) -> float | None:
    known = list(values)
    return median(known) if known else None
