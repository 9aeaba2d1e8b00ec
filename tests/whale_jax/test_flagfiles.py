"""The flagfiles of configs/ are read, and pass a dry run on prepared data.

The weights are the demo's: the settings do not depend on the model's size.
"""

from pathlib import Path

import pytest

from tests.whale_jax.domains.chess.test_prepare import made_up, write
from tests.whale_jax.domains.math.test_prepare import lines
from whale_jax.domains.chess.prepare import prepare as prepare_chess
from whale_jax.domains.math.prepare import prepare as prepare_math
from whale_jax.domains.task import Split
from whale_jax.main import main

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.fixture
def math_data(tmp_path):
    public = tmp_path / "public"
    public.mkdir()
    train = [{"prompt": f"What is {number} plus one?", "solution": str(number + 1)} for number in range(270)]
    (public / "dapo-math-17k.jsonl").write_text(lines(train))
    for year in (2024, 2025):
        rows = [{"id": n, "problem": f"Test {n} of {year}?", "answer": n} for n in range(3)]
        (public / f"aime_{year}.jsonl").write_text(lines(rows))
    prepare_math(public, tmp_path / "data", seed=42, harness_tasks=5, validation_tasks=4)
    return tmp_path / "data"


@pytest.fixture
def chess_data(tmp_path):
    sizes = {Split.TEST: 4, Split.VALIDATION: 3, Split.HARNESS: 3, Split.WEIGHT: 258}
    prepare_chess(write(tmp_path / "puzzles.csv.zst", made_up(300)), tmp_path / "data", seed=42, sizes=sizes)
    return tmp_path / "data"


@pytest.mark.parametrize(
    ("flagfile", "data", "expected"),
    [
        (
            "math_2b",
            "math_data",
            ["math: 261 weight, 5 harness, 4 validation, 6 test tasks", "--weight_budget_epochs=6", "--max_turns=16"],
        ),
        (
            "chess_4b",
            "chess_data",
            ["chess: 258 weight, 3 harness, 3 validation, 4 test tasks", "--max_turns=18", "--assistant_tokens=8129"],
        ),
    ],
)
def test_the_papers_settings_pass_a_dry_run_on_prepared_data(flagfile, data, expected, request, capsys):
    folder = request.getfixturevalue(data)
    assert main(["main", f"--flagfile={CONFIGS / flagfile}.flags", f"--task_dir={folder}", "--dry_run"]) == 0
    printed = capsys.readouterr().out
    for text in [*expected, "--prompts_per_step=256", "--samples_per_prompt=8", "--weight_phase_epochs=0.6"]:
        assert text in printed


def test_the_mathematics_demo_passes_a_dry_run(capsys):
    assert main(["main", f"--flagfile={CONFIGS / 'demo_math.flags'}", "--dry_run"]) == 0
    assert "math: 256 weight, 96 harness, 96 validation, 160 test tasks" in capsys.readouterr().out
