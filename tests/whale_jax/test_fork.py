"""A branch starts where another run was, shares what led there, and does the rest with its own settings."""

import asyncio
import json
import shutil

import pytest

import whale_jax.hand_over
from tests.whale_jax.small_world import INPUTS, export, outcome, settings, small_run, whole
from whale_jax.compare import compare, main, read_run
from whale_jax.config import ConfigError
from whale_jax.fork import complete_fork, fork_point
from whale_jax.journal import Journal, JournalError
from whale_jax.rundir import check_same_fork, open_config


@pytest.fixture(autouse=True)
def small_export(monkeypatch):
    monkeypatch.setattr(whale_jax.hand_over, "export_checkpoint", export)


def finish(directory, config):
    """Runs to the end in a directory whose config.json is there."""
    with small_run(directory, config) as run:
        asyncio.run(whole(run))
    return directory


@pytest.fixture(scope="module")
def parent(tmp_path_factory):
    """A finished run of two cycles, every checkpoint kept."""
    directory = tmp_path_factory.mktemp("parent") / "run"
    directory.mkdir()
    open_config(directory, settings(), INPUTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whale_jax.hand_over, "export_checkpoint", export)
        return finish(directory, settings())


def branch(parent, directory, entry, **changes):
    """A branch of `parent` after a journal entry, run to its end."""
    config = settings(**changes)
    point = fork_point(f"{parent}@{entry}", config, INPUTS)
    directory.mkdir(exist_ok=True)
    open_config(directory, config, INPUTS, point.record())
    complete_fork(directory)
    return finish(directory, config)


def kinds(directory):
    return [entry["kind"] for entry in Journal(directory / "journal").entries]


def last_before_test(parent):
    return next(
        entry["entry"] for entry in Journal(parent / "journal").entries if entry.get("split") == "test"
    ) - 1  # fmt: skip


def test_a_branch_without_a_change_makes_the_parents_remaining_entries(parent, tmp_path):
    """From every entry: in the middle of phases, between them, before the first and after the last."""
    before = outcome(parent)
    for entry in range(last_before_test(parent) + 1):
        child = branch(parent, tmp_path / str(entry), entry)
        assert outcome(child) == before, entry
    assert outcome(parent) == before


def test_the_prefix_is_shared_by_reference_and_its_account_is_carried_over(parent, tmp_path):
    child = branch(parent, tmp_path / "child", 5)
    for name in ("journal/000005.json", "checkpoints/3", "evals/000000.json", "cycle_000/search/candidates/000"):
        assert (child / name).is_symlink(), name
        assert (child / name).resolve() == (parent / name).resolve()
    assert not (child / "journal/000006.json").is_symlink()
    lines = [json.loads(line) for line in (child / "metrics.jsonl").read_text().splitlines()]
    accounts = [line["entry"] for line in lines if line["kind"] == "account"]
    assert accounts == list(range(len(kinds(parent))))
    assert read_run(child).spent.total.measured == len(kinds(child))


def test_other_schedules_proposers_and_budgets_go_on_from_there(parent, tmp_path):
    own = kinds(parent)
    weights = branch(parent, tmp_path / "weights", 3, schedule="weight_only")
    assert kinds(weights)[:4] == own[:4]
    assert "search" not in kinds(weights)
    stage = branch(parent, tmp_path / "stage", 6, schedule="stagewise", search_budget_iterations=2)
    assert kinds(stage)[:7] == own[:7]
    assert [kind for kind in kinds(stage)[7:] if kind != "evaluation"] == ["weight", "weight", *["search"] * 3]
    search = branch(parent, tmp_path / "search", 6, schedule="harness_only", search_budget_iterations=1)
    assert [kind for kind in kinds(search)[7:] if kind != "evaluation"] == ["search"] * 2
    assert {entry["cycle"] for entry in Journal(search / "journal").entries[7:] if entry["kind"] == "search"} == {1}
    longer = branch(parent, tmp_path / "longer", 4, search_phase_iterations=2, candidates=1)
    assert kinds(longer)[4:7] == ["search"] * 3
    poorer = branch(parent, tmp_path / "poorer", 3, max_rollouts=12)
    assert kinds(poorer)[4:] == ["evaluation"] * (len(kinds(poorer)) - 4)


def test_a_branch_that_is_cut_goes_on(parent, tmp_path, monkeypatch):
    expected = outcome(branch(parent, tmp_path / "whole", 2, schedule="weight_only"))
    config = settings(schedule="weight_only")
    directory = tmp_path / "cut"
    directory.mkdir()
    open_config(directory, config, INPUTS, fork_point(f"{parent}@2", config, INPUTS).record())
    (directory / "journal").mkdir()
    (directory / "journal/000000.json").symlink_to(parent / "journal/000000.json")  # cut while links were made
    with pytest.raises(JournalError, match="1 of the 3 entries that it branches from"), small_run(directory, config):
        pass
    complete_fork(directory)
    with monkeypatch.context() as patch:
        patch.setattr("whale_jax.policy.Policy.begin_save", lambda *args, **kwargs: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            finish(directory, config)
    complete_fork(directory)
    assert outcome(finish(directory, config)) == expected
    check_same_fork(directory, f"{parent}@2")
    with pytest.raises(ConfigError, match="branches from"):
        check_same_fork(directory, f"{parent}@3")
    with pytest.raises(ConfigError, match="is no branch"):
        check_same_fork(parent, f"{parent}@3")


@pytest.mark.parametrize(
    ("spec", "changes", "message"),
    [
        ("{parent}", {}, "must be <run_dir>@<entry>"),
        ("{parent}@-1", {}, "must be <run_dir>@<entry>"),
        ("/nowhere@1", {}, "must name a run directory"),
        ("{parent}@99", {}, "the run has the entries 0 to"),
        ("{parent}@{test}", {}, "test is opened by entry"),
        ("{parent}@2", {"seed": 1}, "--seed was 0, is 1"),
        ("{parent}@2", {"validation_samples": 3, "top_k": 5}, "--top_k was 20, is 5"),
        ("{parent}@2", {"optimizer": "lion"}, "--optimizer was adamw, is lion"),
    ],
)
def test_what_no_branch_can_start_from(parent, spec, changes, message):
    spec = spec.format(parent=parent, test=last_before_test(parent) + 1)
    with pytest.raises(ConfigError, match=message):
        fork_point(spec, settings(**changes), INPUTS)


def test_a_commit_whose_checkpoint_is_gone_is_refused_and_those_that_are_there_are_named(parent, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(parent, copy)
    shutil.rmtree(copy / "checkpoints" / "2")
    with pytest.raises(ConfigError, match=r"step 2, whose checkpoint is not kept. Kept are step 3 \(entry 2\), step 4"):
        fork_point(f"{copy}@1", settings(), INPUTS)
    fork_point(f"{copy}@2", settings(), INPUTS)


def test_runs_and_branches_side_by_side(parent, tmp_path, capsys):
    other = branch(parent, tmp_path / "other", 3, schedule="weight_only")
    compared = compare([read_run(parent), read_run(other)])
    ours, theirs = compared["runs"]
    assert (ours["minus_first"], theirs["fork"]["entry"], theirs["differs"]) == (None, 3, {"schedule": "weight_only"})
    assert theirs["curve"][:2] == ours["curve"][:2]
    assert [point["rollouts"] for point in ours["curve"]] == [0, 12, 12 + 3 * own_candidates(parent, 0), *[
        point["rollouts"] for point in ours["curve"][3:]]]  # fmt: skip
    summed = sum(entry.get("rollouts", 0) for entry in Journal(parent / "journal").entries)
    assert ours["curve"][-1]["rollouts"] == summed
    difference = theirs["minus_first"]
    assert (difference["same_tasks"], difference["common_random_numbers"]) == (True, True)
    expected = read_run(other).best.evaluation.minus(read_run(parent).best.evaluation).to_json()
    assert difference["selecting"] == expected
    assert difference["test"]["tasks"] == 3
    assert ours["spent"]["sampled_tokens"] > 0
    assert main(["compare", str(parent), str(other), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][1]["minus_first"] == difference
    assert main(["compare", str(parent), str(other)]) == 0
    printed = capsys.readouterr().out
    assert f"a branch of {parent}@3" in printed
    assert "--schedule=weight_only" in printed


def own_candidates(parent, cycle):
    return sum(
        slot["state"] == "scored"
        for entry in Journal(parent / "journal").entries
        if entry["kind"] == "search" and entry["cycle"] == cycle
        for slot in entry["slots"]
    )


def test_what_cannot_be_compared_is_refused_and_other_tasks_are_not_paired(parent, tmp_path, capsys):
    assert main(["compare", str(tmp_path)]) == 2
    assert "must name a run directory" in capsys.readouterr().err
    copy = tmp_path / "copy"
    shutil.copytree(parent, copy)
    record = json.loads((copy / "config.json").read_text())
    record["inputs"]["data"] = "other"
    (copy / "config.json").write_text(json.dumps(record))
    difference = compare([read_run(parent), read_run(copy)])["runs"][1]["minus_first"]
    assert difference == {"selecting": None, "test": None, "same_tasks": False, "common_random_numbers": False}
    evidence = copy / "evals" / "000000.json"
    evidence.write_bytes(evidence.read_bytes() + b" ")
    assert main(["compare", str(parent), str(copy)]) == 2
    assert "000000.json was changed after it was written" in capsys.readouterr().err
