"""The domain's figures in summary.json and below the final table."""

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rich.console import Console

from whale_jax.alternate import Returned
from whale_jax.config import RunConfig
from whale_jax.evaluation.evaluate import Evaluation
from whale_jax.evaluation.evaluate import evaluation_from_traces as evaluation
from whale_jax.pair import Pair
from whale_jax.report import summary as report
from whale_jax.run import Milestone

FIGURES = {"hit": "episodes with a [good] document", "missed": "never measured"}


def result(before: dict[str, float], after: dict[str, float]) -> tuple[Any, Returned]:
    def measured(figures: dict[str, float]) -> Evaluation:
        return evaluation([], k=1, domain_figures=figures)

    pair = Pair(0, "weights", "source")
    initial = Milestone("initial", pair, 0, 0.0, measured({"hit": 0.125}), None, 0.0)
    returned = Milestone("cycle 1, weights", pair, 8, 60.0, measured({"hit": 0.25}), None, 0.0)
    run = SimpleNamespace(
        config=RunConfig(),
        domain=SimpleNamespace(figures=FIGURES),
        journal=SimpleNamespace(hash="h", entries=[]),
        dir=Path("not there"),
        milestones=[initial, returned],
        progress=SimpleNamespace(seconds=1.0),
        meter=SimpleNamespace(since_lap=2.0),
        rollouts=8,
        searches=[],
    )
    return run, Returned(initial, returned, measured(before), measured(after), 1)


def table(run: Any, returned: Returned) -> str:
    stream = io.StringIO()
    report.print_table(run, returned, Console(file=stream, width=120))
    return stream.getvalue()


def test_every_evaluation_has_its_figures_beside_its_score():
    content = report.summary(*result({"hit": 0.5}, {"hit": 0.75}), warnings=[])
    assert content["figures"] == FIGURES
    assert content["initial"]["test"]["behaviour"] == {"hit": 0.5}
    assert content["returned"]["test"]["behaviour"] == {"hit": 0.75}
    assert content["returned"]["validation"]["behaviour"] == {"hit": 0.25}
    assert [one["validation"]["behaviour"] for one in content["milestones"]] == [{"hit": 0.125}, {"hit": 0.25}]
    assert json.loads(json.dumps(content["figures"])) == FIGURES


def test_the_table_shows_them_before_and_after_with_their_meaning():
    lines = table(*result({"hit": 0.5}, {"hit": 0.75})).splitlines()
    (row,) = [line for line in lines if line.startswith("hit")]
    assert row.split(maxsplit=3) == ["hit", "0.500", "0.750", "episodes with a [good] document"]
    assert not any(line.startswith("missed") for line in lines)
    (row,) = [line for line in table(*result({}, {"hit": 0.75})).splitlines() if line.startswith("hit")]
    assert row.split()[1] == "0.750"


def test_without_figures_there_is_no_table_of_them():
    assert "behaviour" not in table(*result({}, {}))


def test_the_share_of_other_things_covers_the_end_of_the_run_and_stays(tmp_path):
    """Of 10 s at the start, 90 s to the last commit (50 and 34 of them episodes and training) and 2 s of export."""
    line = {
        "kind": "account", "entry": 0, "seconds": 90.0, "busy_seconds": 80.0, "computed_tokens": 1, "trained_tokens": 1,
        "flops": 1.0, "start_seconds": 10.0, "rollout_seconds": 50.0, "train_seconds": 34.0,
    }  # fmt: skip
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    run, returned = result({}, {})
    run.dir = tmp_path
    run.journal.entries = [
        {"entry": 0, "kind": "evaluation", "split": "validation", "episodes": 8, "sampled_tokens": 80}
    ]
    content = report.summary(run, returned, warnings=[])
    assert content["other_share"] == (10 + 6 + 2) / 102
    report.write(tmp_path / "summary.json", content)
    report.write(tmp_path / "summary.json", content | {"seconds": 0.1, "other_share": 0.9})  # the job found it finished
    assert json.loads((tmp_path / "summary.json").read_text())["other_share"] == content["other_share"]
