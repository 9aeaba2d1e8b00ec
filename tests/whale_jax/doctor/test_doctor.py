"""The page from the command line, on the demo checkpoint, and what a broken one changes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from whale_jax.assemble import checkpoint_directory
from whale_jax.doctor.__main__ import Doctor, main
from whale_jax.doctor.page import ok
from whale_jax.plan.calibration import Calibration
from whale_jax.plan.programs import Step

ROOT = Path(__file__).parents[3]
QUICK = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_backend_optimization_level=0"}
SMALL = ("--probe=small", "--json")


def doctor(*arguments, cwd):
    command = [sys.executable, "-m", "whale_jax.doctor", *arguments]
    env = os.environ | QUICK | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_demo_goes(tmp_path):
    """All checks; the whole path from weights to a measured calibration."""
    done = doctor(*SMALL, "--calibration_out=measured.json", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    *lines, last = done.stdout.splitlines()
    assert lines[-1].startswith("GO: ")
    found = json.loads(last)
    marks = {one["name"]: one["mark"] for one in found["verdicts"]}
    checks = "devices versions sandbox config tokens template tasks disk run_dir logits export extend decode swap train"
    assert marks.keys() >= set(checks.split())
    assert "FAIL" not in marks.values()
    assert found["measured"].keys() == {"train", "extend", "decode"}
    assert all(one["bytes"] > 0 and one["planned_bytes"] > 0 for one in found["measured"].values())
    calibration = Calibration.read(tmp_path / "measured.json")
    assert {step: found["measured"][step.value]["factor"] for step in Step} == calibration.factors
    assert [path.name for path in tmp_path.iterdir()] == ["measured.json"], "nothing else is left behind"


def test_what_is_wrong_with_a_checkpoint_is_on_the_page(tmp_path):
    """No weights and no tokenizer: the rest is looked at all the same."""
    broken = tmp_path / "broken"
    broken.mkdir()
    shutil.copy(checkpoint_directory(None) / "config.json", broken)
    done = doctor("--checkpoint=broken", "--sandbox=none", *SMALL, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    failed = [one["name"] for one in found["verdicts"] if one["mark"] == "FAIL"]
    assert failed == ["tokens", "weights"]
    assert "NO-GO: tokens, weights failed" in done.stdout


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--slots=0", "--slots must be >= 1, got 0"),
        ("--checkpoint=nowhere", "--checkpoint=nowhere: no config.json there"),
    ],
)
def test_settings_are_checked_first(capsys, argument, message):
    assert main(["doctor", argument]) == 2
    out, err = capsys.readouterr()
    assert (out, message in err) == ("", True)


def test_what_was_not_measured_is_not_written(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(Doctor, "examine", lambda self: iter([ok("devices", "one")]))
    assert main(["doctor", f"--calibration_out={tmp_path / 'c.json'}"]) == 1
    assert "not written, since not every step was measured" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
