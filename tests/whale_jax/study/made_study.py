"""A study's directory, made up: a manifest and result files with rewards of our choice."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from whale_jax.study.extract import FORMAT
from whale_jax.study.freeze import FORMAT as MANIFEST_FORMAT
from whale_jax.study.results import result_path, write_result
from whale_jax.study.scores import Scores

INPUTS = {"data": "d" * 64, "weights": "w" * 64, "tokenizer": "t" * 64, "template": "c" * 64}


def scores(rights: Sequence[int], k: int = 2, split: str = "test") -> dict[str, Any]:
    """Scores with so many right samples of k per task."""
    rewards = {f"{split}-{n:03d}": [1] * right + [0] * (k - right) for n, right in enumerate(rights)}
    return Scores.of(rewards, k).to_json()


def manifest(out: Path, runs: Mapping[str, str | None]) -> None:
    """Writes the manifest of a study.

    Args:
        runs: name → the run that it branches from, with its entry, or None.
    """
    domains = {name.split("/")[0]: {**INPUTS, "h0.py": "0" * 64} for name in runs}
    listed = {
        name: {
            "config": f"{name:x>64}"[-64:], "harness": "h" * 64, "max_rollouts": 1000, "branch": branch,
            "matrix": False,
        }
        for name, branch in runs.items()
    }  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    content = {"format": MANIFEST_FORMAT, "name": "made", "domains": domains, "runs": listed}
    (out / "manifest.json").write_text(json.dumps(content))


def result(
    out: Path,
    name: str,
    *,
    initial: Sequence[int] = (0, 0, 0, 0),
    returned: Sequence[int] = (1, 1, 1, 1),
    curve: Sequence[tuple[str, int, Sequence[int]]] = (("initial", 0, (0, 0)), ("cycle 1, weights", 900, (1, 1))),
    best: str | None = None,
    **changes: Any,
) -> None:
    """Writes a result; validation's tasks are two, test's are as many as `initial` has.

    Args:
        curve: (label, rollouts, right samples per task).
        best: label of the returned pair; default: the last of the curve.
        changes: other fields of the file.
    """
    domain, method, seed = name.split("/")
    frozen = json.loads((out / "manifest.json").read_bytes())["runs"][name]
    content = {
        "format": FORMAT,
        "domain": domain,
        "method": method,
        "seed": int(seed),
        "config": frozen["config"],
        "inputs": {**INPUTS, "harness": "h" * 64},
        "environment": {"cpus": "a chip", "devices": "2 x cpu", "jax": "0.0"},
        "commit": "c0ffee",
        "code": "c0de",
        "branch": None,
        "journal": "j" * 64,
        "budget": 1000,
        "rollouts": curve[-1][1],
        "episodes": 1200,
        "sampled_tokens": 5,
        "flops": 1.0,
        "seconds": 60.0,
        "jobs": 1,
        "curve": [
            {"label": label, "rollouts": rollouts, "step": 0, **scores(rights, split="validation")}
            for label, rollouts, rights in curve
        ],
        "returned": best or curve[-1][0],
        "test": {"initial": scores(initial), "returned": scores(returned)},
        "phases": [{"kind": "weight", "cycle": 0, "rollouts": 900, "steps": 9, "epochs": 0.5, "reason": "over"}],
        "searches": [],
        "matrix": None,
        "warnings": [],
        **changes,
    }
    write_result(out, name, content)
    assert result_path(out, name).is_file()


def search(
    cycle: int, incoming: float, best: float, *, luck: float = 0.01, edits: Sequence[str] = ()
) -> dict[str, Any]:
    """A search phase of a result."""
    return {
        "cycle": cycle, "incoming": incoming, "best": best, "expected_luck": luck, "changed": best > incoming,
        "harness": "a" * 64, "edits": list(edits), "iterations": 3, "scored": 8, "invalid": 1, "flagged": False,
    }  # fmt: skip
