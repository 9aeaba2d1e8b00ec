"""The command: it plans, freezes, refuses, stops when the time is over, and says how it ended."""

import json

import pytest

import whale_jax.study.plan
from tests.whale_jax.study.conftest import ROOT
from whale_jax.study.__main__ import main
from whale_jax.study.jobs import Processes, TimeUsed

FLAGFILES = {
    "searchqa/domain.flags": "--max_rollouts=500\n",
    "methods/weight_only.flags": "--schedule=weight_only\n",
    "methods/fixed.flags": "--schedule=fixed\n",
}
STUDY = """
name = "small"
seconds_per_episode = 0.5
[[domain]]
name = "searchqa"
seeds = [1]
methods = ["weight_only", "fixed"]
"""


@pytest.fixture
def study(tmp_path, planned, monkeypatch):
    """The command line of a small study, its inputs read already, and no job that does anything."""
    for name, content in FLAGFILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
    (tmp_path / "study.toml").write_text(STUDY)
    monkeypatch.setattr(whale_jax.study.plan, "read_parts", lambda config: planned[0].parts)
    return ["study", f"--study={tmp_path}/study.toml", f"--out={tmp_path}/out"]


def ends(monkeypatch, status):
    def run(self, module, argv, log):
        if isinstance(status, BaseException):
            raise status
        return status

    monkeypatch.setattr(Processes, "run", run)


def test_a_dry_run_prints_the_plan_and_writes_nothing(study, tmp_path, capsys):
    assert main([*study, "--dry_run"]) == 0
    printed = capsys.readouterr().out
    assert "searchqa/weight_only/1" in printed
    assert "2 of 2 runs are left: 1,000 training and search rollouts" in printed
    assert not (tmp_path / "out").exists()
    assert main([*study, "--dry_run", "--only=searchqa/fixed"]) == 0
    assert "1 of 1 runs are left: 500" in capsys.readouterr().out


def test_everything_is_frozen_before_the_first_run(study, tmp_path, monkeypatch, capsys):
    ends(monkeypatch, 3)
    assert main(study) == 3
    captured = capsys.readouterr()
    assert "error: searchqa/weight_only/1 ended with status 3" in captured.err
    assert captured.out.startswith(f"frozen in {tmp_path}/out/manifest.json\n")
    frozen = json.loads((tmp_path / "out/manifest.json").read_bytes())
    assert list(frozen["runs"]) == ["searchqa/weight_only/1", "searchqa/fixed/1"]
    (tmp_path / "methods/fixed.flags").write_text("--schedule=fixed\n--learning_rate=0.5\n")
    for more in ([], ["--dry_run"], ["--only=searchqa/weight_only"]):
        assert main([*study, *more]) == 2
        assert "runs: searchqa/fixed/1: config was " in capsys.readouterr().err


def test_how_it_ends(study, monkeypatch, capsys):
    ends(monkeypatch, TimeUsed())
    assert main([*study, "--max_hours=2"]) == 0
    assert "--max_hours=2 are over: 2 of 2 runs are left" in capsys.readouterr().out
    ends(monkeypatch, 4)
    assert main(study) == 4
    assert "training diverged in searchqa/weight_only/1, searchqa/fixed/1; all other runs are done" in (
        capsys.readouterr().err
    )
    ends(monkeypatch, KeyboardInterrupt())
    assert main(study) == 130
    assert "interrupted; the same command goes on" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "name a study"),
        (["--study=x.toml"], "--out=DIR is needed"),
        (["--study=x.toml", "--out=y"], "x.toml: cannot be read"),
        (["--nonsense"], "Unknown command line flag 'nonsense'"),
        (["more"], "unexpected arguments: more"),
        (["--max_hours=-1"], "max_hours"),
    ],
)
def test_command_lines_that_are_none(args, message, capsys):
    assert main(["study", *args]) == 2
    assert message in capsys.readouterr().err


def test_help(capsys):
    assert main(["study", "--help"]) == 0
    printed = capsys.readouterr().out
    assert "--[no]dry_run" in printed
    page = (ROOT / "docs/study/README.md").read_text()
    for flag in ("study", "out", "only", "max_hours", "keep_runs", "dry_run", "report", "page"):
        assert f"`--{flag}`" in page
        assert f"--{flag}" in printed or f"]{flag}" in printed
