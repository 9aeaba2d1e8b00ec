"""A run in several processes, each with two devices: the same journal, one end for all, and no process left behind."""

import json
import signal
import subprocess
import sys

import numpy as np
import pytest

from tests.whale_jax.demo_run import environment
from tests.whale_jax.hosts.job import Job, free_port
from tests.whale_jax.small_world import outcome

MESH = ("--mesh_fsdp=4",)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The outcome of the run in one process, with the devices and the mesh that several have together."""
    directory = tmp_path_factory.mktemp("alone") / "run"
    Job(directory, 1, *MESH).succeeds()
    return outcome(directory)


def test_two_processes_make_the_run_of_one_and_again(alone, tmp_path):
    jobs = [Job(tmp_path / name, 2, *MESH) for name in ("once", "again")]
    for job in jobs:
        job.succeeds()
    assert outcome(tmp_path / "once") == outcome(tmp_path / "again") == alone
    lines = [json.loads(line) for line in (tmp_path / "once" / "metrics.jsonl").read_text().splitlines()]
    accounts = [line for line in lines if line["kind"] == "account"]
    assert all({"host_0_idle_seconds", "host_1_idle_seconds", "host_idle_share"} <= set(line) for line in accounts)
    assert not (tmp_path / "once" / "unfinished").exists()


def test_four_processes_make_it_too(alone, tmp_path):
    Job(tmp_path / "run", 4, "--mesh_data=2", *MESH).succeeds()
    assert outcome(tmp_path / "run") == alone


@pytest.mark.parametrize("dies", [0, 1])
def test_one_process_killed_ends_all_and_the_next_job_goes_on(alone, tmp_path, dies):
    ends = Job(tmp_path / "run", 2, *MESH, DIE=f"{dies}.KILL.5").ends()
    assert ends[dies][0] == -9
    status, error = ends[1 - dies]
    assert status == 3 or (dies == 0 and status == -signal.SIGABRT), ends  # JAX aborts too, and may be the first
    assert status != 3 or f"host {dies} (127.0.0.1) is lost: " in error
    if dies == 0:
        Job(tmp_path / "run", 2, *MESH).succeeds()
        assert outcome(tmp_path / "run") == alone


def test_sigterm_on_any_process_ends_all_and_changes_nothing(alone, tmp_path):
    ends = Job(tmp_path / "run", 2, *MESH, DIE="1.TERM.9").ends()
    assert [status for status, _ in ends] == [5, 5], ends
    Job(tmp_path / "run", 2, *MESH).succeeds()
    assert outcome(tmp_path / "run") == alone


def test_processes_with_other_flags_do_not_begin(tmp_path):
    ends = Job(tmp_path / "run", 2, *MESH, own={1: ("--seed=7", "--candidates=1")}).ends()
    assert [status for status, _ in ends] == [2, 2], ends
    for _, error in ends:
        assert "host 1: --seed is 7 there, 0 here" in error
        assert "host 1: --candidates is 1 there, 2 here" in error
    assert not (tmp_path / "run" / "journal").exists()


def test_who_does_not_find_the_others_says_so_and_ends(tmp_path):
    """The bound is five minutes; here it is one second."""
    code = "import sys, whale_jax.main as job, whale_jax.hosts.join as j; j.JOIN_SECONDS = 1; job.main(sys.argv)"
    flags = ("--num_processes=2", f"--coordinator_address=127.0.0.1:{free_port()}", "--process_id=1", *MESH)
    done = subprocess.run(
        [sys.executable, "-c", code, *flags], env=environment(tmp_path), capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 3
    assert "--process_id=1: not all processes were there within 1 s" in done.stderr


def test_a_training_step_over_processes_is_one_processs_up_to_rounding(tmp_path):
    """At a learning rate of 1e-2, of weights around 0.1: within 2e-5, after two steps of AdamW in fp32."""
    for name, count in (("one", 1), ("two", 2)):
        Job(
            tmp_path / f"{name}.npz", count, "--mesh_fsdp=4", "--rows=4", module="tests.whale_jax.hosts.one_step"
        ).succeeds()
    one, two = (np.load(tmp_path / f"{name}.npz") for name in ("one", "two"))
    assert one.files == two.files
    for name in one.files:
        np.testing.assert_allclose(two[name], one[name], rtol=1e-5, atol=2e-5, err_msg=name)
