"""What the command line refuses, each in one clear line, before any heavy work."""

import json
import shutil
from pathlib import Path

import pytest

from whale_jax.assemble import checkpoint_directory
from whale_jax.main import main

H0_BROKEN = "TOOLS = []\nimport socket\n\ndef run(task, model):\n    return None\n"


def refused(capsys, *flags):
    """Exit status 2 and the message."""
    assert main(["main", *flags]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert all(line.startswith("error: ") for line in printed.err.splitlines())
    return printed.err


def test_dry_run_prints_settings_that_are_a_flagfile(capsys, tmp_path):
    assert main(["main", "--dry_run", "--seed=7", "--weight_tasks=50"]) == 0
    printed = capsys.readouterr().out
    assert "searchqa: 50 weight" in printed
    settings = tmp_path / "printed.flags"
    settings.write_text("".join(f"{line}\n" for line in printed.splitlines() if line.startswith("--")))
    assert main(["main", f"--flagfile={settings}", "--dry_run"]) == 0
    assert capsys.readouterr().out == printed


def test_dry_run_writes_nothing(tmp_path, capsys):
    assert main(["main", "--dry_run", f"--run_dir={tmp_path / 'run'}"]) == 0
    assert list(tmp_path.iterdir()) == []


def test_help_names_every_group(capsys):
    assert main(["main", "--help"]) == 0
    printed = capsys.readouterr().out
    assert "settings of the schedule" in printed
    assert "--weight_phase_epochs" in printed


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--schedule=never"], "--schedule=never: value should be one of"),
        (["--no_such=1"], "no_such"),
        (["--samples_per_prompt=0"], "--samples_per_prompt must be >= 1, got 0"),
        (["--checkpoint=/nowhere"], "--checkpoint=/nowhere: no config.json there"),
        (["--harness=/nowhere/h.py"], "--harness=/nowhere/h.py: cannot be read"),
        (["--weight_tasks=100000"], "--weight_tasks=100000: the weight split holds"),
        (["--task_dir=/nowhere"], "/nowhere/weight.jsonl: cannot be read"),
        (["--flagfile=/nowhere.flags"], "/nowhere.flags"),
    ],
)
def test_bad_flags(capsys, flags, message):
    assert message in refused(capsys, *flags)


def test_a_harness_that_breaks_the_contract(capsys, tmp_path):
    path = tmp_path / "h.py"
    path.write_text(H0_BROKEN)
    message = refused(capsys, f"--harness={path}")
    assert f"--harness={path} does not obey the harness contract" in message
    assert "socket" in message
    assert "async def run(task, model, env)" in message


def test_a_truncated_checkpoint(capsys, tmp_path):
    copy = tmp_path / "checkpoint"
    shutil.copytree(checkpoint_directory(None), copy)
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-3])
    message = refused(capsys, f"--checkpoint={copy}")
    assert message.startswith(f"error: --checkpoint={copy}: ")
    assert "model.safetensors" in message


def write_tasks(folder: Path, **rows):
    folder.mkdir(exist_ok=True)
    for split in ("weight", "harness", "validation", "test"):
        lines = rows.get(split) or [
            json.dumps({"question": f"{split} question {n}?", "answers": ["x"]}) for n in range(4)
        ]
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "corpus.jsonl").write_text(json.dumps({"id": "1", "contents": '"Kalo"\nKalo is a city.'}) + "\n")


LIMITS = ("--weight_tasks=0", "--harness_tasks=0", "--validation_tasks=0", "--test_tasks=0")


def test_bad_rows_are_named_by_line(capsys, tmp_path):
    good = json.dumps({"question": "Is it?", "answers": ["x"]})
    write_tasks(tmp_path / "tasks", weight=[good, "{", '{"question": ""}', good.replace("it", "he")])
    message = refused(capsys, f"--task_dir={tmp_path / 'tasks'}", *LIMITS)
    assert "weight.jsonl: 2 of 4 rows are bad" in message
    assert "weight.jsonl:2: not JSON" in message
    assert "weight.jsonl:3: " in message
    arguments = ["main", "--dry_run", f"--task_dir={tmp_path / 'tasks'}", "--max_bad_rows=0.5", *LIMITS]
    assert main(arguments) == 0
    assert "2 bad rows left out" in capsys.readouterr().out


def test_overlapping_splits_are_refused(capsys, tmp_path):
    row = json.dumps({"question": "The same?", "answers": ["x"]})
    write_tasks(tmp_path / "tasks", weight=[row], test=[row])
    assert "weight and test share 1 task(s)" in refused(capsys, f"--task_dir={tmp_path / 'tasks'}", *LIMITS)


def test_a_run_directory_that_cannot_be_written(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    message = refused(capsys, f"--run_dir={tmp_path / 'file' / 'run'}")
    assert f"--run_dir={tmp_path / 'file' / 'run'}: cannot be written" in message


def test_somebody_elses_folder_is_left_alone(capsys, tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    assert "is no run directory" in refused(capsys, f"--run_dir={tmp_path}")
    assert (tmp_path / "thesis.tex").read_text() == "precious"
