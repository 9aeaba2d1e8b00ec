"""Every shipped configuration is checked as the main job would, and the plan says what it takes."""

import dataclasses
from collections import Counter
from pathlib import Path

import pytest

from tests.whale_jax.study.conftest import ROOT
from whale_jax.domains.task import Split
from whale_jax.study.design import Fork, Study, StudyError, read_study
from whale_jax.study.freeze import manifest
from whale_jax.study.plan import plan_study
from whale_jax.study.shown import plan_lines


def test_the_shipped_study_has_what_it_promises(planned):
    seeds = Counter((one.spec.domain, one.spec.method) for one in planned)
    searchqa = {"adaptive", "fixed", "weight_only", "harness_only", "prompt_only", "stagewise", "random_edit", "strong"}
    few = {"adaptive", "weight_only", "harness_only", "prompt_only"}
    assert {method for domain, method in seeds if domain == "searchqa"} == searchqa | {"switch_09", "switch_24"}
    assert all(count == 5 for (domain, _), count in seeds.items() if domain == "searchqa")
    for domain in ("math", "chess"):
        assert {method for name, method in seeds if name == domain} == few
        assert all(count == 3 for (name, _), count in seeds.items() if name == domain)
    assert sum(one.seconds for one in planned) <= 5 * 3600
    assert {(one.spec.domain, one.config.run.max_rollouts) for one in planned} == {
        ("searchqa", 6016), ("math", 4096), ("chess", 4096),
    }  # fmt: skip


def test_methods_differ_from_each_other_in_nothing_but_what_they_are_about(planned):
    def of(method):
        return next(one.config for one in planned if one.spec.name == f"searchqa/{method}/11")

    adaptive = of("adaptive")
    assert dataclasses.replace(of("prompt_only"), search=adaptive.search, run=adaptive.run) == adaptive
    assert of("prompt_only").search == dataclasses.replace(adaptive.search, search_space="prompt_only")
    assert of("random_edit").search == dataclasses.replace(adaptive.search, proposer="random_edit")
    strong = of("strong")
    assert strong.model.harness == "whale_jax/domains/searchqa/strong.py"
    assert strong.hash() == adaptive.hash()
    for method in ("weight_only", "harness_only", "stagewise", "fixed"):
        same = dataclasses.replace(of(method), schedule=adaptive.schedule, run=adaptive.run)
        assert same == adaptive, method
        assert of(method).schedule.schedule == method
    assert all(one.config.training.keep_every == 1 for one in planned)


def test_branches_leave_before_they_switch(planned):
    """The commit that a branch starts from lies before the step at which its own schedule ends the weight phase."""
    for name, shared, switch in (("switch_09", 8, 9), ("switch_24", 20, 24)):
        one = next(one for one in planned if one.spec.name == f"searchqa/{name}/12")
        assert one.spec.fork is not None
        assert one.spec.fork.entry * one.config.training.checkpoint_every == shared
        assert one.config.schedule.weight_budget_epochs * 384 / 24 == switch
        assert one.rollouts == 6016 - shared * 192


def test_the_plan_in_lines(planned, shipped, tmp_path):
    lines = plan_lines(planned, shipped.chosen(["searchqa/switch_24", "math/adaptive/12"]), tmp_path)
    assert len(lines) == 9
    assert "searchqa/switch_24/11 @5" in lines[1]
    assert "missing" in lines[1]
    assert lines[-2].startswith("6 of 6 runs are left: ")
    done = tmp_path / "results/math/adaptive/12.json"
    done.parent.mkdir(parents=True)
    done.write_text("{}")
    (tmp_path / "runs/searchqa/switch_24/11").mkdir(parents=True)
    lines = plan_lines(planned, shipped.chosen(["searchqa/switch_24", "math/adaptive/12"]), tmp_path)
    assert "begun" in lines[1]
    assert lines[-2].startswith("5 of 6 runs are left: ")


@pytest.fixture
def small(shipped, planned, tmp_path, monkeypatch):
    """Makes a study of some runs with more flags for some; inputs are those of the shipped runs."""
    monkeypatch.chdir(ROOT)
    parts = planned[0].parts
    monkeypatch.setattr("whale_jax.study.plan.read_parts", lambda config: parts)

    def make(flags, forks=None):
        runs = []
        for method, lines in flags.items():
            own = tmp_path / f"{method}.flags"
            own.write_text("\n".join(lines))
            spec = shipped.run("searchqa/weight_only/11")
            fork = (forks or {}).get(method)
            runs.append(dataclasses.replace(spec, method=method, flagfiles=(*spec.flagfiles, own), fork=fork, cost=1.0))
        return Study("small", tmp_path / "study.toml", 1.0, tuple(runs))

    return make


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"a": [], "b": ["--max_rollouts=6000"]}, "searchqa/b/11: --max_rollouts=6000, and searchqa/a/11 has 6016"),
        ({"a": ["--max_rollouts=0"]}, "searchqa/a/11: --max_rollouts=0 is no budget"),
        ({"a": ["--weight_budget_epochs=1.8125"]}, "searchqa/a/11: its schedule ends after 5568 of 6016 rollouts"),
        ({"a": ["--domain=math"]}, "searchqa/a/11: its flagfiles say --domain=math"),
        ({"a": ["--stop_after=weight_phase"]}, "searchqa/a/11: --stop_after must be never"),
        ({"a": ["--learning_rate=-1"]}, "searchqa/a/11: .*--learning_rate must be > 0, got -1"),
        ({"a": ["--learning_rte=1"]}, "searchqa/a/11: .*Unknown command line flag 'learning_rte'"),
    ],
)
def test_settings_that_no_study_has(small, tmp_path, flags, message):
    with pytest.raises(StudyError, match=message):
        plan_study(small(flags), tmp_path)


def test_a_method_may_be_said_to_end_early(small, tmp_path):
    study = small({"a": ["--weight_budget_epochs=1.8125"]})
    early = dataclasses.replace(study, runs=tuple(dataclasses.replace(run, ends_early=True) for run in study.runs))
    (planned,) = plan_study(early, tmp_path)
    assert planned.rollouts == 5568


def test_every_problem_is_named_at_once(small, tmp_path):
    with pytest.raises(StudyError) as raised:
        plan_study(small({"a": ["--rows=0"], "b": ["--minibatch=0"], "c": []}), tmp_path)
    assert [line.split(":")[0] for line in str(raised.value).splitlines()] == ["searchqa/a/11", "searchqa/b/11"]
    with pytest.raises(StudyError) as raised:
        plan_study(small({"a": ["--rows=0"], "b": ["--rows=0"], "c": ["--rows=0"]}), tmp_path)
    assert len(str(raised.value).splitlines()) == 3  # the flagfile's name stands before each


def test_a_problem_of_many_runs_is_one_line(small, tmp_path, monkeypatch):
    """As outside the project's root, where the flagfiles that the shipped ones name are not found."""
    study = small({"a": [], "b": [], "c": []})
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StudyError, match=r"^searchqa/a/11 and 2 more: .*searchqa/domain.flags[^\n]*$"):
        plan_study(study, tmp_path)


def test_a_branch_changes_what_a_branch_may(small, tmp_path):
    forks = {"b": Fork("a", 3)}
    assert plan_study(small({"a": [], "b": ["--schedule=stagewise"]}, forks), tmp_path)[1].rollouts == 6016 - 12 * 192
    with pytest.raises(StudyError, match=r"searchqa/b/11: --fork_from=searchqa/a/11@3: --temperature was 1.0, is 0.5"):
        plan_study(small({"a": [], "b": ["--temperature=0.5"]}, forks), tmp_path)
    with pytest.raises(StudyError, match="searchqa/b/11: searchqa/a/11, from which it branches, has problems"):
        plan_study(small({"a": ["--rows=0"], "b": []}, forks), tmp_path)


def test_what_is_frozen_of_the_shipped_study(shipped, planned):
    frozen = manifest(shipped, planned)
    assert list(frozen["domains"]) == ["searchqa", "math", "chess"]
    for hashes in frozen["domains"].values():
        assert list(hashes) == [
            "data", "weights", "tokenizer", "template", "h0.py", "strong.py", "catalogue.py",
        ]  # fmt: skip
        assert all(len(value) == 64 for value in hashes.values())
    assert len(frozen["runs"]) == len(planned)
    strong, adaptive = frozen["runs"]["searchqa/strong/11"], frozen["runs"]["searchqa/adaptive/11"]
    assert strong["harness"] == frozen["domains"]["searchqa"]["strong.py"]
    assert adaptive["harness"] == frozen["domains"]["searchqa"]["h0.py"]
    assert frozen["runs"]["searchqa/switch_09/13"]["branch"] == "searchqa/weight_only/13@2"


def test_the_study_at_the_papers_sizes_has_equal_rollouts(planned, tmp_path, monkeypatch):
    """Sizes of the splits are the paper's (sections 5 and 6); nobody here has the data and the weights."""
    monkeypatch.chdir(ROOT)
    sizes = {"searchqa": 18_946, "math": 17_917, "chess": 16_384}

    def parts(config):
        weight = range(sizes[config.run.domain])
        splits = {split: weight if split is Split.WEIGHT else range(256) for split in Split}
        return dataclasses.replace(planned[0].parts, splits=splits)

    monkeypatch.setattr("whale_jax.study.plan.read_parts", parts)
    study = read_study(Path("configs/study_paper/study.toml"))
    found = {one.spec.name: one for one in plan_study(study, tmp_path)}
    assert len(found) == 3 * 3 * 6
    for domain in sizes:
        fixed = found[f"{domain}/fixed/21"]
        assert fixed.rollouts == fixed.config.run.max_rollouts
        assert fixed.config.evaluation.eval_every == 7
        for method in ("weight_only", "adaptive", "prompt_only", "stagewise"):
            assert found[f"{domain}/{method}/22"].rollouts == fixed.rollouts, method
        assert found[f"{domain}/harness_only/23"].rollouts < fixed.rollouts / 10
