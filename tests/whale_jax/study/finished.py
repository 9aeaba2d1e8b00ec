"""A finished run as the study's jobs leave one, made up; its settings and inputs are what the manifest froze."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.whale_jax.report.made_run import two_cycles
from whale_jax.journal import canonical


def finished_run(directory: Path, frozen: Mapping[str, Any], **inputs: str) -> None:
    """A run of two cycles.

    Args:
        frozen: its line of the manifest.
        inputs: hashes beside those that such a run has.
    """
    two_cycles(directory)
    path = directory / "config.json"
    record = json.loads(path.read_bytes())
    record["settings"] |= {"max_rollouts": frozen["max_rollouts"]}
    record |= {"hash": frozen["config"], "inputs": record["inputs"] | inputs}
    record["inputs"]["harness"] = frozen["harness"]
    path.write_text(json.dumps(record))


def cell(
    directory: Path, weights: str, harness: str, rewards: Mapping[str, list[int]], split: str = "validation"
) -> None:
    """One cell of `evaluate --matrix`."""
    folder = directory / "matrix"
    folder.mkdir(exist_ok=True)
    evaluation = {"rewards": rewards, "k": 2}
    content = {"weights": weights, "harness": harness, "conditions": {"split": split}, "evaluation": evaluation}
    (folder / f"{weights[:4]}-{harness[:4]}-{split}.json").write_bytes(canonical(content))
