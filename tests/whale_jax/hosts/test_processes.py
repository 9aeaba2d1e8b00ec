"""A run in several processes, each with two devices: the same journal, one end for all, and no process left behind."""

import json
import signal
import subprocess
import sys

import numpy as np
import pytest

from tests.object_store import serving
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


@pytest.mark.parametrize(
    ("trouble", "status", "text"),
    [("disk.9", 6, "No space left on device"), ("proposer.2", 9, "the proposer's model cannot be reached")],
)
def test_trouble_of_process_0_ends_all_with_its_status_and_the_next_job_goes_on(alone, tmp_path, trouble, status, text):
    """The next job is one process: who carries a run on makes no difference."""
    ends = Job(tmp_path / "run", 2, *MESH, FAIL=trouble).ends()
    assert [ended for ended, _ in ends] == [status, status], ends
    assert text in ends[0][1]
    written = outcome(tmp_path / "run")
    assert 0 < len(written) < len(alone)
    assert all(alone[name] == data for name, data in written.items() if name.startswith("journal/"))
    Job(tmp_path / "run", 1, *MESH).succeeds()
    assert outcome(tmp_path / "run") == alone


def test_a_bucket_that_is_lost_ends_all_and_the_next_job_goes_on(alone, tmp_path):
    with serving("lab") as store:
        where = {"STORAGE_EMULATOR_HOST": store.url, "XDG_CACHE_HOME": str(tmp_path)}
        cut = lambda method, path: 503 if len(store.buckets["lab"]) > 40 else None  # noqa: E731
        store.fault = cut
        flags = (*MESH, "--bucket_seconds=1")
        ends = Job("gs://lab/run", 2, *flags, compiled=tmp_path / "compiled", **where).ends()
        assert [status for status, _ in ends] == [8, 8], ends
        assert "gs://lab/run" in ends[0][1]
        store.fault = lambda method, path: None
        for name, data in store.objects().items():
            if name.startswith("run/journal/"):
                assert alone[name.removeprefix("run/")] == data
        Job("gs://lab/run", 1, *flags, compiled=tmp_path / "compiled", **where).succeeds()
        (copy,) = (tmp_path / "whale_jax" / "runs").glob("lab_run_*")
        assert outcome(copy) == alone
        assert all(store.objects()[f"run/{name}"] == data for name, data in alone.items())


def test_phases_on_two_hosts_and_on_one_in_turn_make_the_run_of_both(alone, tmp_path):
    """The pod trains, one host with one device searches; weights are handed over to the bit, so all else is equal."""
    directory = tmp_path / "run"
    kinds: list[str] = []
    for count, stop, others in ((2, "weight_phase", "search"), (1, "search_phase", "weight"), (2, "never", "")):
        mesh, devices = (MESH, 0) if count == 2 else (("--mesh_fsdp=1",), 1)
        Job(directory, count, *mesh, f"--stop_after={stop}", devices=devices).succeeds()
        there = [json.loads(path.read_text())["kind"] for path in sorted((directory / "journal").iterdir())]
        assert others not in there[len(kinds) :]
        kinds = there
    assert outcome(directory) == alone


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
