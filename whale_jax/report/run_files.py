"""A run as its directory tells it, for reports: read, never written, and readable while the run goes on.

The journal decides what happened. Whatever else is missing (an earlier version, a run that goes on, a file that was
lost) leaves a gap that the report names, so nothing here is needed but config.json. No JAX.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from whale_jax.evaluation.figures import evidence_path, figures_path
from whale_jax.journal import Journal, JournalError


class ReportError(Exception):
    """A report cannot be made of this; the message names the file and what to do."""


@dataclass(frozen=True)
class Moment:
    """A journal entry and the training and search rollouts spent before and after it."""

    entry: Mapping[str, Any]
    before: int
    after: int

    @property
    def kind(self) -> str:
        return self.entry["kind"]


@dataclass(frozen=True)
class RunFiles:
    """What a run directory holds.

    Attributes:
        directory: where it is.
        record: config.json: `settings`, `inputs`, `environment`.
        moments: the journal, in order.
        summary: summary.json; empty while there is none, or when it is about a shorter journal.
        metrics: the lines of metrics.jsonl; damaged ones are left out.
        warnings: what the run's jobs warned of.
    """

    directory: Path
    record: Mapping[str, Any]
    moments: Sequence[Moment]
    summary: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]]
    warnings: Sequence[str]

    @property
    def settings(self) -> Mapping[str, Any]:
        return self.record["settings"]

    @property
    def name(self) -> str:
        """The directory's own name."""
        return self.directory.resolve().name

    @property
    def finished(self) -> bool:
        return bool(self.summary)

    def of_kind(self, kind: str) -> Iterator[Moment]:
        """The journal's entries of a kind, in order."""
        return (moment for moment in self.moments if moment.kind == kind)

    @cached_property
    def evidence(self) -> Mapping[int, Mapping[str, Any]]:
        """Evidence of the evaluations by entry, the domain's figures as `domain_figures`; lost files are left out."""
        found = {}
        for moment in self.of_kind("evaluation"):
            number = moment.entry["entry"]
            path = evidence_path(self.directory, number)
            content = read_object(path)
            if {"rewards", "behaviour"} <= content.keys():
                found[number] = {**content, "domain_figures": read_object(figures_path(path))}
        return found


def read_run(directory: Path) -> RunFiles:
    """Reads a run directory.

    Raises:
        ReportError: it is no run directory, or its journal is damaged.
    """
    path = directory / "config.json"
    try:
        record = json.loads(path.read_bytes())
    except OSError as error:
        raise ReportError(f"{path}: cannot be read ({error.strerror}); name a run directory") from error
    except (ValueError, RecursionError) as error:
        raise ReportError(f"{path}: not JSON ({error}); the run directory is damaged") from error
    if not isinstance(record, dict) or not all(isinstance(record.get(part), dict) for part in ("settings", "inputs")):
        raise ReportError(f"{path}: is not the record of a run; name a run directory")
    folder = directory / "journal"
    try:
        journal = Journal(folder) if folder.is_dir() else None  # opening it would make the folder
    except JournalError as error:
        raise ReportError(str(error)) from error
    entries = journal.entries if journal else []
    summary = read_object(directory / "summary.json")
    if journal is None or summary.get("journal") != journal.hash:
        summary = {}
    warnings = directory / "warnings.txt"
    lines = warnings.read_text("utf-8", "replace").splitlines() if warnings.is_file() else []
    lines += [line for line in summary.get("warnings", ()) if line not in lines]
    return RunFiles(directory, record, _moments(entries), summary, _lines(directory / "metrics.jsonl"), lines)


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object from a file; empty when there is none that can be read."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _moments(entries: Sequence[Mapping[str, Any]]) -> list[Moment]:
    moments, spent = [], 0
    for entry in entries:
        own = 0 if entry["kind"] == "evaluation" else entry["rollouts"]
        moments.append(Moment(entry, spent, spent + own))
        spent += own
    return moments


def _lines(path: Path) -> list[dict[str, Any]]:
    found = []
    for text in path.read_text("utf-8", "replace").splitlines() if path.is_file() else ():
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):  # what a killed job left of it
            continue
        if isinstance(line, dict):
            found.append(line)
    return found
