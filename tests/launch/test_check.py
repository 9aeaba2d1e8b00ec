"""launch/tpu/check.py: what counts as fit, and what is said where it is not."""

import importlib.util
import json
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "launch" / "tpu" / "check.py"


@pytest.fixture
def check():
    spec = importlib.util.spec_from_file_location("check", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_devices_of_the_wanted_platform_are_fit_and_others_are_not(check, monkeypatch):
    monkeypatch.setenv("WHALE_CHECK_PLATFORM", "cpu")
    assert check.devices(1) == ("2 cpu of 2", "")
    monkeypatch.delenv("WHALE_CHECK_PLATFORM")
    assert check.devices(1)[1] == "JAX sees cpu, not tpu"


@pytest.mark.parametrize(
    ("backend", "escapes", "wrong"),
    [
        ("bubblewrap", [], ""),
        ("bubblewrap", ["network"], "sandbox: escaped by network"),
        ("landlock", [], "sandbox: landlock instead of bubblewrap"),
        (None, [], "sandbox: no backend works here"),
    ],
)
def test_the_sandbox_is_fit_when_bubblewrap_holds(check, monkeypatch, backend, escapes, wrong):
    report = {"backend": backend, "attempts": [{}], "escapes": escapes, "error": "no backend works here\nat all"}

    def answer(command, **_):
        return subprocess.CompletedProcess(command, 0, stdout=json.dumps(report))

    monkeypatch.setattr(check.subprocess, "run", answer)
    assert check.sandbox()[1] == wrong
