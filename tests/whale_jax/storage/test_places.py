"""Everything that a run reads and writes in a bucket: the main job and the commands around it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.object_store import Stored
from tests.whale_jax.demo_run import ONE_DEVICE, SMALL, environment
from whale_jax import compare
from whale_jax.assemble import checkpoint_directory
from whale_jax.config import ConfigError
from whale_jax.domains import searchqa
from whale_jax.export import main as export
from whale_jax.main import main
from whale_jax.report.__main__ import main as report
from whale_jax.storage.bucket import BucketError
from whale_jax.storage.inputs import local_file, local_folder
from whale_jax.storage.opening import try_writing

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
DEMO = checkpoint_directory(None)
FLAGS = ("--weight_budget_epochs=0.34", "--validation_samples=1", "--test_samples=1", "--schedule=weight_only")
"""One training step."""


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """This machine's cache is the test's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def put(store, folder: Path, prefix: str) -> None:
    for path in folder.iterdir():
        store.buckets["lab"][f"{prefix}/{path.name}"] = Stored(path.read_bytes(), 1, {})


def test_a_folder_is_fetched_once_and_follows_the_bucket(store, machine, tmp_path):
    assert local_folder("checkpoint", "somewhere") == Path("somewhere")
    put(store, DEMO, "model")
    folder = local_folder("checkpoint", "gs://lab/model/")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        path.name: path.read_bytes() for path in DEMO.iterdir()
    }
    store.requests.clear()
    store.buckets["lab"]["model/README.md"] = Stored(b"another", 2, {})
    del store.buckets["lab"]["model/chat_template.jinja"]
    assert local_folder("checkpoint", "gs://lab/model") == folder
    assert [path for _, path in store.requests if "/download/" in path or "alt=media" in path] == [
        "/download/storage/v1/b/lab/o/model%2FREADME.md?alt=media&ifGenerationMatch=2"
    ]
    assert (folder / "README.md").read_bytes() == b"another"
    assert not (folder / "chat_template.jinja").exists()
    assert local_folder("checkpoint", "gs://lab/model", str(tmp_path / "else")).is_relative_to(tmp_path / "else")
    assert local_file("harness", "gs://lab/model/config.json").read_bytes() == (DEMO / "config.json").read_bytes()


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (("--checkpoint=gs://lab/nothing",), "--checkpoint=gs://lab/nothing: there is nothing there"),
        (("--checkpoint=gs://nowhere/model",), "there is no bucket gs://nowhere: make it"),
        (("--harness=gs://lab/h.py",), "--harness=gs://lab/h.py: there is no such object"),
        (("--task_dir=gs://lab",), "--task_dir=gs://lab: there is nothing there"),
        (("--run_dir=gs://lab/x", "--fork_from=runs/a@3"), "--run_dir=gs://lab/x: must be local here"),
        (("--fork_from=gs://lab/a@3",), "--fork_from=gs://lab/a@3: must be local here"),
        (("--run_dir=gs://nowhere/x",), "there is no bucket gs://nowhere: make it"),
        (("--run_dir=gs://nowhere/x", "--dry_run"), "there is no bucket gs://nowhere: make it"),
    ],
)
def test_what_is_not_there_is_said_in_one_line(store, machine, capsys, flags, text):
    assert main(["main", *flags]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert text in lines[0]


def test_a_bucket_that_cannot_be_reached_has_a_status_of_its_own(store, machine, capsys, monkeypatch):
    store.fault = lambda method, path: 503
    assert main(["main", "--run_dir=gs://lab/x", "--bucket_seconds=0.5"]) == 8
    assert "gs://lab/x" in capsys.readouterr().err
    monkeypatch.setattr("whale_jax.storage.inputs.SECONDS", 0.5)
    assert main(["main", "--checkpoint=gs://lab/model"]) == 8


def test_a_dry_run_looks_and_writes_nothing(store, machine, capsys):
    assert main(["main", "--run_dir=gs://lab/x", "--dry_run"]) == 0
    assert store.objects() == {}
    store.buckets["lab"]["x/notes.txt"] = Stored(b"mine", 1, {})
    assert main(["main", "--run_dir=gs://lab/x", "--dry_run"]) == 2
    assert "--run_dir=gs://lab/x: holds notes.txt and is no run directory" in capsys.readouterr().err


def test_the_doctor_tries_to_write_and_leaves_nothing(store):
    try_writing("gs://lab/x")
    try_writing("here")
    assert store.objects() == {}
    assert [method for method, path in store.requests if "/o" in path] == ["POST", "DELETE"]
    store.fault = lambda method, path: 403 if method == "POST" else None
    with pytest.raises(BucketError, match=r"forbidden: this account needs roles/storage\.objectUser on gs://lab"):
        try_writing("gs://lab/x")


def test_an_export_to_a_place_that_is_taken_is_refused(store, machine, tmp_path, capsys):
    put(store, DEMO, "model")
    assert export(["export", f"--run_dir={tmp_path}", "--out=gs://lab/model"]) == 2
    assert "--out=gs://lab/model: holds README.md" in capsys.readouterr().err
    assert export(["export", "--run_dir=gs://lab/none", "--out=gs://lab/out"]) == 2
    assert "gs://lab/none: holds no run" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_whole_run_and_the_commands_around_it(store, machine, cache, tmp_path, capsys):
    put(store, DEMO, "model")
    store.buckets["lab"]["h0.py"] = Stored(Path(searchqa.__path__[0], "h0.py").read_bytes(), 1, {})
    flags = ("--run_dir=gs://lab/runs/a", "--checkpoint=gs://lab/model", "--harness=gs://lab/h0.py", *SMALL, *FLAGS)
    done = subprocess.run(
        [sys.executable, "-m", "whale_jax.main", *flags, f"--work_dir={tmp_path / 'copies'}"],
        env=environment(cache) | ONE_DEVICE, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "run directory gs://lab/runs/a, working copy" in done.stdout
    objects = store.objects()
    assert {"runs/a/summary.json", "runs/a/report.html"} <= set(objects)
    manifest = json.loads(objects["runs/a/export/manifest.json"])
    assert json.loads(objects["runs/a/config.json"])["settings"]["checkpoint"] == "gs://lab/model"

    assert export(["export", "--run_dir=gs://lab/runs/a", "--out=gs://lab/out"]) == 0
    exported = {name.removeprefix("out/"): data for name, data in store.objects().items() if name.startswith("out/")}
    assert exported == {
        name.removeprefix("runs/a/export/checkpoint/"): data
        for name, data in objects.items()
        if name.startswith("runs/a/export/checkpoint/")
    }
    assert {f"checkpoint/{name}" for name in exported} | {"harness.py"} == set(manifest["files"])
    capsys.readouterr()
    assert compare.main(["compare", "gs://lab/runs/a", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["runs"]) == 1
    assert report(["report", "gs://lab/runs/a", f"--out={tmp_path / 'report.html'}"]) == 0
    assert (tmp_path / "report.html").stat().st_size > 1000


def test_a_place_must_be_one():
    with pytest.raises(ConfigError, match="--checkpoint=gs://: must be gs://bucket/prefix"):
        local_folder("checkpoint", "gs://")
