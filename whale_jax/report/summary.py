"""summary.json, the final table and the picture."""

import difflib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from whale_jax.alternate import Returned
from whale_jax.evaluation.evaluate import Evaluation
from whale_jax.report import picture
from whale_jax.report.account import Account, Spent, account
from whale_jax.run import Milestone, Run


def summary(run: Run, result: Returned, *, warnings: Sequence[str]) -> dict[str, Any]:
    """The content of summary.json.

    Keys: `initial` and `returned`, each with `validation` and `test` holding `mean_at_k`, `k`, `tasks`, `ci95` and
    `behaviour` (the domain's own figures by name; what they mean stands in `figures`); `paired_difference` on test
    (returned minus initial, same tasks and sampling keys) with `mean` and `ci95`; `cycles`, `rollouts` (training and
    search), `seconds` (this process), `other_share` (of the wall time of all jobs, neither episodes nor training
    steps: see `account.Account`), `seed`, `schedule`, `protocol`, `milestones`, `searches` (per cycle: search and
    confirmation scores, flags, and the proposer's account), `account` (what was spent, per phase and in total, over all
    jobs: see `account.Account`), and `warnings`.
    """
    difference = result.returned_test.minus(result.initial_test)
    spent = account(run.journal.entries, run.dir / "metrics.jsonl")
    return {
        "initial": _pair(result.initial, result.initial_test),
        "returned": _pair(result.returned, result.returned_test),
        "paired_difference": {"mean": difference.mean, "ci95": list(difference.ci95)},
        "cycles": result.cycles,
        "rollouts": run.rollouts,
        "seconds": round(run.progress.seconds, 1),
        "other_share": spent.other_share(run.meter.since_lap),
        "seed": run.config.run.seed,
        "schedule": run.config.schedule.schedule,
        "search_space": run.config.search.search_space,
        "proposer": run.config.search.proposer,
        "protocol": protocol_rows(run),
        "milestones": [
            {
                "label": milestone.label,
                "rollouts": milestone.rollouts,
                "step": milestone.pair.step,
                "weights": milestone.pair.weights,
                "harness": milestone.pair.harness_hash,
                "validation": _figures(milestone.validation),
            }
            for milestone in run.milestones
        ],
        "figures": dict(run.domain.figures),
        "searches": run.searches,
        "account": spent.to_json(),
        "journal": run.journal.hash,
        "warnings": list(warnings),
    }


def protocol_rows(run: Run) -> dict[str, Any]:
    """The settings in which the honest and the paper's protocol differ (DESIGN section 12)."""
    config = run.config
    return {
        "select_on": config.evaluation.select_on,
        "test_schedule": config.evaluation.test_schedule,
        "allow_overlap": config.data.allow_overlap,
        "accept": config.training.accept,
        "unclosed_thinking": config.rollout.unclosed_thinking,
        "final_search": config.schedule.final_search,
    }


def _pair(milestone: Milestone, test: Evaluation) -> dict[str, Any]:
    return {
        "label": milestone.label,
        "step": milestone.pair.step,
        "weights": milestone.pair.weights,
        "harness": milestone.pair.harness_hash,
        "validation": _figures(milestone.validation),
        "test": _figures(test),
    }


def _figures(evaluation: Evaluation) -> dict[str, Any]:
    return {
        "mean_at_k": evaluation.mean,
        "k": evaluation.k,
        "tasks": evaluation.tasks,
        "ci95": list(evaluation.ci95),
        "behaviour": dict(evaluation.domain_figures),
    }


def write(path: Path, content: dict[str, Any]) -> None:
    """Writes summary.json, replacing the one of an earlier job of the same run.

    A job that found the run finished did none of its work: the time of the one that finished it stays.
    """
    earlier = _read(path)
    if earlier.get("journal") == content["journal"] and "seconds" in earlier:
        content = content | {name: earlier[name] for name in ("seconds", "other_share") if name in earlier}
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
    temporary.replace(path)


def _read(path: Path) -> dict[str, Any]:
    """An earlier summary; empty if there is none that can be read."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def print_table(run: Run, result: Returned, console: Console) -> None:
    """The milestones in order, the returned one marked."""
    table = Table(title=None, box=None, pad_edge=False, header_style="bold")
    for column, justify in (
        ("", "left"),
        (f"validation mean@{run.config.evaluation.validation_samples}, %", "right"),
        (f"test mean@{run.config.evaluation.test_samples}, %", "right"),
        ("rollouts", "right"),
        ("minutes", "right"),
    ):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    for milestone in run.milestones:
        mark = " *" if milestone.label == result.returned.label else ""
        table.add_row(
            milestone.label + mark,
            _cell(milestone.validation),
            _cell(milestone.test) if milestone.test else "",
            f"{milestone.rollouts:,}",
            f"{milestone.seconds / 60:.1f}",
        )
    console.print(table)
    console.print("* returned pair; intervals are 95 %", style="dim")
    _print_behaviour(run.domain.figures, result, console)
    print_account(account(run.journal.entries, run.dir / "metrics.jsonl"), console)


def _print_behaviour(figures: Mapping[str, str], result: Returned, console: Console) -> None:
    """The domain's figures on test, before and after; nothing when there are none."""
    initial, returned = (test.domain_figures for test in (result.initial_test, result.returned_test))
    if not initial and not returned:
        return
    table = Table(title=None, box=None, pad_edge=False, header_style="bold")
    table.add_column("behaviour on test", no_wrap=True)
    for column in ("initial", "returned"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("")
    for name, meaning in figures.items():
        values = [f"{pair[name]:.3f}" if name in pair else "" for pair in (initial, returned)]
        if any(values):
            table.add_row(name, *values, f"[dim]{escape(meaning)}[/]")
    console.print()
    console.print(table)


def print_account(spent: Account, console: Console) -> None:
    """What was spent, phase by phase."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for name in ("", "rollouts", "sampled", "computed", "FLOP", "proposer", "$", "min", "idle"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for name, phase in spent.phases.items():
        table.add_row(name.removeprefix("evaluation, "), *_spent_cells(phase))
    table.add_row("total", *_spent_cells(spent.total), style="bold")
    console.print(table)
    console.print("sampled, computed, proposer: tokens; idle: neither engine nor training ran", style="dim")
    share = spent.other_share()
    if share is not None:
        console.print(f"{100 * share:.1f} % of the time was neither episodes nor training steps", style="dim")
    for note in spent.notes:
        console.print(note, style="dim")


def _spent_cells(spent: Spent) -> tuple[str, ...]:
    idle = None if spent.idle_seconds is None or not spent.seconds else spent.idle_seconds / spent.seconds
    dollars = spent.proposer.get("dollars", 0.0)
    return (
        f"{spent.rollouts:,}",
        _short(spent.sampled_tokens),
        _short(spent.computed_tokens),
        "?" if spent.flops is None else f"{spent.flops:.2g}",
        _short(spent.proposer_tokens),
        "?" if dollars is None else f"{dollars:.2f}",
        "?" if spent.seconds is None else f"{spent.seconds / 60:.1f}",
        "?" if idle is None else f"{100 * idle:.0f} %",
    )


def _short(count: float | None) -> str:
    """A count in at most six characters; a question mark where it is not known."""
    if count is None:
        return "?"
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if count >= size:
            return f"{count / (1e3 if unit == 'k' else size):.1f}{unit}"
    return f"{count:,.0f}"


def _cell(evaluation: Evaluation) -> str:
    low, high = evaluation.ci95
    return f"{100 * evaluation.mean:.1f} ({100 * low:.1f} to {100 * high:.1f})"


def draw_picture(run: Run, path: Path) -> None:
    """accuracy.png: validation against rollouts, phases marked."""
    points = [
        picture.Point(milestone.rollouts, milestone.validation.mean, *milestone.validation.ci95)
        for milestone in run.milestones
    ]
    title = f"{run.config.run.domain}, schedule {run.config.schedule.schedule}, seed {run.config.run.seed}"
    picture.draw(path, title=title, validation=points, training=run.training_curve, phases=run.phases)


def harness_diff(run: Run, returned: Milestone) -> str:
    """The returned harness as a unified diff against the initial one; empty when they are the same."""
    return "".join(
        difflib.unified_diff(
            run.initial_pair.harness.splitlines(keepends=True),
            returned.pair.harness.splitlines(keepends=True),
            "initial harness",
            "returned harness",
        )
    )
