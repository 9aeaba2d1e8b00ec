"""The page as a file: its policy, its size, and the ways to have it written."""

import base64
import hashlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.whale_jax.report.made_run import SETTINGS, MadeRun, trace, two_cycles
from whale_jax.report import page
from whale_jax.report.__main__ import main, watch
from whale_jax.report.packing import unpack
from whale_jax.report.page import write_for_run, write_report
from whale_jax.report.run_files import ReportError


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A finished run that no test changes."""
    return two_cycles(tmp_path_factory.mktemp("made") / "run").directory


@pytest.fixture(scope="module")
def html(made, tmp_path_factory):
    out = tmp_path_factory.mktemp("page") / "report.html"
    write_report([made], out)
    return out.read_text("utf-8")


def block(html: str, name: str):
    (text,) = re.findall(f'<script type="text/plain" id="data-{name}">([^<]*)</script>', html)
    return unpack(text)


def test_the_policy_names_every_program_and_style_by_hash(html):
    (policy,) = re.findall('http-equiv="Content-Security-Policy" content="([^"]+)"', html)
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert "http" not in policy
    for kind, tag in (("script-src", "<script>"), ("style-src", "<style>")):
        contents = re.findall(f"{tag}(.*?)</{tag[1:]}", html, re.DOTALL)
        hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in contents]
        (allowed,) = re.findall(f"{kind} ([^;]+)", policy)
        assert allowed.split() == [f"'sha256-{one}'" for one in hashes]


def test_the_page_asks_for_nothing(html):
    assert not re.findall(
        r"<(?:link|img|iframe|object|embed|base|form)\b|\son[a-z]+\s*=|\sstyle\s*=", html.split("<script")[0]
    )
    assert '<meta http-equiv="refresh"' not in html
    assert not re.search("@[A-Z]+@", html.split("<script")[0])


def test_the_data_are_all_there(html):
    core = block(html, "core")
    assert [run["name"] for run in core["runs"]] == ["run"]
    assert len(core["trajectories"]["runs"][0]["rows"]) == core["trajectories"]["runs"][0]["found"] == 30
    assert len(block(html, "run-0-chunk-0")) == 30
    assert core["trajectories"]["boards"] == 0


@pytest.mark.parametrize(
    ("task_dir", "why"),
    [
        ("nowhere", "no chess boards: nowhere: no weight tasks"),
        (None, "no chess boards: the puzzles in the demo are no longer"),
    ],
)
def test_boards_that_cannot_be_drawn_are_told_of(tmp_path, task_dir, why):
    run = MadeRun(tmp_path / "run", settings={**SETTINGS, "domain": "chess", "task_dir": task_dir})
    run.search(0, {"000": [1] * 6})
    write_report([run.directory], tmp_path / "report.html")
    (note,) = block((tmp_path / "report.html").read_text("utf-8"), "core")["trajectories"]["runs"][0]["notes"]
    assert note.startswith(why)


def test_the_same_run_makes_the_same_page(made, tmp_path, html):
    write_report([made], tmp_path / "again.html")
    assert (tmp_path / "again.html").read_text("utf-8") == html
    assert [path.name for path in tmp_path.iterdir()] == ["again.html"]


def test_a_page_keeps_to_its_size(tmp_path):
    noise = lambda task: hashlib.shake_256(task.encode()).hexdigest(40_000)  # noqa: E731 - does not compress by much
    tasks = [f"task-{number}" for number in range(48)]
    run = MadeRun(
        tmp_path / "run", tasks=tasks, trace_of=lambda task, reward: trace(task, reward, texts=[("tool", noise(task))])
    )
    run.search(0, {"000": [1, 0] * 24})
    base = 1_000_000
    write_report([run.directory], tmp_path / "whole.html")
    whole = (tmp_path / "whole.html").stat().st_size
    assert whole > 2 * base
    write_report([run.directory], tmp_path / "small.html", megabytes=1.8)
    small = (tmp_path / "small.html").read_text("utf-8")
    assert len(small) <= 1_800_000
    shown = block(small, "core")["trajectories"]["runs"][0]
    assert 0 < len(shown["rows"]) < shown["found"] == 48
    with pytest.raises(ReportError, match="--max_megabytes"):
        write_report([run.directory], tmp_path / "none.html", megabytes=0.1)
    assert not (tmp_path / "none.html").exists()


@pytest.mark.slow
def test_ten_thousand_trajectories_fit(tmp_path):
    tasks = [f"task-{number}" for number in range(1000)]

    def varied(task, reward):
        words = hashlib.shake_256(task.encode()).hexdigest(600)
        return trace(task, reward, texts=[("harness", "What? " * 50), ("sampled", words), ("tool", "Doc 1 " * 100)])

    run = MadeRun(tmp_path / "run", tasks=tasks, trace_of=varied)
    run.search(0, {f"{number:03d}": [1, 0] * 500 for number in range(10)})
    write_report([run.directory], tmp_path / "report.html")
    html = (tmp_path / "report.html").read_text("utf-8")
    assert len(html) <= 25_000_000
    assert len(block(html, "core")["trajectories"]["runs"][0]["rows"]) == 10_000


def test_the_command_writes_one_page_about_several_runs(made, tmp_path, capsys):
    other = two_cycles(tmp_path / "other").directory
    out = tmp_path / "report.html"
    assert main(["report", str(made), str(other), f"--out={out}", "--max_trajectories=20"]) == 0
    assert capsys.readouterr().out == f"{out}: {out.stat().st_size / 1e6:.1f} MB\n"
    core = block(out.read_text("utf-8"), "core")
    assert [run["name"] for run in core["runs"]] == ["run", "other"]
    assert 0 < sum(len(run["rows"]) for run in core["trajectories"]["runs"]) <= 20
    assert len(core["comparison"]["runs"]) == 2


@pytest.mark.parametrize(
    ("argv", "status", "message"),
    [
        ([], 2, "name one or more run directories"),
        (["nowhere"], 2, "nowhere/config.json: cannot be read"),
        (["nowhere", "--odd"], 2, "Unknown command line flag"),
    ],
)
def test_what_is_wrong_is_said(argv, status, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["report", *argv]) == status
    assert message in capsys.readouterr().err


def test_a_place_that_cannot_be_written_is_said(made, tmp_path, capsys):
    assert main(["report", str(made), f"--out={tmp_path}/none/report.html"]) == 3
    assert "No such file or directory" in capsys.readouterr().err


def test_watching_writes_after_every_commit_until_the_end(tmp_path):
    made = MadeRun(tmp_path / "run")
    written: list[int] = []
    events = iter([
        lambda: None,
        lambda: made.evaluation("initial", "validation", [[1, 0]]),
        lambda: made.finish("initial"),
    ])  # fmt: skip
    watch([made.directory], lambda: written.append(len(made.journal.entries)), 5.0, lambda seconds: next(events)())
    assert written == [0, 1]


def test_a_page_that_is_watched_loads_itself_anew(made, tmp_path):
    write_report([made], tmp_path / "report.html", refresh_seconds=15)
    assert '<meta http-equiv="refresh" content="15">' in (tmp_path / "report.html").read_text("utf-8")


def test_the_end_of_a_run_writes_its_page(tmp_path):
    made = two_cycles(tmp_path / "run")
    said: list[str] = []
    write_for_run(made.directory, said.append)
    assert said == [f"report in {made.directory}/report.html"]
    assert (made.directory / "report.html").read_bytes().startswith(b"<!doctype html>")


def test_a_report_that_fails_is_a_warning_and_ends_nothing(tmp_path, monkeypatch):
    made = two_cycles(tmp_path / "run")
    said: list[str] = []
    monkeypatch.setattr(page, "make_page", lambda *args, **options: 1 / 0)
    write_for_run(made.directory, said.append)
    (line,) = said
    assert line.startswith("warning: report.html was not written (ZeroDivisionError: division by zero)")
    assert f"python -m whale_jax.report {made.directory}" in line
    assert not list(made.directory.glob("*report*"))


def test_a_report_needs_no_jax():
    program = "import sys, whale_jax.report.__main__; print(sorted({'jax', 'flax', 'matplotlib'} & set(sys.modules)))"
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
