"""The stand-alone search and the A/A test, from the command line, on a made-up problem."""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness_search.aa import noise_floor
from harness_search.archive import Archive
from harness_search.audit import Answers
from harness_search.main import main, stopping
from harness_search.problem import Problem
from harness_search.proposers.edits import Edit
from harness_search.scoring import Arm, EpisodeResult, Outcome, Score, ScoreTag
from harness_search.search import SearchSignals

H0 = """
GOOD = 0

async def run(task, model, env):
    return await model.chat().reply()
"""
TASKS = [f"task-{index}" for index in range(40)]
PATH = "tests.harness_search.test_main:problem"


async def evaluate(arms: Sequence[Arm], task_ids: Sequence[str], seeds: Sequence[int]) -> AsyncIterator[Outcome]:
    """GOOD = 1 solves everything, LEAK = 1 writes the answer itself and solves everything too."""
    for arm in arms:
        for task in task_ids:
            for seed in seeds:
                chance = 1.0 if "GOOD = 1" in arm.source else 0.3
                reward = float(random.Random(zlib.crc32(f"{task}/{seed}".encode())).random() < chance)
                text = f"say secret {task}" if "LEAK" in arm.source else "say something"
                chats = [[{"source": "harness", "text": text}, {"source": "sampled", "text": "x", "turn": 0}]]
                yield Outcome(arm.id, task, seed, reward, "answered", 1, 5, {"answer": "x", "chats": chats})


def edit(name: str, text: str) -> Edit:
    return Edit(name, name, "it helps", "useful", (), lambda source: None if text in source else text + "\n" + source)


def problem() -> Problem:
    return Problem(
        evaluate,
        TASKS,
        ScoreTag("m", "t", "v", "s"),
        catalogue=[edit("good", "GOOD = 1"), edit("leak", "LEAK = 1"), edit("idle", "IDLE = 1")],
        answers=lambda task: Answers([f"Secret {task}"]),
    )


@pytest.fixture
def h0(tmp_path: Path) -> str:
    path = tmp_path / "h0.py"
    path.write_text(H0)
    return str(path)


def command(h0: str, *more: str) -> int:
    return main([f"--evaluate={PATH}", f"--harness={h0}", *more])


def test_a_search_finds_confirms_flags_and_goes_on(tmp_path: Path, h0: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = (f"--dir={tmp_path / 'search'}", "--iterations=2", "--acceptance=paired", "--confirm_rollouts=2")
    assert command(h0, *flags) == 0
    text = capsys.readouterr().out
    content = json.loads((tmp_path / "search" / "summary.json").read_text())
    assert "GOOD = 1" in (tmp_path / "search" / "best.py").read_text()
    best = content["best"]
    assert best["search_score"] == best["confirmation_score"] == 1.0
    trial = content["trials"][0]
    assert trial["accepted"]
    assert trial["lower"] > 0
    assert content["rollouts"] == sum(record.rollouts for record in Archive(tmp_path / "search").iterations)
    assert content["rollouts"] == 40 * len(content["candidates"]) + 160 * len(content["trials"])
    flagged = [one for one in content["candidates"] if one["flagged"]]
    sources = {name: one.source for name, one in Archive(tmp_path / "search").candidates.items()}
    assert all("LEAK" in sources[one["candidate"]] for one in flagged)
    assert any("LEAK" in source for source in sources.values()) == bool(flagged)
    assert "confirmation" in text
    assert "FLAGGED" in text or not flagged
    before = {path: path.read_bytes() for path in (tmp_path / "search").rglob("*") if path.is_file()}
    assert command(h0, *flags, "--json") == 0
    assert json.loads(capsys.readouterr().out)["best"] == best
    assert {path: path.read_bytes() for path in (tmp_path / "search").rglob("*") if path.is_file()} == before


def test_a_bare_evaluate_needs_its_tasks(tmp_path: Path, h0: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tasks").write_text("\n".join(TASKS))
    where = "--evaluate=tests.harness_search.test_main:evaluate"
    arguments = [where, f"--harness={h0}", "--aa_test", "--aa_rollouts=1", "--json"]
    assert main(arguments) == 1
    assert "needs --tasks" in capsys.readouterr().err
    assert main([*arguments, f"--tasks={tmp_path / 'tasks'}"]) == 0
    assert json.loads(capsys.readouterr().out)["tasks"] == 40


def test_the_aa_test_prints_the_noise_floor(h0: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(h0, "--aa_test", "--aa_rollouts=4", "--json") == 0
    floor = json.loads(capsys.readouterr().out)
    # 0.3 of 40 tasks x 4 rollouts: the error of a difference is about sqrt(2 * 0.21 / 160).
    assert floor["noise"] == pytest.approx((2 * 0.21 / 160) ** 0.5, rel=0.4)
    assert floor["smallest_effect"]["4"] == pytest.approx((1.645 + 0.842) * floor["noise"], rel=1e-3)
    assert floor["smallest_effect"]["1"] == pytest.approx(2 * floor["smallest_effect"]["4"])
    assert command(h0, "--aa_test") == 0
    assert "noise floor" in capsys.readouterr().out


def test_zero_variance_is_never_certainty() -> None:
    def score(seeds: range) -> Score:
        rows = [EpisodeResult(task, seed, 1.0, "answered", 1, 1) for task in TASKS for seed in seeds]
        return Score(ScoreTag("m", "t", "v", "s"), "h", tuple(rows))

    floor = noise_floor(score(range(2)), score(range(2, 4)), 2)
    assert floor.difference == 0
    assert floor.noise > 0.01
    assert floor.p_value == 1
    assert all(size > 0.02 for size in floor.smallest_effect.values())


WRONG: list[tuple[list[str], str]] = [
    (["--evaluate=nothing"], "package.module:name"),
    (["--evaluate=no_such_module_here:x"], "cannot be imported"),
    (["--evaluate=json:dumps"], "needs --tasks"),
    (["--evaluate=json:__doc__"], "neither a Problem nor a function"),
    (["--evaluate=os:getcwd"], "not a Problem"),
    (["--harness=/no/such"], "cannot be read"),
    ([], "needs --dir"),
    (["--dir={dir}", "--proposer=gemini"], "--proposer_model"),
    (["--dir={dir}", "--proposer=command"], "command line"),
    (["--dir={dir}", "--proposer=command", "--proposer_command='"], "cannot be read"),
    (["--dir={dir}", "--proposer=replay"], "--replay_from"),
    (["--dir={dir}", "--proposer=replay", "--replay_from={dir}"], "no recorded proposer session"),
    (["--dir={dir}", "--max_rollouts=5"], "do not cover"),
]


@pytest.mark.parametrize(("flags", "words"), WRONG, ids=[words for _, words in WRONG])
def test_wrong_settings_are_named(
    tmp_path: Path, h0: str, capsys: pytest.CaptureFixture[str], flags: list[str], words: str
) -> None:
    assert command(h0, *(flag.format(dir=tmp_path / "search") for flag in flags)) == 1
    assert words in capsys.readouterr().err


def test_a_harness_that_is_none_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.py").write_text("import socket\n")
    assert command(str(tmp_path / "bad.py")) == 1
    assert "does not obey the harness contract" in capsys.readouterr().err


def test_patience_counts_iterations_without_a_new_best() -> None:
    def signals(*scores: float) -> SearchSignals:
        return SearchSignals(len(scores) - 1, scores, 0)

    stop = stopping(9, 2)
    assert not stop(signals(0.1))
    assert not stop(signals(0.1, 0.1))
    assert stop(signals(0.1, 0.1, 0.1))
    assert not stop(signals(0.1, 0.1, 0.2, 0.2))
    assert stopping(2, 0)(signals(0.1, 0.2, 0.3))


def test_help_names_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    text: Any = capsys.readouterr().out
    assert "--proposer_cost_pattern" in text
    assert "--aa_test" in text
