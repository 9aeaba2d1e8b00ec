"""From a finished run directory to its result: a few kilobytes that hold all that the study's page is made of."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from whale_jax.report.account import account
from whale_jax.report.archives import ArchivedCandidate, SearchArchive, read_archives
from whale_jax.report.figures import accuracy, budgets
from whale_jax.report.run_files import RunFiles, read_object, read_run
from whale_jax.study.design import RunSpec, StudyError
from whale_jax.study.scores import Scores

FORMAT = 1


def extract(spec: RunSpec, directory: Path, code: Mapping[str, str | None]) -> dict[str, Any]:
    """The result of a finished run. `results.Result` says what its keys mean.

    Args:
        code: `commit` and `code` that made it.

    Raises:
        StudyError: the run has not ended, or lacks evidence of an evaluation.
        ReportError: it is no run directory, or is damaged.
    """
    run = read_run(directory)
    if not run.finished:
        raise StudyError(f"{directory}: the run has no summary of its whole journal; the same command goes on with it")
    archives = read_archives(run)
    spent = account([moment.entry for moment in run.moments], directory / "metrics.jsonl")
    returned = run.summary["returned"]["label"]
    fork = run.record.get("fork")
    return {
        "format": FORMAT,
        "domain": spec.domain,
        "method": spec.method,
        "seed": spec.seed,
        "config": run.record.get("hash"),
        "inputs": dict(run.record["inputs"]),
        "environment": dict(run.record.get("environment", {})),
        **code,
        "branch": None if fork is None else {"from": spec.parent, "entry": fork["entry"]},
        "journal": run.summary["journal"],
        "budget": run.settings.get("max_rollouts"),
        "rollouts": run.moments[-1].after,
        "episodes": spent.total.rollouts,
        "sampled_tokens": spent.total.sampled_tokens,
        "flops": spent.total.flops,
        "seconds": spent.total.seconds,
        "jobs": spent.jobs,
        "curve": [_point(run, point) for point in accuracy(run)["points"] if point["split"] == "validation"],
        "returned": returned,
        "test": {"initial": _test(run, "initial"), "returned": _test(run, returned)},
        "phases": list(_phases(run)),
        "searches": [_search(archive) for archive in archives],
        "matrix": _matrix(run, archives) if spec.matrix else None,
        "warnings": list(run.warnings),
    }


def made_by(code: str) -> dict[str, str | None]:
    """The hash of the code, and the commit that is checked out where it lies (with `+` where its files are changed)."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        changed = subprocess.run(
            [*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return {"commit": None, "code": code}
    return {"commit": head + ("+" if changed.strip() else ""), "code": code}


def _scores(run: RunFiles, split: str, label: str) -> Scores:
    for moment in run.of_kind("evaluation"):
        entry = moment.entry
        if (entry["split"], entry["label"]) == (split, label):
            evidence = run.evidence.get(entry["entry"])
            if evidence is None:
                break
            return Scores.of(evidence["rewards"], evidence["k"])
    raise StudyError(f"{run.directory}: the evaluation of '{label}' on {split}, or its evidence, is missing")


def _point(run: RunFiles, point: Mapping[str, Any]) -> dict[str, Any]:
    scores = _scores(run, "validation", point["label"]).to_json()
    return {"label": point["label"], "rollouts": point["rollouts"], "step": point["step"], **scores}


def _test(run: RunFiles, label: str) -> dict[str, Any]:
    return _scores(run, "test", label).to_json()


def _phases(run: RunFiles) -> Iterator[dict[str, Any]]:
    realised = budgets(run)
    found = {("weight", one["cycle"]): one for one in realised["weights"]}
    found |= {("search", one["cycle"]): one for one in realised["search"]}
    for span in accuracy(run)["phases"]:
        phase = found[span["kind"], span["cycle"]]
        length = {name: phase[name] for name in ("steps", "epochs", "iterations") if name in phase}
        spent = span["end"] - span["start"]
        yield {"kind": span["kind"], "cycle": span["cycle"], "rollouts": spent, **length, "reason": phase["reason"]}


def _search(archive: SearchArchive) -> dict[str, Any]:
    """One search phase: what its scores promised, and what it accepted."""
    best = _accepted(archive)
    slots = [slot for entry in archive.iterations[1:] for slot in entry["slots"]]
    return {
        "cycle": archive.cycle,
        "incoming": archive.iterations[0]["best_score"],
        "best": archive.iterations[-1]["best_score"],
        "expected_luck": None if archive.inflation is None else archive.inflation["expected"],
        "changed": best.id != "000",
        "harness": best.harness_hash,
        "edits": _lineage(archive, best),
        "iterations": len(archive.iterations) - 1,
        "scored": sum(slot["state"] == "scored" for slot in slots),
        "invalid": sum(slot["state"] == "invalid" for slot in slots),
        "flagged": bool(best.audit.get("flagged", False)),
    }


def _accepted(archive: SearchArchive) -> ArchivedCandidate:
    return next(one for one in archive.candidates if one.id == archive.best)


def _lineage(archive: SearchArchive, best: ArchivedCandidate) -> list[str]:
    """The edits that lead from the incoming harness to the accepted one."""
    by_id = {one.id: one for one in archive.candidates}
    edits: list[str] = []
    one: ArchivedCandidate | None = best
    while one is not None and one.id != "000":
        edits = [*one.proposal.get("edits", []), *edits]
        one = by_id.get(one.proposal.get("parent") or "")
    return edits


def _matrix(run: RunFiles, archives: Sequence[SearchArchive]) -> dict[str, Any]:
    """`weights` (columns: `label`, hash), `harnesses` (rows: the same, and the column that each was found on), and
    `cells` by row and column; None where one was not measured."""
    cells: dict[tuple[str, str], dict[str, Any]] = {}
    for path in sorted((run.directory / "matrix").glob("*.json")):
        cell = read_object(path)
        if cell.get("conditions", {}).get("split") == "validation":
            evaluation = cell["evaluation"]
            cells[cell["harness"], cell["weights"]] = Scores.of(evaluation["rewards"], evaluation["k"]).to_json()
    columns = {run.record["inputs"]["weights"]: "initial"}
    for moment in run.of_kind("weight"):
        if moment.entry["decision"]["stop"]:
            columns.setdefault(moment.entry["weights"], f"cycle {moment.entry['cycle'] + 1}")
    rows: dict[str, tuple[str, str | None]] = {run.record["inputs"]["harness"]: ("initial", None)}
    for archive in archives:
        found_on = archive.iterations[0]["weights"]
        rows.setdefault(_accepted(archive).harness_hash, (f"cycle {archive.cycle + 1}", found_on))
    weights = [name for name in columns if any((harness, name) in cells for harness in rows)]
    if not weights:
        raise StudyError(f"{run.directory}: its matrix was not measured: python -m whale_jax.evaluate --matrix")
    return {
        "weights": [{"label": columns[name], "sha256": name} for name in weights],
        "harnesses": [
            {"label": label, "sha256": name, "found_on": weights.index(found_on) if found_on in weights else None}
            for name, (label, found_on) in rows.items()
        ],
        "cells": [[cells.get((harness, name)) for name in weights] for harness in rows],
    }
