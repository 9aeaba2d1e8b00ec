"""Detection, the cage's filters, and the sandbox's check of itself."""

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

import harness_search
from harness_search.sandbox import __main__ as command
from harness_search.sandbox import backends
from harness_search.sandbox.__main__ import describe, main
from harness_search.sandbox.backends import Backend, BackendName, SandboxUnavailable, detect
from harness_search.sandbox.guest import filters
from harness_search.sandbox.preflight import Attempt, Held, PreflightReport, preflight

_PACKAGE = Path(harness_search.__file__).parent
_AS_NOBODY = """
import os, sys, tempfile
os.setgroups([]); os.setresgid(65533, 65533, 65533); os.setresuid(65533, 65533, 65533)
with tempfile.TemporaryDirectory() as folder:
    for name, text in {modules!r}.items():
        os.makedirs(os.path.dirname(os.path.join(folder, name)), exist_ok=True)
        with open(os.path.join(folder, name), "w") as file:
            file.write(text)
    sys.path.insert(0, folder)
    from harness_search.sandbox.__main__ import main
    status = main(["--json"])
sys.exit(status)
"""


def test_nothing_escapes_and_the_report_says_what_holds(backend: Backend) -> None:
    report = preflight(backend)
    assert report.escapes == ()
    assert len(report.attempts) >= 50
    assert {"seccomp allow list", "no_new_privs", "no capabilities", "resource limits"} <= set(report.enforced)
    assert ("host uid dropped" in report.enforced) == (os.geteuid() == 0)
    contained = [attempt.name for attempt in report.attempts if attempt.held is Held.CONTAINED]
    assert contained == ["never yield"]
    assert "none escaped" in describe(report)
    assert json.loads(json.dumps(report.to_json()))["escapes"] == []


REAL = (
    "read /etc/passwd",
    "read the run directory",
    "write to /tmp",
    "send UDP",
    "fork",
    "run a program",
    "call ptrace",
)


def test_the_attempts_are_real_where_nothing_holds() -> None:
    report = preflight(detect("none"), only=REAL)
    assert set(report.escapes) == set(REAL)


def test_the_command_reports_escapes_and_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = PreflightReport("none", ("resource limits",), (Attempt("fork", Held.ESCAPED, "gained forked process 7"),))
    monkeypatch.setattr(command, "preflight", lambda backend: report)
    assert main(["--sandbox=none", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == {
        "backend": "none",
        "enforced": ["resource limits"],
        "attempts": [{"name": "fork", "held": "escaped", "detail": "gained forked process 7"}],
        "escapes": ["fork"],
    }
    assert main(["--sandbox=none"]) == 1
    assert "1 ESCAPED" in capsys.readouterr().out


def test_a_normal_user_is_held_as_well() -> None:
    python = "/usr/bin/python3"
    if os.geteuid() != 0:
        pytest.skip("this test run is a normal user's already")
    version = [python, "-c", "import sys; print(sys.version_info >= (3, 11))"]
    if not os.path.exists(python) or subprocess.run(version, capture_output=True, text=True).stdout.strip() != "True":
        pytest.skip("no interpreter that another user may read")
    modules = {f"harness_search/{path.relative_to(_PACKAGE)}": path.read_text() for path in _PACKAGE.rglob("*.py")}
    script = _AS_NOBODY.format(modules=modules)
    done = subprocess.run([python, "-"], input=script, capture_output=True, text=True, cwd="/")
    report = json.loads(done.stdout)
    assert (done.returncode, report["escapes"]) == (0, []), report
    assert "host uid dropped" not in report["enforced"]


def test_an_unknown_name_is_refused_in_one_line() -> None:
    with pytest.raises(SandboxUnavailable, match=r"must be auto, bubblewrap, landlock, none; got 'docker'") as caught:
        detect("docker")
    assert "\n" not in str(caught.value)


def test_another_system_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(SandboxUnavailable, match="needs Linux; this is darwin"):
        detect("auto")


def test_auto_never_falls_back_to_none(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(backends.shutil, "which", lambda name: None)
    monkeypatch.setattr(backends, "_landlock_abi", lambda: 0)
    with pytest.raises(SandboxUnavailable, match=r"bwrap is not installed.*no Landlock.*--sandbox=none"):
        detect("auto")
    assert main(["--json"]) == 2
    assert json.loads(capsys.readouterr().out)["backend"] is None


def test_auto_takes_landlock_where_bubblewrap_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends.shutil, "which", lambda name: None)
    monkeypatch.setattr(backends, "_landlock_abi", lambda: 1)
    assert detect("auto").name is BackendName.LANDLOCK


def test_every_server_as_root_gets_a_user_of_its_own() -> None:
    backend = Backend(BackendName.LANDLOCK, sys.executable, as_root=True, landlock=True)
    users = {backend.cage().uid for _ in range(20)}
    assert len(users) > 10
    assert None not in users
    assert Backend(BackendName.LANDLOCK, sys.executable, as_root=False, landlock=True).cage().uid is None


def decide(program: bytes, machine: str, number: int, arguments: tuple[int, ...] = ()) -> str:
    """Interprets a filter for one call: the kernel's part, in Python."""
    data = struct.pack("=iIQ6Q", number, filters.AUDIT_ARCH[machine], 0, *(*arguments, *[0] * 6)[:6])
    instructions = list(struct.iter_unpack("=HBBI", program))
    accumulator, position = 0, 0
    while True:
        code, if_true, if_false, value = instructions[position]
        position += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, value)
        elif code == 0x06:
            return {0x7FFF0000: "allow", 0x80000000: "kill"}.get(value, f"errno {value & 0xFFFF}")
        else:
            holds = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}[code]
            position += if_true if holds else if_false


CALLS = {  # name: number on x86_64, on aarch64, arguments, in the server, in a child
    "read": (0, 63, (), "allow", "allow"),
    "exit_group": (231, 94, (), "allow", "allow"),
    "openat": (257, 56, (), "errno 1", "errno 1"),
    "execve": (59, 221, (), "errno 1", "errno 1"),
    "socket": (41, 198, (2, 1, 0), "errno 1", "errno 1"),
    "connect": (42, 203, (), "errno 1", "errno 1"),
    "fork": (56, 220, (0x01200011,), "allow", "errno 1"),
    "a thread": (56, 220, (0x3D0F00,), "errno 1", "errno 1"),
    "a user namespace": (56, 220, (0x10000011,), "errno 1", "errno 1"),
    "clone3": (435, 435, (), "errno 38", "errno 38"),
    "kill": (62, 129, (), "allow", "errno 1"),
    "ptrace": (101, 117, (), "errno 1", "errno 1"),
    "map data": (9, 222, (0, 4096, 3), "allow", "allow"),
    "map code": (9, 222, (0, 4096, 7), "errno 1", "errno 1"),
    "make code": (10, 226, (0, 4096, 5), "errno 1", "errno 1"),
    "a pair of sockets": (53, 199, (1, 1, 0), "allow", "errno 1"),
    "a pair of other sockets": (53, 199, (16, 1, 0), "errno 1", "errno 1"),
    "add a filter": (157, 167, (22, 2, 0), "allow", "errno 1"),
    "other process controls": (157, 167, (4, 1, 0), "errno 1", "errno 1"),
    "io_uring_setup": (425, 425, (), "errno 1", "errno 1"),
    "a call of the future": (999, 999, (), "errno 1", "errno 1"),
}


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("name", CALLS)
def test_the_filters_decide_as_written_on_both_machines(machine: str, name: str) -> None:
    on_intel, on_arm, arguments, in_server, in_child = CALLS[name]
    number = on_intel if machine == "x86_64" else on_arm
    assert decide(filters.assemble(filters.SERVER, machine), machine, number, arguments) == in_server
    assert decide(filters.assemble(filters.CHILD, machine), machine, number, arguments) == in_child


def test_calls_of_another_architecture_are_fatal() -> None:
    program = filters.assemble(filters.CHILD, "x86_64")
    swapped = struct.pack("=I", filters.AUDIT_ARCH["x86_64"])
    assert decide(program.replace(swapped, struct.pack("=I", 0x40000003), 1), "x86_64", 0) == "kill"
    assert decide(program, "x86_64", 0x40000000) == "errno 1"  # x32


def test_a_child_may_do_nothing_that_the_server_may_not() -> None:
    assert set(filters.CHILD) <= set(filters.SERVER)
