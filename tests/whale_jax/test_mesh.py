"""Training on a mesh: refused by name where it does not fit, and a run on it is a run like any other."""

import asyncio

import jax
import pytest

import whale_jax.hand_over
from tests.whale_jax.small_world import MODEL, OnAMesh, OnThisHost, export, outcome, settings, small_run, whole
from whale_jax.config import ConfigError, RunConfig
from whale_jax.main import main
from whale_jax.mesh import make_placement

TWO = {"mesh_fsdp": 2, "rows": 2}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"mesh_fsdp": 3},
            "--mesh_data=1 --mesh_fsdp=3 --mesh_tensor=1: their product must be the number of devices, 2",
        ),
        ({"mesh_fsdp": 2, "rows": 3}, r"--rows=3: data \(1\) x fsdp \(2\) does not divide the rows of a batch: 3"),
        ({"mesh_tensor": 2, "rows": 3}, r"tensor \(2\) does not divide the key/value heads: 1"),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        make_placement(RunConfig.from_values(changes), MODEL)


def test_it_is_refused_before_anything_heavy(capsys, monkeypatch):
    monkeypatch.setattr("whale_jax.assemble.load_domain", None)
    assert main(["main", "--mesh_data=5", "--dry_run"]) == 2
    assert "error: --mesh_data=5 --mesh_fsdp=1 --mesh_tensor=1: their product" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_processes": 2}, "--num_processes=2 needs a mesh over all devices"),
        ({"coordinator_address": "a:1"}, "--coordinator_address needs --num_processes"),
        ({"coordinator_address": "a", "num_processes": 2, "mesh_data": 2}, "must be host:port, got 'a'"),
        ({"process_id": 1, "num_processes": 2, "mesh_data": 2}, "--process_id needs --coordinator_address"),
        ({"process_id": 2, "num_processes": 2, "mesh_data": 2}, "--process_id must be < --num_processes"),
        ({"host_timeout_seconds": 0.5}, "--host_timeout_seconds must be >= 1"),
    ],
)
def test_settings_of_processes_that_contradict_each_other_are_named(changes, message):
    with pytest.raises(ConfigError, match=message):
        RunConfig.from_values(changes)


def test_mesh_and_processes_are_outside_the_configuration_hash():
    other = {"mesh_data": 2, "num_processes": 2, "coordinator_address": "a:1", "process_id": 1}
    assert RunConfig.from_values(other).hash() == RunConfig().hash()
    assert RunConfig().mesh.sizes is None
    assert RunConfig.from_values({"mesh_fsdp": 2}).mesh.sizes == (1, 2, 1)


def test_a_run_on_a_mesh_is_cut_and_goes_on_to_the_same_end(tmp_path, monkeypatch):
    monkeypatch.setattr(whale_jax.hand_over, "export_checkpoint", export)
    monkeypatch.setattr("tests.whale_jax.small_world.Driver", OnThisHost)
    config = settings(**TWO)
    outcomes = []
    for name, stops in (("whole", ["never"]), ("cut", ["weight_phase", "search_phase", "never"])):
        for stop in stops:
            job = RunConfig.from_values({**config.values(), "stop_after": stop})
            with small_run(tmp_path / name, job, gradient=OnAMesh((1, 2, 1))) as run:
                if stop == "never":
                    asyncio.run(whole(run))
                    shardings = {leaf.sharding for leaf in jax.tree.leaves(run.policy.weights_at(run.policy.step)[0])}
                    assert all(len(sharding.device_set) == 2 for sharding in shardings)
                else:
                    with pytest.raises(Exception, match=stop):
                        asyncio.run(whole(run))
        outcomes.append(outcome(tmp_path / name))
    assert outcomes[0] == outcomes[1]
    assert len({name for name in outcomes[0] if name.startswith("journal/")}) > 8
