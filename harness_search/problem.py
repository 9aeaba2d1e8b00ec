"""What a stand-alone search works on: an `evaluate` given as an import path, and what goes with it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness_search.audit import Answers
from harness_search.canonical import json_bytes, sha256
from harness_search.proposers.edits import Edit
from harness_search.scoring import Evaluate, ScoreTag
from harness_search.validate import ScriptedEpisode


class ProblemError(ValueError):
    """The import path does not lead to something that can be searched on; the message says why."""


@dataclass(frozen=True)
class Problem:
    """A task set with its evaluation.

    Attributes:
        evaluate: rolls harnesses out (`scoring.Evaluate`).
        task_ids: the tasks of D_harness.
        tag: hashes of what scores depend on, the harness apart.
        skill: the domain's guide for proposers.
        catalogue: edits of the offline proposers.
        scripted: the episode that a candidate has to pass before it is rolled out; None: it only has to load.
        task_texts: texts of the tasks' inputs, of which a candidate may hold no long stretch.
        answers: what a task's answer is compared with, for the audit (`audit`); None: no audit.
    """

    evaluate: Evaluate
    task_ids: Sequence[str]
    tag: ScoreTag
    skill: str = ""
    catalogue: Sequence[Edit] = ()
    scripted: ScriptedEpisode | None = None
    task_texts: Sequence[str] = ()
    answers: Callable[[str], Answers] | None = None


def load_problem(path: str, tasks: Path | None = None) -> Problem:
    """Imports "package.module:name": a `Problem`, a function that makes one, or a bare `evaluate`.

    Args:
        tasks: for a bare `evaluate`: a file with one task id per line.

    Raises:
        ProblemError: the path cannot be imported, or is none of these.
    """
    found = _imported(path)
    if isinstance(found, Problem):
        return found
    if not callable(found):
        raise ProblemError(f"--evaluate={path}: neither a Problem nor a function")
    if tasks is not None:
        return _bare(found, path, tasks)
    try:
        made = found()
    except TypeError as error:
        raise ProblemError(f"--evaluate={path}: a bare evaluate needs --tasks, a file of task ids ({error})") from None
    if not isinstance(made, Problem):
        raise ProblemError(f"--evaluate={path}: the function gives {type(made).__name__}, not a Problem")
    return made


def _imported(path: str) -> Any:
    module, _, name = path.partition(":")
    if not module or not name:
        raise ProblemError(f"--evaluate={path}: must be package.module:name")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ProblemError(f"--evaluate={path}: cannot be imported: {error}") from None


def _bare(evaluate: Any, path: str, tasks: Path) -> Problem:
    try:
        ids = [line.strip() for line in tasks.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ProblemError(f"--tasks={tasks}: cannot be read: {error}") from None
    if not ids or len(set(ids)) != len(ids):
        raise ProblemError(f"--tasks={tasks}: must hold task ids, one per line, none twice")
    digest = sha256(json_bytes(ids))
    return Problem(evaluate, ids, ScoreTag(model=path, task_set=digest, verifier=path, sampling=path))
