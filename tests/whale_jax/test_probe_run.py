"""A whole run under `--schedule=probe`: it ends, and an interrupted one ends the same."""

import json

import pytest

from tests.whale_jax.demo_run import complete, outcome
from whale_jax.journal import Journal

PROBE = (
    "--schedule=probe",
    "--probe_steps=1",
    "--weight_budget_epochs=0.67",
    "--weight_phase_epochs=0.34",
    "--search_budget_iterations=2",
    "--checkpoint_every=1",
    "--validation_samples=1",
    "--test_samples=1",
)
"""Two training steps, each a phase of its own."""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_that_probes_ends_the_same_when_it_is_interrupted(cache, tmp_path):
    complete(tmp_path / "whole", cache, *PROBE)
    complete(tmp_path / "cut", cache, *PROBE, "--stop_after=weight_phase")
    assert not (tmp_path / "cut" / "summary.json").exists()
    complete(tmp_path / "cut", cache, *PROBE)
    assert outcome(tmp_path / "cut") == outcome(tmp_path / "whole")
    assert not (tmp_path / "cut" / "probe").exists()
    entries = Journal(tmp_path / "whole" / "journal").entries
    probes = [entry for entry in entries if entry["kind"] == "probe"]
    assert probes[0]["rollouts"] == 4 * 2 + 3 * 4
    phases = [entry["kind"] for entry in entries if entry["kind"] in ("weight", "search")]
    assert {"weight": "weights", "search": "search"}[phases[0]] == probes[0]["better"]
    spent = json.loads((tmp_path / "cut" / "summary.json").read_text())["account"]
    assert spent["jobs"] == 2
    assert spent["total"]["measured"] == spent["total"]["commits"] == len(entries)
    assert spent["total"]["rollouts"] == sum(entry.get("rollouts", entry.get("episodes", 0)) for entry in entries)
