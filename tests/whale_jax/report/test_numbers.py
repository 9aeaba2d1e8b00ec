"""The numbers of a report: pictures, warnings, the comparison of runs."""

import json

import pytest

from tests.whale_jax.report.made_run import H0, SETTINGS, MadeRun, two_cycles
from whale_jax.evaluation.evaluate import Evaluation
from whale_jax.evaluation.matrix import Cells
from whale_jax.pair import Pair
from whale_jax.report.archives import read_archives
from whale_jax.report.branches import branches
from whale_jax.report.comparison import comparison, method
from whale_jax.report.figures import accuracy, behaviour, budgets, epoch_tasks, matrices
from whale_jax.report.glance import glance
from whale_jax.report.run_files import read_run
from whale_jax.schedule import Adaptive, WeightSignals


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run that no test changes."""
    return read_run(two_cycles(tmp_path_factory.mktemp("made") / "run").directory)


def levels(run):
    return {one["text"]: one["level"] for one in glance(run, read_archives(run))["warnings"]}


def test_accuracy_stands_where_the_pair_was_made(run):
    content = accuracy(run)
    points = [(one["label"], one["split"], one["rollouts"]) for one in content["points"]]
    assert points == [
        ("initial", "validation", 0), ("cycle 1, weights", "validation", 24), ("cycle 1, search", "validation", 42),
        ("cycle 2, search", "validation", 70), ("initial", "test", 0), ("cycle 2, search", "test", 70),
    ]  # fmt: skip
    assert [(one["kind"], one["cycle"], one["start"], one["end"]) for one in content["phases"]] == [
        ("weight", 0, 0, 24), ("search", 0, 24, 42), ("weight", 1, 42, 58), ("search", 1, 58, 70),
    ]  # fmt: skip
    assert [one["rollouts"] for one in content["training"]] == [8, 16, 24, 50, 58]


def test_behaviour_has_the_domains_figures_first_and_no_empty_ones(run):
    content = behaviour(run)
    assert list(content["meanings"]) == ["retrieved", "answered", "right_when_answered", "turns"]
    assert content["meanings"]["retrieved"] == "episodes with a good document the meaning"
    values = [one["value"] for one in content["points"] if one["name"] == "retrieved" and one["split"] == "validation"]
    assert values == pytest.approx([0.25, 0.28, 0.28, 0.30])


def test_budgets_show_the_signal_that_the_schedule_saw(run):
    content = budgets(run)
    assert (content["tasks"], content["window"]) == (40, 2)
    first = content["weights"][0]
    assert (first["steps"], first["epochs"], first["reason"]) == (3, 0.3, "no better smoothed reward within patience")
    rule = Adaptive(99, window=2, burn_in=2, patience=2, min_iterations=1, patience_iterations=1, max_iterations=9)
    rewards = [one["reward"] for one in first["signal"]]
    for place, one in enumerate(first["signal"]):
        signals = rule.after_step(WeightSignals(rewards[: place + 1], 0)).signals
        assert (one["smoothed"], one["best"]) == (signals["smoothed"], signals["best"])
    search = content["search"][0]
    assert (search["iterations"], search["reason"]) == (1, "no better archive score within patience")
    assert [one["best"] for one in search["signal"]] == [0.5, pytest.approx(4 / 6)]


def test_an_epoch_is_found_from_the_sampler_once_one_is_over(tmp_path):
    made = MadeRun(tmp_path / "run", settings={**SETTINGS, "weight_tasks": 0})
    made.weights(0, [0.5] * 3, first_step=1)
    assert epoch_tasks(read_run(made.directory)) is None
    content = budgets(read_run(made.directory))
    assert (content["window"], content["weights"][0]["epochs"]) == (None, None)
    entry = dict(made.journal.entries[0])
    sampler = {"epoch": 1, "position": 2, "deferred": [], "seed": 3, "tasks": "t"}
    kept = {name: value for name, value in entry.items() if name not in ("entry", "kind", "previous")}
    made.journal.append("weight", {**kept, "step": 6, "sampler": sampler})
    assert epoch_tasks(read_run(made.directory)) == 6 * 4 - 2


def test_the_matrix_is_labelled_by_what_made_its_arms(tmp_path):
    made = two_cycles(tmp_path / "run")
    archives = read_archives(read_run(made.directory))
    accepted = next(one for one in archives[0].candidates if one.id == "001").source
    data = json.loads((made.directory / "evals" / "000000.json").read_text())
    ledger = {"episodes": 8, "prompt_tokens": 0, "sampled_tokens": 0, "tool_tokens": 0, "turns": 0, "tool_calls": 0}
    ledger |= {"ends": {}, "unscored": 0, "rewarded": 0, "ended_by_itself": 0}
    behave = dict.fromkeys(("answered", "right_when_answered", "ended_by_itself", "cut", "used_tools", "turns"))
    behave |= {"tool_calls": None, "sampled_tokens": None, "ends": {}, "episodes": 8}
    better = {task: [1, 1] for task in data["rewards"]}
    cells = Cells(made.directory / "matrix", {"split": "validation", "samples": 2})
    for weights in ("w" * 64, "0" * 64):
        for source in (H0, accepted):
            rewards = better if weights[0] == "0" else data["rewards"]
            content = {"k": 2, "rewards": rewards, "ledger": ledger, "behaviour": behave}
            cells.write(Pair(3, weights, source), Evaluation.from_json(content))
    (matrix,) = matrices(read_run(made.directory), archives)
    assert (matrix["weights"], matrix["harnesses"]) == (["initial", "cycle 1"], ["initial", "cycle 1 = cycle 2"])
    assert (matrix["split"], matrix["k"], matrix["tasks"], len(matrix["cells"])) == ("validation", 2, 4, 4)
    cell = next(one for one in matrix["cells"] if (one["weights"], one["harness"]) == ("cycle 1", "initial"))
    assert (cell["mean"], cell["minus_initial"]["mean"]) == (1.0, 0.75)
    assert matrices(read_run(made.directory), [])[0]["harnesses"][0] == "initial"
    (made.directory / "matrix" / "odd.json").write_text("{}")
    assert len(matrices(read_run(made.directory), archives)) == 1


def test_the_glance_of_a_finished_run(run):
    content = glance(run, read_archives(run))
    assert (content["label"], content["finished"]) == ("cycle 2, search", True)
    assert content["pairs"]["validation"]["initial"]["mean"] == 0.25
    assert content["pairs"]["test"]["latest"]["mean"] == 0.875
    assert content["differences"]["validation"]["mean"] == 0.625
    total = content["account"]["total"]
    assert (total["rollouts"], total["seconds"], total["idle_seconds"]) == (118, 120.0, 24.0)
    assert (total["other_seconds"], content["other_share"]) == (12.0, 0.1)
    assert total["proposer"] == {"calls": 4, "input_tokens": 1800, "output_tokens": 200, "dollars": 0.5}


def test_the_glance_of_a_run_that_goes_on(tmp_path):
    made = MadeRun(tmp_path / "run")
    assert glance(read_run(made.directory), [])["pairs"]["validation"] == {"initial": None, "latest": None}
    made.evaluation("initial", "validation", [[0, 1], [0, 0]])
    made.evaluation("cycle 1, weights", "validation", [[1, 1], [0, 1]], step=2)
    content = glance(read_run(made.directory), [])
    assert (content["label"], content["finished"]) == ("cycle 1, weights", False)
    assert content["pairs"]["test"] == {"initial": None, "latest": None}
    assert content["differences"]["validation"]["mean"] == 0.5


def test_warnings_that_matter(tmp_path):
    settings = {**SETTINGS, "select_on": "test", "allow_overlap": True}
    made = two_cycles(tmp_path / "run", settings=settings)
    made.warn(
        "--sandbox=none: harness code ran with this user's rights", "test was scored … (evaluate --unseal)",
        "jax was 1, is 2",
    )  # fmt: skip
    audit = {"001": {"flagged": True, "share": 0.5, "incumbent_share": 0.0}}
    (made.directory / "cycle_000" / "search" / "audit.json").write_text(json.dumps(audit))
    made.metrics([{"kind": "weight", "mismatch_mean": 0.2}, {"kind": "weight", "mismatch_mean": "nan"}])
    found = levels(read_run(made.directory))
    assert found["--sandbox=none: harness code ran with this user's rights"] == "serious"
    assert found["test was scored … (evaluate --unseal)"] == "serious"
    assert found["jax was 1, is 2"] == "caution"
    assert found["the returned pair was picked on test: its test score is too high for that"] == "caution"
    assert found["cycle 1: flagged for the right answer in text that the harness wrote: 001"] == "serious"
    assert found["1 of 5 training steps accepted nothing and changed nothing"] == "caution"
    assert found["trainer and sampler disagree: log-probabilities differ by 0.2 nats on average in a step"] == "serious"
    assert found["trainer and sampler disagree: a step's mismatch is not finite"] == "serious"
    assert found["the gain on test is not more than noise: its 95 % interval holds zero"] == "caution"
    assert any("is likely to be" in text for text in found)
    order = [one["level"] for one in glance(read_run(made.directory), [])["warnings"]]
    assert order == sorted(order, key=["serious", "caution", "note"].index)


def test_missing_verdicts_and_scores_above_their_confirmation(tmp_path):
    made = MadeRun(tmp_path / "run", settings={**SETTINGS, "sandbox": "none"})
    made.evaluation("initial", "validation", [[0, 1], [0, 0]])
    made.search(0, {"000": [1, 0, 0, 0, 0, 0], "001": [1, 1, 1, 1, 1, 1]})
    trial = {"incumbent": "000", "challenger": "001", "accepted": True, "comparison": {"before": 0.2, "after": 0.5}}
    last = dict(made.journal.entries[-1])
    kept = {name: value for name, value in last.items() if name not in ("entry", "kind", "previous")}
    made.journal.append("search", {**kept, "iteration": 2, "missing": 3, "confirmation": trial, "session": "failed"})
    found = levels(read_run(made.directory))
    assert "cycle 1: the accepted candidate's search score is 50.0 points above its confirmation" in found
    assert "cycle 1: 1 of 2 proposer sessions failed" in found
    assert found["--sandbox=none: harness code ran with the user's rights"] == "serious"
    assert any(text.startswith("3 of ") and "have no verdict" in text for text in found)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"schedule": "fixed"}, "fixed (0.5, 1)"),
        ({"schedule": "weight_only", "proposer": "gemini"}, "weight-only"),
        ({"schedule": "harness_only"}, "harness-only"),
        ({"schedule": "stagewise", "search_space": "prompt_only"}, "stagewise, prompts only"),
        ({"proposer": "random_edit", "harness": "/a/b/strong.py"}, "adaptive, random_edit, from strong.py"),
    ],
)
def test_what_a_method_is_called(settings, name):
    assert method({**SETTINGS, **settings}) == name


def test_methods_and_schedules_over_seeds(tmp_path):
    runs = []
    for place, schedule in enumerate(("stagewise", "adaptive", "adaptive")):
        settings = {**SETTINGS, "schedule": schedule, "seed": place}
        runs.append(read_run(two_cycles(tmp_path / f"run{place}", settings=settings).directory))
    made = MadeRun(tmp_path / "going")
    made.evaluation("initial", "validation", [[0, 1], [0, 0]])
    runs.append(read_run(made.directory))
    content = comparison(runs)
    assert [one["finished"] for one in content["runs"]] == [True, True, True, False]
    assert content["runs"][3]["scores"]["test"] == {"initial": None, "returned": None}
    rows = {(one["method"], one["split"]): one for one in content["methods"]}
    assert rows["adaptive", "test"]["returned"] == {"mean": 0.875, "ci95": [0.875, 0.875], "seeds": 2}
    assert rows["stagewise", "validation"]["returned"]["ci95"] is None
    schedules = {one["method"]: one for one in content["schedules"]}
    assert (schedules["adaptive"]["epochs"], schedules["adaptive"]["iterations"]) == (0.25, 1)
    assert schedules["adaptive"]["reference"] == "stagewise"
    assert (schedules["adaptive"]["passed"], schedules["adaptive"]["passed_runs"]) == (1.0, 2)


def test_branches_are_paired_with_the_run_that_they_left(tmp_path):
    parent = two_cycles(tmp_path / "parent")
    near = two_cycles(tmp_path / "near", settings={**SETTINGS, "schedule": "stagewise", "run_dir": "x"})
    near.branch_of(parent.directory, 3)
    going = MadeRun(tmp_path / "going")
    going.evaluation("initial", "validation", [[0, 1], [0, 0], [0, 1], [0, 0]])
    going.branch_of(near.directory, 0)
    lost = MadeRun(tmp_path / "lost")
    lost.branch_of(tmp_path / "elsewhere", 9)
    made = (parent, near, going, lost)
    first, second, third = branches([read_run(one.directory) for one in made])
    assert (first["run"], first["parent"], first["from"], first["entry"], first["rollouts"]) == (1, 0, "parent", 3, 30)
    assert first["changed"] == {"schedule": ["adaptive", "stagewise"]}
    assert (first["minus_parent"]["test"]["mean"], first["minus_parent"]["test"]["tasks"]) == (0.0, 4)
    assert (second["parent"], second["rollouts"], second["minus_parent"]["validation"]["mean"]) == (1, 0, -0.625)
    assert "test" not in second["minus_parent"]
    assert (third["parent"], third["from"], third["rollouts"], third["minus_parent"]) == (None, "elsewhere", 0, {})
    assert branches([read_run(parent.directory)]) == []
