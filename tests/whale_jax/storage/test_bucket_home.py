"""A run whose directory is in a bucket ends as on a disk, whatever happens to its machine, and never runs twice."""

import asyncio
import contextlib
import gc
import json
import shutil
import threading
import time
from fnmatch import fnmatch

import pytest

import whale_jax.hand_over
from tests.object_store import Stored
from tests.whale_jax.small_world import INPUTS, export, outcome, settings, small_run, whole
from whale_jax.config import ConfigError
from whale_jax.rundir import open_config
from whale_jax.settings import RunSettings
from whale_jax.storage import lease, opening
from whale_jax.storage.bucket import BucketError, BucketUnreachable, Conflict
from whale_jax.storage.gcs import GcsBucket
from whale_jax.storage.lease import RunLost
from whale_jax.storage.opening import run_home

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
URL = "gs://lab/runs/a"


class Killed(KeyboardInterrupt):
    """Stands for the loss of the machine: no handler of errors sees it."""


@pytest.fixture(autouse=True)
def short_export(monkeypatch):
    monkeypatch.setattr(whale_jax.hand_over, "export_checkpoint", export)


def opened(folder, url=URL, seconds=5.0):
    return run_home(RunSettings(run_dir=url, work_dir=str(folder), bucket_seconds=seconds), say=lambda text: None)


def job(folder, seconds=5.0, **changes):
    """A job on the machine that has this folder, to the end of the run."""
    config = settings(**changes)
    with opened(folder, seconds=seconds) as home:
        open_config(home.directory, config, INPUTS)
        with small_run(home.directory, config, home=home) as run:
            asyncio.run(whole(run))
        return home.directory


def in_bucket(store, prefix="runs/a/"):
    """What `outcome` tells of a folder, of the bucket."""
    kept = ("journal/*", "cycle_*/search/candidates/*", "cycle_*/search/iterations/*", "evals/*", "export/*",
            "checkpoints/*/meta.json")  # fmt: skip
    found = {name.removeprefix(prefix): data for name, data in store.objects().items()}
    return {name: data for name, data in found.items() if any(fnmatch(name, pattern) for pattern in kept)}


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory):
    """The outcome of the run on a disk."""
    directory = tmp_path_factory.mktemp("on_disk") / "run"
    with pytest.MonkeyPatch.context() as patch, small_run(directory, settings()) as run:
        patch.setattr(whale_jax.hand_over, "export_checkpoint", export)
        asyncio.run(whole(run))
    return outcome(directory)


def test_a_run_in_a_bucket_is_the_run_on_a_disk(store, tmp_path, on_disk):
    directory = job(tmp_path / "here")
    assert outcome(directory) == in_bucket(store) == on_disk
    names = store.objects()
    assert "runs/a/.lock" not in names
    assert {"runs/a/config.json", "runs/a/metrics.jsonl"} < set(names)
    assert not any("workspace" in name or "/." in name for name in names)
    elsewhere = job(tmp_path / "there")  # follows the journal, writes nothing new
    assert outcome(elsewhere) == on_disk
    assert not list(elsewhere.glob("checkpoints/2/state/*"))  # nobody asked for its arrays


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_machine_is_lost_at_any_write_and_it_or_another_goes_on(store, tmp_path, on_disk, monkeypatch):
    """Right before a write or after it, of evidence, entries, checkpoints and signs of life alike."""
    original, guard = GcsBucket.write, threading.Lock()
    places = iter([5, 22, 13, 40, 31, 8, 27, 50, 1000])
    count, strike, dead = 0, next(places), False

    def end():  # silent in the thread of the signs of life, as nobody waits for it
        return SystemExit() if threading.current_thread().name == "lease" else Killed()

    def write(self, name, content, *, generation):
        nonlocal count, dead
        with guard:
            count += 1
            mine = count
            if dead or (mine == strike and mine % 2):
                dead = True
                raise end()
        result = original(self, name, content, generation=generation)
        with guard:
            if dead or mine == strike:
                dead = True
                raise end()
        return result

    monkeypatch.setattr(GcsBucket, "write", write)
    monkeypatch.setattr(lease.Lease, "release", lambda self: self._over.set())  # who is lost releases nothing
    monkeypatch.setattr(opening, "LEASE_SECONDS", 0.6)
    lost = 0
    while True:
        count = 0
        try:
            job(tmp_path / f"machine{lost // 2}")
        except Killed:
            lost += 1
            gc.collect()
            for name, data in in_bucket(store).items():
                if name.startswith("journal/"):
                    assert on_disk[name] == data
            strike, dead = next(places), False
            continue
        break
    assert lost >= 5
    assert in_bucket(store) == on_disk


def test_who_lives_keeps_the_run_and_who_does_not_loses_it(store, tmp_path, monkeypatch):
    monkeypatch.setattr(opening, "LEASE_SECONDS", 0.6)
    with opened(tmp_path / "one") as one:
        open_config(one.directory, settings(), INPUTS)
        one.commit(one.directory / "0.json", b"0")
        with pytest.raises(
            ConfigError, match=r"--run_dir=gs://lab/runs/a: another process is working on this run: process"
        ):
            opened(tmp_path / "two").__enter__()
        with pytest.raises(ConfigError, match="another process is working on this run"):
            opened(tmp_path / "one").__enter__()
    with opened(tmp_path / "one") as one:
        silent = one._lease
        monkeypatch.setattr(
            silent, "_renew", lambda bucket, renew=silent._renew: bucket is silent._bucket and renew(bucket)
        )
        with opened(tmp_path / "two") as two:
            two.commit(two.directory / "1.json", b"by the second")
            with pytest.raises(RunLost, match="has taken this run over"):
                one.commit(one.directory / "1.json", b"by the first")
    assert store.objects()["runs/a/1.json"] == b"by the second"


def test_a_late_entry_and_late_evidence_are_never_written_over_anothers(store, tmp_path):
    with opened(tmp_path / "one") as home:
        open_config(home.directory, settings(), INPUTS)
        home.publish()
        store.buckets["lab"]["runs/a/journal/000000.json"] = Stored(b"theirs", 7, {})
        (home.directory / "journal").mkdir()
        with pytest.raises(FileExistsError):
            home.commit(home.directory / "journal/000000.json", b"ours")
        store.buckets["lab"]["runs/a/evals/0.json"] = Stored(b"theirs", 8, {})
        (home.directory / "evals").mkdir()
        (home.directory / "evals/0.json").write_bytes(b"ours")
        with pytest.raises(Conflict, match="another process has written it"):
            home.publish()
    assert store.objects()["runs/a/evals/0.json"] == b"theirs"


def test_an_unreachable_bucket_ends_the_job_and_the_next_one_goes_on(store, tmp_path, on_disk):
    refused = threading.Event()

    def fault(method, path):
        if "journal%2F000003" in path or refused.is_set() or (method == "POST" and len(in_bucket(store)) > 30):
            refused.set()
            return 503
        return None

    store.fault = fault
    started = time.monotonic()
    with pytest.raises(BucketUnreachable, match="not reached within 1 s"):
        job(tmp_path / "one", seconds=1.0)
    assert refused.is_set()
    assert time.monotonic() - started < 60
    store.fault = lambda method, path: None
    assert outcome(job(tmp_path / "one")) == in_bucket(store) == on_disk


def test_what_is_cut_counts_as_not_there(store, tmp_path, on_disk):
    job(tmp_path / "one")
    objects = store.buckets["lab"]
    whole_candidate = [name for name in objects if "candidates/001/" in name]
    assert len(whole_candidate) > 2
    objects["runs/a/checkpoints/9/state/d/x"] = objects["runs/a/cycle_001/search/candidates/002/harness.py"] = Stored(
        b"x", 5, {}
    )
    directory = job(tmp_path / "two")
    assert "runs/a/checkpoints/9/state/d/x" not in objects
    assert not (directory / "checkpoints/9").exists()
    assert outcome(directory) == in_bucket(store) == on_disk


def test_checkpoints_that_are_not_kept_leave_the_bucket_after_the_next_commit(store, tmp_path):
    job(tmp_path / "one", keep_every=0, keep_last=1)
    steps = {name.split("/")[3] for name in store.objects() if name.startswith("runs/a/checkpoints/")}
    here = {path.name for path in next(tmp_path.glob("one/runs/*")).glob("checkpoints/*")}
    assert steps == here
    assert len(steps) < 4


def test_a_checkpoint_with_other_bits_takes_the_place_of_one_as_a_whole(store, tmp_path, monkeypatch):
    with opened(tmp_path / "one") as home:
        open_config(home.directory, settings(), INPUTS)
        home.publish()
        step = home.directory / "checkpoints" / "2"
        (step / "state").mkdir(parents=True)
        for name, data in (("state/a", b"1"), ("state/b", b"1"), ("meta.json", b"1")):
            (step / name).write_bytes(data)
        home.publish(step)
        shutil.rmtree(step)
        (step / "state").mkdir(parents=True)
        for name, data in (("state/a", b"22"), ("state/c", b"22"), ("meta.json", b"22")):
            (step / name).write_bytes(data)
        store.requests.clear()
        home.publish(step)
        changed = [(method, path) for method, path in store.requests if method != "GET"]
        assert changed[0][0] == "DELETE"
        assert "meta.json" in changed[0][1]
    kept = {name: data for name, data in store.objects().items() if "/checkpoints/" in name}
    assert kept == {f"runs/a/checkpoints/2/{name}": b"22" for name in ("state/a", "state/c", "meta.json")}


def test_what_is_no_run_directory_is_refused_before_anything_is_fetched(store, tmp_path):
    store.buckets["lab"]["runs/a/model.safetensors"] = Stored(b"x" * 100, 5, {})
    with pytest.raises(
        ConfigError, match=r"--run_dir=gs://lab/runs/a: holds model.safetensors and is no run directory"
    ):
        opened(tmp_path).__enter__()
    assert not any("alt=media" in path and "model" in path for _, path in store.requests)
    for url in ("gs://", "gs:///a", "gs://lab/a//b", "gs://lab/../b"):
        with pytest.raises(ConfigError, match="must be gs://bucket/prefix"):
            opened(tmp_path, url).__enter__()


def test_an_object_cannot_name_a_file_outside_the_folder(store, tmp_path):
    store.buckets["lab"]["runs/a/config.json"] = Stored(b"{}", 5, {})
    store.buckets["lab"]["runs/a/x/../../../../escaped"] = Stored(b"x", 5, {})
    with opened(tmp_path / "two") as home:
        assert [path.name for path in home.directory.iterdir() if path.is_dir()] == []
    store.buckets["lab"]["runs/a/x//y"] = Stored(b"x", 5, {})
    with pytest.raises(BucketError, match="x//y: no file can have this name; remove the object"):
        opened(tmp_path / "two").__enter__()
    assert not list(tmp_path.rglob("escaped"))


def test_what_the_bucket_does_not_have_is_not_the_runs(store, tmp_path, on_disk):
    directory = job(tmp_path / "one")
    (directory / "evals" / "000099.json").write_text("of another life")
    (directory / "checkpoints" / "9").mkdir()
    changed = directory / "evals" / "000000.json"
    changed.write_bytes(b"?" * changed.stat().st_size)
    assert outcome(job(tmp_path / "one")) == on_disk


def test_the_lock_tells_who_holds_it(store, tmp_path):
    with opened(tmp_path), contextlib.suppress(KeyError):
        told = json.loads(store.objects()["runs/a/.lock"])
        assert set(told) == {"owner", "home", "host", "pid"}
