"""The plan of a study, as `--dry_run` prints it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from whale_jax.study.design import RunSpec
from whale_jax.study.plan import Planned
from whale_jax.study.results import result_path


def plan_lines(planned: Sequence[Planned], chosen: Sequence[RunSpec], out: Path) -> list[str]:
    """One line per chosen run, in order, and what is left of them."""
    names = {spec.name for spec in chosen}
    mine = [one for one in planned if one.spec.name in names]
    lines = [f"{'run':<32}{'state':>8}{'rollouts':>10}{'evaluation':>12}{'minutes':>9}  configuration"]
    for one in mine:
        name = one.spec.name if one.spec.fork is None else f"{one.spec.name} @{one.spec.fork.entry}"
        lines.append(
            f"{name:<32}{_state(one, out):>8}{one.rollouts:>10,}{one.evaluations:>12,}{one.seconds / 60:>9.1f}"
            f"  {one.config.hash()[:12]}"
        )
    left = [one for one in mine if _state(one, out) != "done"]
    lines.append(
        f"{len(left)} of {len(mine)} runs are left: {sum(one.rollouts for one in left):,} training and search "
        f"rollouts, {sum(one.evaluations for one in left):,} episodes of evaluations, about "
        f"{sum(one.seconds for one in left) / 3600:.1f} hours"
    )
    lines.append("a branch (@) has its own rollouts alone; cycles, and with them evaluations and matrices, are guessed")
    return lines


def _state(one: Planned, out: Path) -> str:
    if result_path(out, one.spec.name).is_file():
        return "done"
    return "begun" if one.spec.place(out).exists() else "missing"
