"""What an evaluation's journal entry rests on: `evals/<entry>.json`, whose hash the entry holds."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from whale_jax.evaluation.evaluate import Evaluation
from whale_jax.evaluation.figures import evidence_path, figures_path, read_figures, write_figures
from whale_jax.journal import JournalError, write_once


def write_evidence(run_dir: Path, number: int, evaluation: Evaluation) -> str:
    """Writes the evidence of journal entry `number`, and the domain's figures beside it; returns its SHA-256."""
    data = json.dumps(evaluation.to_json(), sort_keys=True).encode()
    path = evidence_path(run_dir, number)
    path.parent.mkdir(exist_ok=True)
    # A file without its entry is what a kill between the two left; the evaluation was repeated to the same bits.
    path.unlink(missing_ok=True)
    write_figures(figures_path(path), evaluation.domain_figures)
    write_once(path, data)
    return hashlib.sha256(data).hexdigest()


def read_evidence(run_dir: Path, entry: Mapping[str, Any]) -> Evaluation:
    """The evaluation of a journal entry.

    Raises:
        JournalError: its file is missing or was changed.
    """
    path = evidence_path(run_dir, entry["entry"])
    if not path.is_file():
        raise JournalError(f"{path} is missing, and the journal rests on it; restore it from a copy")
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != entry["evidence"]:
        raise JournalError(f"{path} was changed after it was written (its hash differs); restore it from a copy")
    return Evaluation.from_json(json.loads(data), read_figures(figures_path(path)))
