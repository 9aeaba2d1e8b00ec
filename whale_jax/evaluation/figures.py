"""The domain's figures of an evaluation, kept beside its evidence: reports read them, and nothing is decided by them.

They are no part of the evidence that a journal rests on, so that runs made before there were figures stay as they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from whale_jax.journal import JournalError, write_once


def evidence_path(run_dir: Path, number: int) -> Path:
    """Where the evidence of the evaluation in journal entry `number` is kept."""
    return run_dir / "evals" / f"{number:06d}.json"


def figures_path(evidence: Path) -> Path:
    """Where the figures of an evaluation are kept: `evals/000003.behaviour.json` beside `evals/000003.json`."""
    return evidence.with_suffix(".behaviour.json")


def write_figures(path: Path, figures: Mapping[str, float]) -> None:
    """Writes figures, whole or not at all, in place of what a killed job left there."""
    path.unlink(missing_ok=True)
    write_once(path, json.dumps(dict(figures), sort_keys=True).encode())


def read_figures(path: Path) -> dict[str, float]:
    """The figures in a file; none when the evaluation was made before they were kept.

    Raises:
        JournalError: the file is damaged.
    """
    try:
        return {str(name): float(value) for name, value in json.loads(path.read_bytes()).items()}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, AttributeError) as error:
        raise JournalError(f"{path} is damaged ({error}); remove it: only reports read it") from error
