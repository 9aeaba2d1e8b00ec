"""A result holds what the page needs of a run, in a few kilobytes, and is the frozen run's."""

import dataclasses
import json
from pathlib import Path

import pytest

from harness_search.canonical import sha256
from tests.whale_jax.report.made_run import H0, MadeRun
from tests.whale_jax.study.finished import cell, finished_run
from tests.whale_jax.study.made_study import INPUTS, manifest, result
from whale_jax.study.design import Fork, RunSpec, StudyError
from whale_jax.study.extract import extract, made_by
from whale_jax.study.freeze import read_manifest
from whale_jax.study.results import read_result, read_results, result_path, write_result
from whale_jax.study.scores import Scores

SPEC = RunSpec("searchqa", "adaptive", 3, ())
CODE = {"commit": "c0ffee", "code": "c0de"}
FROZEN = {"config": "c" * 64, "harness": sha256(H0.encode()), "max_rollouts": 100}


@pytest.fixture
def run(tmp_path):
    finished_run(tmp_path / "run", FROZEN)
    return tmp_path / "run"


def test_a_result_is_small_and_comes_back_as_it_was(run, tmp_path):
    content = extract(SPEC, run, CODE)
    write_result(tmp_path, SPEC.name, content)
    path = result_path(tmp_path, SPEC.name)
    assert path == tmp_path / "results/searchqa/adaptive/3.json"
    assert path.stat().st_size < 4000
    found = read_result(path)
    assert found.content == content
    assert (found.name, found.rollouts, content["budget"], content["config"]) == (SPEC.name, 70, 100, "c" * 64)
    assert [(point.label, point.rollouts, point.step) for point in found.curve] == [
        ("initial", 0, 0), ("cycle 1, weights", 24, 3), ("cycle 1, search", 42, 3), ("cycle 2, search", 70, 5),
    ]  # fmt: skip
    assert found.returned_point.scores.right == (2, 2, 2, 1)
    assert (found.initial.right, found.returned.right, found.initial.scored) == ((1, 0, 0, 0), (2, 2, 2, 1), (2,) * 4)
    assert (found.returned.mean, found.initial.mean) == (7 / 8, 1 / 8)
    assert (content["seconds"], content["episodes"]) == (120.0, 118)
    assert {name: content[name] for name in CODE} == CODE


def test_phases_and_searches_of_a_result(run):
    content = extract(SPEC, run, CODE)
    assert [(one["kind"], one["cycle"], one["rollouts"]) for one in content["phases"]] == [
        ("weight", 0, 24), ("search", 0, 18), ("weight", 1, 16), ("search", 1, 12),
    ]  # fmt: skip
    assert content["phases"][0]["steps"] == 3
    assert content["phases"][0]["reason"] == "no better smoothed reward within patience"
    assert content["phases"][1]["iterations"] == 1
    first, second = content["searches"]
    assert (first["incoming"], first["best"], first["changed"], first["edits"]) == (0.5, 4 / 6, True, ["the edit"])
    assert (first["scored"], first["invalid"], first["iterations"]) == (2, 1, 1)
    assert second["best"] == 1.0
    assert first["expected_luck"] > 0


def test_a_matrix_says_on_which_weights_each_harness_was_found(run):
    searches = extract(SPEC, run, CODE)["searches"]
    rewards = {"validation-0": [1, 0], "validation-1": [1, 1]}
    accepted = searches[0]["harness"]
    assert searches[1]["harness"] == accepted
    for weights, harness in (("w", FROZEN["harness"]), ("0", FROZEN["harness"]), ("0", accepted)):
        cell(run, weights * 64, harness, rewards)
    cell(run, "w" * 64, FROZEN["harness"], {"test-0": [0, 0]}, split="test")
    matrix = extract(dataclasses.replace(SPEC, matrix=True), run, CODE)["matrix"]
    assert [one["label"] for one in matrix["weights"]] == ["initial", "cycle 1"]
    assert [(one["label"], one["found_on"]) for one in matrix["harnesses"]] == [("initial", None), ("cycle 1", 1)]
    assert [[cell is not None for cell in line] for line in matrix["cells"]] == [[True, True], [False, True]]
    assert matrix["cells"][0][0]["right"] == "12"


def test_what_a_result_cannot_be_made_of(run, tmp_path):
    with pytest.raises(StudyError, match="its matrix was not measured: python -m whale_jax"):
        extract(dataclasses.replace(SPEC, matrix=True), run, CODE)
    (run / "evals/000009.json").unlink()
    with pytest.raises(
        StudyError, match="the evaluation of 'cycle 2, search' on validation, or its evidence, is missing"
    ):
        extract(SPEC, run, CODE)
    unfinished = MadeRun(tmp_path / "other")
    unfinished.evaluation("initial", "validation", [[1, 0]])
    with pytest.raises(StudyError, match="no summary of its whole journal; the same command goes on"):
        extract(SPEC, unfinished.directory, CODE)


def test_a_branch_names_what_it_left(run, tmp_path):
    record = json.loads((run / "config.json").read_bytes()) | {"fork": {"run_dir": "/x", "entry": 2}}
    (run / "config.json").write_text(json.dumps(record))
    content = extract(dataclasses.replace(SPEC, fork=Fork("weight_only", 2)), run, CODE)
    assert content["branch"] == {"from": "searchqa/weight_only/3", "entry": 2}


def test_who_made_it():
    code = made_by("c0de")
    assert code["code"] == "c0de"
    assert code["commit"] is None or len(code["commit"].rstrip("+")) == 40


def test_scores_of_missing_data():
    scores = Scores.of({"b": [1, None, 1], "a": [None, None, None], "c": [0, 1, 0]}, 3)
    assert (scores.right, scores.scored) == ((0, 2, 1), (0, 2, 3))
    assert Scores.from_json(scores.to_json()) == scores
    assert scores.mean == pytest.approx((1 + 1 / 3) / 2)
    assert scores.tasks == Scores.of({"a": [0], "b": [0], "c": [0]}, 1).tasks != Scores.of({"a": [0]}, 1).tasks
    with pytest.raises(ValueError, match="at most 35"):
        Scores.of({"a": [1] * 36}, 36).to_json()
    with pytest.raises(ValueError, match="more answers are right"):
        Scores.from_json({"tasks": "", "k": 2, "right": "2", "scored": "1"})


def test_results_are_read_with_what_is_missing(tmp_path):
    manifest(tmp_path, {"math/a/1": None, "math/b/1": None, "chess/a/2": None})
    result(tmp_path, "math/b/1")
    results = read_results(tmp_path)
    assert list(results.by_name) == ["math/b/1"]
    assert results.missing == ["math/a/1", "chess/a/2"]
    assert (results.domains, results.methods("math")) == (["math", "chess"], ["a", "b"])
    assert list(results.of("math", "b")) == [1]


def change(path: Path, **changes):
    path.write_text(json.dumps(json.loads(path.read_bytes()) | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"config": "f" * 64}, "is of a run with another config than was frozen; remove it"),
        ({"inputs": {**INPUTS, "harness": "f" * 64, "data": "f" * 64}}, "with another harness, data than was frozen"),
        ({"catalogue": "e" * 64}, "with another catalogue than was frozen"),
        ({"seed": 2}, "is the result of another run"),
        ({"format": 0}, "is of format 0, and this version reads 1"),
        ({"curve": 1}, "is damaged .*; remove it, and the run is made again"),
        ({"returned": "cycle 9, search"}, "no validation score of the returned pair"),
    ],
)
def test_a_result_that_is_not_of_this_study(tmp_path, changes, message):
    manifest(tmp_path, {"math/a/1": None})
    result(tmp_path, "math/a/1")
    change(result_path(tmp_path, "math/a/1"), **changes)
    with pytest.raises(StudyError, match=message):
        read_results(tmp_path)


def test_a_run_that_was_made_anew_must_end_the_same(tmp_path):
    manifest(tmp_path, {"math/a/1": None})
    result(tmp_path, "math/a/1")
    result(tmp_path, "math/a/1", seconds=99.0)
    assert read_results(tmp_path).by_name["math/a/1"].content["seconds"] == 99.0
    with pytest.raises(StudyError, match="ended with another journal"):
        result(tmp_path, "math/a/1", journal="k" * 64)
    assert read_manifest(tmp_path)["name"] == "made"
