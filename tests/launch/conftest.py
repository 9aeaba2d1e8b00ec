"""A cloud in a folder: the scripts under test run against a stand-in for gcloud that is first on PATH."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
STANDINS = Path(__file__).resolve().parent / "standins"
PYTHON = os.path.realpath(sys.executable)
SETTINGS = ("--name=pod", "--zone=us-west4-a", "--project=lab", "--poll_seconds=0", "--accelerator_type=v5litepod-8")


@dataclasses.dataclass(frozen=True)
class Cloud:
    """What a test says of the cloud, and what it asks of it afterwards."""

    folder: Path
    checkout: Path
    environment: dict[str, str]

    def say(self, **world: Any) -> None:
        """Sets parts of the world: queued, lives, errors, hangs, unreachable, forbidden."""
        path = self.folder / "world.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **world}))

    def jobs(self, *todo: str, worker: int = 0) -> None:
        """What the job does each time it is started on a worker."""
        (self.folder / f"jobs-{worker}").write_text("\n".join(todo))

    def run(self, verb: str, *arguments: str, settings: tuple[str, ...] = SETTINGS) -> subprocess.CompletedProcess[str]:
        script = self.checkout / "launch" / "tpu" / f"{verb}.sh"
        # The shell that becomes the script leaves its process id, by which the stand-in can end it.
        return subprocess.run(
            ["sh", "-c", 'echo $$ >"$CLOUD/script" && exec sh "$@"', "sh", str(script), *settings, *arguments],
            capture_output=True,
            text=True,
            check=False,
            env=self.environment,
            cwd=self.folder,
            timeout=60,
        )

    def calls(self, *words: str) -> list[list[str]]:
        """The recorded calls of gcloud that hold all the words."""
        path = self.folder / "calls.jsonl"
        every = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [call for call in every if set(words) <= set(call)]

    def home(self, worker: int = 0) -> Path:
        return self.folder / f"worker-{worker}"

    def queued(self) -> dict[str, Any] | None:
        return json.loads((self.folder / "world.json").read_text())["queued"]

    def active(self, workers: int = 1) -> None:
        """A TPU that is there, set up."""
        self.say(queued={"states": ["ACTIVE"], "workers": workers, "type": "v5litepod-8"})
        done = self.run("setup")
        assert done.returncode == 0, done.stderr

    def at_work(self, worker: int = 0) -> None:
        """Waits until the job of a worker says that it is at work."""
        assert (self.home(worker) / "at-work").read_text() == "at work"


@pytest.fixture(scope="session")
def committed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with the scripts under test, whose HEAD is what lies there."""
    checkout = tmp_path_factory.mktemp("committed")
    shutil.copytree(ROOT / "launch" / "tpu", checkout / "launch" / "tpu")
    for name in ("local.sh", "job.py"):
        shutil.copy(STANDINS / name, checkout / "launch" / name)
    (checkout / "configs").mkdir()
    (checkout / "configs" / "run.flags").write_text("# a run\n--domain=searchqa\n")
    (checkout / ".gitignore").write_text("build/\n")
    environment = {"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": os.devnull}
    identity = ("-c", "user.name=test", "-c", "user.email=test@localhost")
    for command in (("init", "-q"), ("add", "-A"), (*identity, "commit", "-q", "-m", "all")):
        subprocess.run(["git", "-C", str(checkout), *command], check=True, env=environment)
    return checkout


@pytest.fixture
def cloud(tmp_path: Path, committed: Path) -> Iterator[Cloud]:
    checkout = tmp_path / "checkout"
    shutil.copytree(committed, checkout)
    folder = tmp_path / "cloud"
    folder.mkdir()
    (folder / "world.json").write_text(json.dumps({"queued": None, "lives": []}))
    # Where `python3` is a shim, starting it costs more than all the rest: the interpreter is named.
    standin = tmp_path / "bin" / "gcloud"
    standin.parent.mkdir()
    standin.write_text(f"#!{PYTHON} -IS\n{(STANDINS / 'gcloud.py').read_text()}")
    standin.chmod(0o755)
    environment = {
        "PATH": f"{standin.parent}:/usr/local/bin:/usr/bin:/bin",
        "PYTHON": PYTHON,
        "CLOUD": str(folder),
        "HOME": str(tmp_path),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "WHALE_USERNS_SYSCTL": str(folder / "no-such-sysctl"),
    }
    yield Cloud(folder, checkout, environment)
    for home in folder.glob("worker-*"):
        script = home / "whale" / "code" / "launch" / "tpu" / "worker.sh"
        if script.exists():
            subprocess.run(["sh", str(script), "stop", "5", "verb"], env={**environment, "HOME": str(home)}, check=True)
