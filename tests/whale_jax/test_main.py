"""What the command line refuses, each in one clear line, before any heavy work."""

import json
import shutil
from pathlib import Path

import pytest

from whale_jax.assemble import checkpoint_directory, read_parts
from whale_jax.config import RunConfig
from whale_jax.main import main
from whale_jax.rundir import open_config

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
        (["--weight_tasks=9", "--prompts_per_step=10"], "--prompts_per_step must be <= --weight_tasks (9)"),
        (["--replicas=1000"], "--replicas=1000: this machine has"),
        (["--task_dir=/nowhere"], "/nowhere: no weight tasks: one of weight.jsonl"),
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


@pytest.mark.parametrize(
    ("tail", "message"),
    [
        ("raise SystemExit(1)\n", "SystemExit"),
        ("__import__('os')\n", "os"),
        ("run = 3\n", "run"),
        ("return 3\n", "return"),
    ],
)
def test_a_harness_that_does_not_load(capsys, tmp_path, tail, message):
    path = tmp_path / "h.py"
    path.write_text("async def run(task, model, env):\n    return await model.chat().reply()\n" + tail)
    printed = refused(capsys, f"--harness={path}")
    assert printed.startswith(f"error: --harness={path} does not load in the sandbox: ")
    assert message in printed


def test_a_tokenizer_of_another_model(capsys, tmp_path):
    copy = tmp_path / "checkpoint"
    shutil.copytree(checkpoint_directory(None), copy)
    tokenizer = json.loads((copy / "tokenizer.json").read_text(encoding="utf-8"))
    added = tokenizer["added_tokens"]
    added.append({**added[0], "id": 1536, "content": "<|extra|>"})
    (copy / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    assert "tokenizer.json has 1537 ids, the model embeds 1536" in refused(capsys, f"--checkpoint={copy}")


def test_another_model_with_the_room_of_the_demo_is_warned_of(capsys, tmp_path):
    copy = tmp_path / "checkpoint"
    shutil.copytree(checkpoint_directory(None), copy)
    assert main(["main", "--dry_run", f"--checkpoint={copy}"]) == 0
    assert capsys.readouterr().err == "", "the demo's model has the demo's room"
    shape = json.loads((copy / "config.json").read_text(encoding="utf-8"))
    (copy / "config.json").write_text(json.dumps({**shape, "rms_norm_eps": 1e-5}), encoding="utf-8")
    assert main(["main", "--dry_run", f"--checkpoint={copy}"]) == 0
    assert "--assistant_tokens=192 and --max_len=768 are the demo's room" in capsys.readouterr().err
    assert main(["main", "--dry_run", f"--checkpoint={copy}", "--assistant_tokens=1000"]) == 0
    assert capsys.readouterr().err == ""


def test_a_folder_with_another_config_json_is_left_alone(capsys, tmp_path):
    copy = tmp_path / "checkpoint"
    shutil.copytree(checkpoint_directory(None), copy)
    before = sorted(path.name for path in copy.iterdir())
    assert "is not the record of a run" in refused(capsys, f"--run_dir={copy}")
    assert sorted(path.name for path in copy.iterdir()) == before


def test_a_full_disk_is_one_line_and_another_status(capsys, tmp_path, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    assert main(["main", f"--run_dir={tmp_path / 'run'}"]) == 6
    assert capsys.readouterr().err == "error: [Errno 28] No space left on device\n"


def test_a_damaged_journal_is_named_before_anything_heavy(capsys, tmp_path):
    config = RunConfig()
    (tmp_path / "journal").mkdir()
    open_config(tmp_path, config, read_parts(config).inputs)
    (tmp_path / "journal" / "000000.json").write_text("{")
    assert "000000.json: not JSON" in refused(capsys, f"--run_dir={tmp_path}")


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
    arguments.append("--prompts_per_step=2")
    assert main(arguments) == 0
    assert "2 bad rows left out" in capsys.readouterr().out


def test_a_step_needs_different_tasks(capsys, tmp_path):
    write_tasks(tmp_path / "tasks")
    message = refused(capsys, f"--task_dir={tmp_path / 'tasks'}", *LIMITS)
    assert "--prompts_per_step=24: the weight split holds 4 tasks" in message
    assert "0 takes all" in refused(capsys, f"--task_dir={tmp_path / 'tasks'}")


def test_overlapping_splits_are_refused(capsys, tmp_path):
    row = json.dumps({"question": "The same?", "answers": ["x"]})
    write_tasks(tmp_path / "tasks", weight=[row], test=[row])
    assert "weight and test share 1 task(s)" in refused(capsys, f"--task_dir={tmp_path / 'tasks'}", *LIMITS)


def test_a_run_directory_that_cannot_be_written(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    message = refused(capsys, f"--run_dir={tmp_path / 'file' / 'run'}")
    assert f"--run_dir={tmp_path / 'file' / 'run'}: cannot be written" in message


def test_a_dry_run_looks_at_the_run_directory_too(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    assert "cannot be written" in refused(capsys, "--dry_run", f"--run_dir={tmp_path / 'file' / 'run'}")
    assert "is no run directory" in refused(capsys, "--dry_run", f"--run_dir={tmp_path}")
    run = tmp_path / "run"
    run.mkdir()
    config = RunConfig()
    open_config(run, config, read_parts(config).inputs)
    assert "--seed was 0, is 3" in refused(capsys, "--dry_run", f"--run_dir={run}", "--seed=3")
    assert main(["main", "--dry_run", f"--run_dir={run}"]) == 0
    assert [path.name for path in run.iterdir()] == ["config.json"]


def test_somebody_elses_folder_is_left_alone(capsys, tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    assert "is no run directory" in refused(capsys, f"--run_dir={tmp_path}")
    assert (tmp_path / "thesis.tex").read_text() == "precious"
