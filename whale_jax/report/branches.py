"""Branches among the runs of a page: where each left its parent, what was changed there, and what came of it.

A branch (`--fork_from=<run_dir>@<entry>`) names its parent and the last journal entry that both share in the `fork` of
its config.json. From there on both sample with the same keys, so their evaluations are paired.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from whale_jax.evaluation.mean_at_k import paired_difference
from whale_jax.report.glance import latest
from whale_jax.report.run_files import RunFiles

_PLACES = ("run_dir", "fork_from")
"""Settings that differ between any two runs and mean nothing."""


def branches(runs: Sequence[RunFiles]) -> list[dict[str, Any]]:
    """One item per run that is a branch, parents before their branches as far as these are named in that order.

    Keys: `run` and `parent` (numbers of runs; None where the parent is not in the page), `from` (its name), `entry` and
    `rollouts` (of the last commit that both share), `changed` (setting → [was, is]), and `minus_parent` by split: the
    branch's returned or best pair minus its parent's, over the same tasks.
    """
    found = []
    for number, run in enumerate(runs):
        fork = run.record.get("fork")
        if not isinstance(fork, dict):
            continue
        place = next((at for at, other in enumerate(runs) if _is(other, fork["run_dir"])), None)
        parent = None if place is None else runs[place]
        shared = run.moments[min(fork["entry"], len(run.moments) - 1)].after if run.moments else 0
        found.append(
            {
                "run": number,
                "parent": place,
                "from": Path(fork["run_dir"]).name,
                "entry": fork["entry"],
                "rollouts": shared,
                "changed": {} if parent is None else _changed(parent, run),
                "minus_parent": {} if parent is None else _differences(parent, run),
            }
        )
    return found


def _is(run: RunFiles, directory: str) -> bool:
    return run.directory.resolve() == Path(directory).resolve()


def _changed(parent: RunFiles, branch: RunFiles) -> dict[str, list[Any]]:
    before = parent.settings
    return {
        name: [before.get(name), value]
        for name, value in branch.settings.items()
        if name not in _PLACES and before.get(name) != value
    }


def _differences(parent: RunFiles, branch: RunFiles) -> dict[str, Any]:
    theirs, ours = latest(parent), latest(branch)
    return {
        split: paired_difference(theirs[split]["evidence"]["rewards"], ours[split]["evidence"]["rewards"]).to_json()
        for split in ("validation", "test")
        if split in theirs and split in ours
    }
