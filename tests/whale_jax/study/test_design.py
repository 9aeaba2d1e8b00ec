"""A study file says which runs there are, and in which order."""

import pytest

from whale_jax.study.design import Fork, StudyError, read_study

WRITTEN = """
name = "small"
seconds_per_episode = 0.5

[[domain]]
name = "searchqa"
seeds = [1, 2, 3]
methods = ["weight_only", "own"]
matrix = ["own"]
cost = { own = 2.0 }
ends_early = ["own"]

[[domain.branch]]
name = "later"
from = "weight_only"
entry = 4

[[domain]]
name = "math"
seeds = [7]
methods = ["weight_only"]
"""


@pytest.fixture
def folder(tmp_path):
    files = ["searchqa/domain", "searchqa/own", "searchqa/later", "math/domain", "methods/weight_only", "methods/own"]
    for name in files:
        path = tmp_path / f"{name}.flags"
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
    (tmp_path / "study.toml").write_text(WRITTEN)
    return tmp_path


def test_runs_come_in_rounds_each_branch_after_what_it_leaves(folder):
    study = read_study(folder / "study.toml")
    assert [run.name for run in study.runs] == [
        "searchqa/weight_only/1", "searchqa/later/1", "searchqa/own/1", "math/weight_only/7",
        "searchqa/weight_only/2", "searchqa/later/2", "searchqa/own/2",
        "searchqa/weight_only/3", "searchqa/later/3", "searchqa/own/3",
    ]  # fmt: skip
    own, later = study.run("searchqa/own/2"), study.run("searchqa/later/2")
    assert (own.matrix, own.cost, own.ends_early, own.fork) == (True, 2.0, True, None)
    assert not study.run("searchqa/weight_only/2").ends_early
    assert own.flagfiles == (folder / "searchqa/domain.flags", folder / "searchqa/own.flags")
    assert study.run("math/weight_only/7").flagfiles[1] == folder / "methods/weight_only.flags"
    assert (later.fork, later.parent) == (Fork("weight_only", 4), "searchqa/weight_only/2")
    assert later.argv(folder / "out")[-1] == f"--fork_from={folder}/out/runs/searchqa/weight_only/2@4"
    assert [run.name for run in study.branches("searchqa/weight_only/3")] == ["searchqa/later/3"]


def test_runs_are_chosen_by_the_beginnings_of_their_names(folder):
    study = read_study(folder / "study.toml")
    assert len(study.chosen([])) == 10
    chosen = study.chosen(["math", "searchqa/own", "searchqa/later/3"])
    assert [run.name for run in chosen] == [
        "searchqa/own/1", "math/weight_only/7", "searchqa/own/2", "searchqa/later/3", "searchqa/own/3",
    ]  # fmt: skip
    for wrong in ("searchqa/ow", "chess", "math/weight_only/1"):
        with pytest.raises(StudyError, match=f"--only={wrong}: .* has no such run; it has searchqa/weight_only"):
            study.chosen([wrong])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "small"', "name = ", "cannot be read as TOML"),
        ('name = "small"', "", "not of the form .*KeyError\\('name'\\)"),
        ('name = "small"', 'name = "small"\nseed = 1', "seed means nothing here; known are domain, name, seconds"),
        ("seeds = [7]", "seeds = 7", "not of the form"),
        ("seeds = [7]", "seeds = [7, 7]", "math/weight_only/7 is there twice"),
        ("seeds = [7]", "seeds = [7]\nmethod = 1", "method means nothing here"),
        ('from = "weight_only"', 'from = "fixed"', "later branches from fixed, which is no method of searchqa"),
        ("entry = 4", "entry = 4\nat = 1", "at means nothing here"),
        ('matrix = ["own"]', 'matrix = ["adaptive"]', "searchqa has no method adaptive"),
        ('ends_early = ["own"]', 'ends_early = ["other"]', "searchqa has no method other"),
        ('"weight_only", "own"', '"weight_only", "own", "more"', "more.flags: is missing, and .* needs it for"),
    ],
)
def test_what_a_study_file_cannot_say(folder, old, new, message):
    path = folder / "study.toml"
    assert old in WRITTEN
    path.write_text(WRITTEN.replace(old, new))
    with pytest.raises(StudyError, match=message) as raised:
        read_study(path)
    assert str(folder) in str(raised.value)


def test_a_study_file_that_is_not_there(tmp_path):
    with pytest.raises(StudyError, match=r"none\.toml: cannot be read"):
        read_study(tmp_path / "none.toml")
