"""setup.sh and data.sh: what reaches the workers, how it is checked, and who is named when it fails."""

import hashlib
import subprocess

import pytest


def test_every_worker_gets_head_and_its_environment_and_one_line(cloud):
    cloud.say(queued={"states": ["ACTIVE"], "workers": 2, "type": "v5litepod-16"})
    done = cloud.run("setup", "--extras=tpu,math")
    assert done.returncode == 0, done.stderr
    head, first, second = done.stdout.splitlines()
    assert head.split() == ["worker", "python", "devices", "sandbox", "verdict"]
    assert (first.split()[0], second.split()[0]) == ("0", "1")
    assert "none escaped" in first
    assert first.endswith("fit")
    commit = subprocess.check_output(["git", "-C", str(cloud.checkout), "rev-parse", "HEAD"], text=True)
    for worker in (0, 1):
        whale = cloud.home(worker) / "whale"
        assert (whale / "commit").read_text() == commit
        assert (whale / "configs" / "run.flags").read_text() == "# a run\n--domain=searchqa\n"
        lines = (cloud.folder / f"environment-{worker}").read_text().splitlines()
        assert lines[0] == "tpu,math|python -c "
        assert lines[1].endswith("launch/tpu/check.py 2")


def test_again_it_replaces_the_code_and_keeps_the_environment(cloud):
    cloud.active()
    code = cloud.home() / "whale" / "code"
    (code / ".venv").mkdir()
    (code / "stale.py").write_text("")
    assert cloud.run("setup").returncode == 0
    assert (code / ".venv").is_dir()
    assert not (code / "stale.py").exists()


def test_uncommitted_changes_are_refused_or_left_out(cloud):
    cloud.say(queued={"states": ["ACTIVE"], "workers": 1, "type": "v5litepod-8"})
    (cloud.checkout / "new.py").write_text("")
    done = cloud.run("setup")
    assert done.returncode == 2
    assert "uncommitted changes" in done.stderr
    assert not cloud.calls()
    assert cloud.run("setup", "--allow_uncommitted").returncode == 0
    assert not (cloud.home() / "whale" / "code" / "new.py").exists()


def test_the_worker_that_is_not_fit_is_named_and_says_why(cloud):
    cloud.say(queued={"states": ["ACTIVE"], "workers": 2, "type": "v5litepod-16"})
    (cloud.folder / "unfit-1").write_text("3.11.9|8 tpu of 8|none|sandbox: there is none\n")
    done = cloud.run("setup")
    assert done.returncode == 3
    assert done.stdout.splitlines()[2].endswith("sandbox: there is none")
    assert "not fit: worker 1 of 2" in done.stderr


def test_the_worker_that_cannot_be_reached_is_named(cloud):
    cloud.say(queued={"states": ["ACTIVE"], "workers": 2, "type": "v5litepod-16"}, unreachable={"1": 1})
    done = cloud.run("setup")
    assert done.returncode == 3
    assert "not set up: worker 1 of 2" in done.stderr
    assert "Connection timed out" in done.stderr


def test_another_number_of_workers_than_was_said_is_refused(cloud):
    cloud.say(queued={"states": ["ACTIVE"], "workers": 2, "type": "v5litepod-16"})
    done = cloud.run("setup", "--workers=4")
    assert done.returncode == 2
    assert "has 2" in done.stderr


@pytest.fixture
def folder(cloud):
    source = cloud.folder / "model"
    (source / "deep").mkdir(parents=True)
    (source / "config.json").write_text("{}")
    (source / "deep" / "it's.bin").write_bytes(b"weights")
    (source / "link.bin").symlink_to(source / "deep" / "it's.bin")  # as in Hugging Face's cache
    return source


def test_a_local_folder_arrives_whole_on_all_and_only_once(cloud, folder):
    cloud.active(workers=2)
    done = cloud.run("data", f"--data=model={folder}")
    assert done.returncode == 0, done.stderr
    for worker in (0, 1):
        data = cloud.home(worker) / "whale" / "data"
        assert (data / "model" / "link.bin").read_bytes() == b"weights"
        assert [path.name for path in data.iterdir()] == ["model"]
    assert cloud.run("data", f"--data=model={folder}").returncode == 0
    assert len(cloud.calls("--recurse")) == 2


def test_a_file_that_arrives_damaged_is_noticed_and_nothing_is_put_in_place(cloud, folder):
    cloud.active()
    (cloud.folder / "spoil").write_text("config.json")
    done = cloud.run("data", f"--data=model={folder}")
    assert done.returncode == 3
    assert "config.json: FAILED" in done.stderr
    assert not (cloud.home() / "whale" / "data" / "model").exists()
    assert cloud.run("data", f"--data=model={folder}").returncode == 0


def bucket(cloud, files):
    for name, content in files.items():
        path = cloud.folder / "buckets" / "lab" / "set" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def test_a_bucket_is_fetched_by_every_worker_and_compared(cloud):
    digest = hashlib.sha256(b"rows").hexdigest()
    bucket(cloud, {"train.jsonl": "rows", "index/a": "1", "SHA256SUMS": f"{digest}  train.jsonl\n"})
    cloud.active(workers=2)
    done = cloud.run("data", "--data=set=gs://lab/set/")
    assert done.returncode == 0, done.stderr
    for worker in (0, 1):
        assert (cloud.home(worker) / "whale" / "data" / "set" / "index" / "a").read_text() == "1"
    copies = len(cloud.calls("storage", "rsync"))
    assert cloud.run("data", "--data=set=gs://lab/set").returncode == 0
    assert len(cloud.calls("storage", "rsync")) == copies == 2
    bucket(cloud, {"train.jsonl": "more rows", "SHA256SUMS": f"{digest}  train.jsonl\n"})
    assert cloud.run("data", "--data=set=gs://lab/set").returncode == 3  # the sums say otherwise
    assert (cloud.home() / "whale" / "data" / "set" / "train.jsonl").read_text() == "rows"


def test_what_is_not_there_or_may_not_be_read_is_said(cloud):
    cloud.active()
    done = cloud.run("data", "--data=set=gs://lab/none")
    assert done.returncode == 3
    assert "nothing under gs://lab/none" in done.stderr
    done = cloud.run("data", "--data=set=/no/such/folder")
    assert done.returncode == 2
    assert "/no/such/folder is no folder" in done.stderr
    cloud.say(forbidden=True)
    assert "403" in cloud.run("data", "--data=set=gs://lab/set").stderr
