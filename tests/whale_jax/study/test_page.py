"""The page is made of results alone, between its markers, and twice the same."""

import dataclasses
import json
import re
import shutil
from xml.etree import ElementTree

import pytest

from tests.whale_jax.study.conftest import ROOT
from tests.whale_jax.study.made_study import manifest, result, scores, search
from whale_jax.study.__main__ import main
from whale_jax.study.design import StudyError
from whale_jax.study.page import BLOCKS, write_page
from whale_jax.study.results import read_results
from whale_jax.study.tables import state

CURVE = (("initial", 0, (0, 0)), ("cycle 1, weights", 400, (1, 0)), ("cycle 1, search", 900, (1, 1)))
RUNS = {
    **{
        f"searchqa/{method}/{seed}": None
        for seed in (11, 12)
        for method in ("weight_only", "harness_only", "stagewise", "adaptive")
    },
    "searchqa/later/11": "searchqa/weight_only/11@5",
    "math/adaptive/11": None,
}


@pytest.fixture
def page(tmp_path):
    folder = tmp_path / "page"
    folder.mkdir()
    shutil.copy(ROOT / "docs/study/README.md", folder)
    return folder


@pytest.fixture
def study(tmp_path):
    """All of it but one run."""
    out = tmp_path / "out"
    manifest(out, RUNS)
    cell = scores((1, 0), split="validation")
    matrix = {
        "weights": [{"label": "initial", "sha256": "w"}, {"label": "cycle 1", "sha256": "v"}],
        "harnesses": [
            {"label": "initial", "sha256": "h", "found_on": None}, {"label": "cycle 1", "sha256": "g", "found_on": 1}
        ],
        "cells": [[cell, cell], [scores((1, 1), split="validation"), scores((2, 1), split="validation")]],
    }  # fmt: skip
    for name in RUNS:
        if name != "searchqa/later/11":
            _, method, seed = name.split("/")
            returned = {"adaptive": (2, 1, 1, 0), "stagewise": (1, 1, 1, 0)}.get(method, (1, int(seed) - 11, 0, 0))
            searched = method != "weight_only"
            result(
                out, name, curve=CURVE, returned=returned, matrix=matrix if method == "adaptive" else None,
                searches=[search(0, 0.2, 0.4, edits=["a|b", "topk"])] if searched else [],
            )  # fmt: skip
    return out


def block(page, name):
    text = (page / "README.md").read_text()
    found = re.search(rf"<!-- study: {name} -->\n(.*?)\n<!-- study: end -->", text, re.DOTALL)
    assert found is not None
    return found[1]


def rows(page, name):
    lines = [line for line in block(page, name).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_a_page_says_what_was_measured_and_what_is_missing(study, page):
    written = write_page(study, page)
    names = ["answers", "overstated", "scores", "sooner", "switching", "transfer"]
    assert sorted(path.stem for path in written[1:]) == names
    for path in written[1:]:
        ElementTree.parse(path)
        assert f"]({path.name})" in block(page, path.stem)
    state = block(page, "state")
    assert "9 of 10 runs have a result." in state
    assert "Missing, by seed: searchqa/later 11." in state
    assert "Code: `c0de`. Machines: a chip, 2 x cpu, 0.0." in state
    assert "counted twice" not in state
    assert "differ" not in state
    by_name = {(line[0], line[2]): line for line in rows(page, "answers")}
    joint = by_name["searchqa", "adaptive - stagewise"]
    assert joint[3:6] == ["+12.5", "+12.5 to +12.5", joint[5]]
    assert joint[6:] == ["+12.5, +12.5", "0 of 2", "not decided", "+9.8"]
    assert ("searchqa", "adaptive - weight_only (the best single arm, by validation)") in by_name
    widths = {len(line) for name in ("scores", "answers", "overstated", "transfer") for line in rows(page, name)}
    assert len(widths) <= 4
    assert "a&#124;b x 2" in block(page, "budgets")
    assert ["searchqa", "adaptive", "2 of 2", "100 %, 100 %", "100 (100 to 100)", "2", ""] in rows(page, "sooner")
    weight_only, harness_only = rows(page, "picked")[2:4]
    assert weight_only == ["searchqa", "weight_only", "9 (9 to 9)", "0.0", "3 (3 to 3)", "0", "0", "2", "0 of 2"]
    assert harness_only[-3:] == ["0", "2", "2 of 2"]
    lasts = {line[1]: line for line in rows(page, "last") if line[0] == "searchqa"}
    assert lasts["adaptive - weight_only"][2:] == [
        "+0.0", "+0.0 to +0.0", "+0.0 to +0.0", "+0.0, +0.0", "2 of 2", "no difference in any seed",
    ]  # fmt: skip
    assert "harness_only - strong, initial pair" not in lasts


def test_writing_it_again_changes_no_byte(study, page):
    write_page(study, page)
    before = {path.name: path.read_bytes() for path in page.iterdir()}
    write_page(study, page)
    assert {path.name: path.read_bytes() for path in page.iterdir()} == before


def test_the_words_around_the_tables_stay(study, page):
    def words(text):
        return re.sub(r"(<!-- study: \w+ -->).*?(<!-- study: end -->)", r"\1\2", text, flags=re.DOTALL)

    before = (page / "README.md").read_text()
    write_page(study, page)
    after = (page / "README.md").read_text()
    assert after != before
    assert words(after) == words(before)


def test_a_study_without_runs_has_tables_without_figures(study, page):
    write_page(study, page)
    shutil.rmtree(study / "results")
    written = write_page(study, page)
    assert [path.name for path in written] == ["README.md"]
    assert [path.name for path in page.iterdir()] == ["README.md"]
    assert "0 of 10 runs have a result." in block(page, "state")
    assert block(page, "scores") == "No run yet."
    assert all(line[3] in ("missing", "points", "---") for line in rows(page, "answers"))
    assert ["searchqa", "h0.py", f"`{'0' * 64}`"] in rows(page, "frozen")


def test_pairs_that_should_begin_alike_and_do_not_are_named(study, page):
    result(study, "searchqa/adaptive/11", initial=(1, 0, 0, 0), curve=CURVE)
    write_page(study, page)
    (line,) = [line for line in block(page, "state").splitlines() if "differ" in line]
    assert line.startswith("**searchqa/weight_only/11, ")
    assert line.endswith("searchqa/adaptive/11 began with the same pair, and its test scores differ.**")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("<!-- study: answers -->", "<!-- study: anwers -->", "has no block answers"),
        ("<!-- study: end -->\n\n### The questions", "### The questions", "has no block answers"),
        ("## Limits", "<!-- study: more -->\n<!-- study: end -->\n\n## Limits", "nothing is called more; blocks are"),
    ],
)
def test_a_page_without_its_blocks_is_not_touched(study, page, old, new, message):
    readme = page / "README.md"
    assert old in readme.read_text()
    readme.write_text(readme.read_text().replace(old, new))
    before = readme.read_bytes()
    with pytest.raises(StudyError, match=message):
        write_page(study, page)
    assert readme.read_bytes() == before
    assert len(list(page.iterdir())) == 1


def test_the_command(study, page, capsys):
    assert main(["study", f"--report={study}", f"--page={page}"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == str(page / "README.md")
    assert main(["study", f"--report={study}", f"--page={page / 'none'}"]) == 2
    assert "none/README.md: cannot be read" in capsys.readouterr().err
    assert main(["study", f"--report={page}"]) == 2
    assert "manifest.json: cannot be read" in capsys.readouterr().err


def test_the_shipped_page_has_every_block_once():
    text = (ROOT / "docs/study/README.md").read_text()
    assert {name: text.count(f"<!-- study: {name} -->") for name in BLOCKS} == dict.fromkeys(BLOCKS, 1)


def test_an_amendment_stands_below_what_was_frozen(study, page):
    path = study / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"amended": ["On a day, a budget."]}))
    write_page(study, page)
    assert block(page, "frozen").endswith("**Amended.** On a day, a budget.")


def test_the_code_of_every_run_is_named(study, page):
    result(study, "searchqa/adaptive/11", curve=CURVE, code="0ther")
    result(study, "searchqa/adaptive/12", curve=CURVE, code="0ther")
    result(study, "searchqa/later/11", curve=CURVE, branch={"from": "searchqa/weight_only/11", "entry": 5})
    text = state(read_results(study))
    assert "Code: `0ther` of searchqa/adaptive 11, 12; `c0de` of all others." in text
    assert "What a branch shares with its parent is counted twice." in text


def test_missing_runs_of_a_method_are_named_together(study):
    results = dataclasses.replace(read_results(study), missing=["a/b/1", "a/c/1", "a/b/2"])
    assert "Missing, by seed: a/b 1, 2; a/c 1." in state(results)
