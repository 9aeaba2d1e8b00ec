"""The command proposer: scripted agents that behave and misbehave, in the real sandbox."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import ipaddress
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness_search.archive import Archive
from harness_search.proposers.base import ProposerSettingsError, ProposerUnreachable
from harness_search.proposers.command import CommandProposer, CommandSettings
from harness_search.proposers.replay import ReplayProposer
from harness_search.proposers.session_log import read_events
from harness_search.records import Decision, IterationRecord, SessionState, SlotState
from harness_search.sandbox.backends import Backend, SandboxUnavailable, detect
from harness_search.sandbox.egress import Egress, may_reach
from tests.harness_search.small_search import content, run

SECRET = "CANARY-token-55e1"
HELPERS = """
import json, os, sys, time, socket, subprocess

def write(slot, source, **notes):
    with open(f"slots/{slot}/harness.py", "w") as file:
        file.write(source)
    with open(f"slots/{slot}/proposal.json", "w") as file:
        json.dump({"parent": "000", "hypothesis": "it helps", "axis": "prompt", **notes}, file)

def attempt(function, *arguments):
    try:
        return function(*arguments)
    except Exception as error:
        return type(error).__name__
"""


@pytest.fixture(scope="module")
def backend() -> Backend:
    try:
        return detect("bubblewrap")
    except SandboxUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_TOKEN", SECRET)
    monkeypatch.setenv("OTHER_TOKEN", SECRET + "-other")
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


Agent = Callable[..., CommandProposer]


@pytest.fixture
def agent(tmp_path: Path, backend: Backend) -> Agent:
    """Makes a proposer whose agent is a Python script."""

    def make(script: str, **settings: Any) -> CommandProposer:
        path = tmp_path / "agent.py"
        path.write_text(HELPERS + script)
        path.chmod(0o644)
        values: dict[str, Any] = {
            "argv": (backend.python, "-S", str(path)), "readable": (str(path),), "look_seconds": 0.05, "seconds": 60.0,
        }  # fmt: skip
        place = settings.pop("backend", backend)
        return CommandProposer(CommandSettings(**values | settings), manual="MANUAL", skill="SKILL", backend=place)

    return make


def last(directory: Path) -> IterationRecord:
    return Archive(directory).iterations[-1]


def test_an_agent_reads_writes_and_says_what_it_cost(tmp_path: Path, agent: Agent) -> None:
    script = """
assert open("WORKSPACE.md").read() == "MANUAL" and open("DOMAIN.md").read() == "SKILL"
task = sys.stdin.read()
assert "iteration 1" in task and "slots/0, slots/1" in task
assert json.load(open("workspace/budget.json"))["incumbent"] == "000"
source = open("workspace/candidates/000/harness.py").read()
write(0, source.replace("0", "0 + 1"), hypothesis="more numbers")
write(1, "A = 2\\n")
print('{"total_cost_usd": 0.10, "in": 1,000}')
print('{"total_cost_usd": 0.25, "in": 2,000}')
"""
    pattern = r'usd": (?P<dollars>[0-9.]+), "in": (?P<input_tokens>[0-9,]+)'
    result = run(tmp_path / "search", agent(script, cost_pattern=pattern))
    record = last(tmp_path / "search")
    assert result.source == "A = 0 + 1\n"
    assert result.best.proposal.hypothesis == "more numbers"
    assert record.session is SessionState.COMPLETED
    assert record.usage == {"calls": 1, "input_tokens": 2000, "output_tokens": 0, "dollars": 0.25}


def test_its_session_is_replayed_without_it(tmp_path: Path, agent: Agent) -> None:
    run(tmp_path / "live", agent("write(0, 'A = 1 + 2\\n'); sys.exit(3)"))
    run(tmp_path / "again", ReplayProposer(tmp_path / "live"))
    assert content(tmp_path / "again") == content(tmp_path / "live")
    assert last(tmp_path / "again").session is SessionState.FAILED


def test_the_arguments_may_hold_the_task(tmp_path: Path, agent: Agent, backend: Backend) -> None:
    proposer = agent("assert 'slots/0' in sys.argv[1]; write(0, 'A = 1\\n'); write(1, 'A = 2\\n')")
    settings = proposer._settings
    argv = (*settings.argv, "Do this: {prompt}")
    again = CommandSettings(argv, readable=settings.readable, look_seconds=0.05)
    run(tmp_path / "search", CommandProposer(again, manual="", skill="", backend=backend))
    assert last(tmp_path / "search").session is SessionState.COMPLETED


def test_nothing_but_the_slots_can_be_written_and_nothing_private_be_read(tmp_path: Path, agent: Agent) -> None:
    (tmp_path / "secret").write_text(SECRET)
    script = f"""
print([attempt(open, path, "w") for path in (
    "workspace/candidates/000/harness.py", "workspace/new", "WORKSPACE.md", "new", "/new", "/usr/new", "/etc/new")])
print([attempt(os.remove, "workspace/budget.json"), attempt(os.rename, "workspace", "w")])
print([attempt(os.listdir, path) for path in ({str(tmp_path / "search")!r}, "/root")])
print(attempt(open, {str(tmp_path / "secret")!r}), attempt(open, "/etc/shadow"))
print(sorted(name for name in os.environ if "TOKEN" in name))
print(os.getuid() != 0, len([name for name in os.listdir("/proc") if name.isdigit()]) < 9)
os.makedirs("slots/7"); open("slots/7/harness.py", "w").close(); open("slots/stray", "w").close()
write(0, "A = 1\\n"); write(1, "A = 2\\n")
"""
    run(tmp_path / "search", agent(script, environment=("AGENT_TOKEN",)))
    lines = read_events(tmp_path / "search" / "sessions" / "001")[-1]["stdout"].splitlines()
    refused = {"OSError", "PermissionError"}
    assert set(ast.literal_eval(lines[0])) <= refused
    assert set(ast.literal_eval(lines[1])) <= refused
    assert lines[2] in ("['FileNotFoundError', []]", "['FileNotFoundError', 'PermissionError']",
                        "['FileNotFoundError', ['.pyenv']]")  # fmt: skip
    assert lines[3] in ("FileNotFoundError FileNotFoundError", "FileNotFoundError PermissionError")
    assert lines[4] == "['AGENT_TOKEN']"
    assert lines[5] == "True True"
    assert [slot.state for slot in last(tmp_path / "search").slots] == [SlotState.SCORED] * 2
    assert len(Archive(tmp_path / "search").candidates) == 3


def test_a_hanging_agent_is_killed_with_all_it_started_and_its_candidates_stay(tmp_path: Path, agent: Agent) -> None:
    marker = f"marker-{os.getpid()}"
    script = f"""
write(0, "A = 1 + 2\\n")
for detached in (False, True):
    sleep = [sys.executable, "-S", "-c", "import time; time.sleep(1000)", {marker!r}]
    subprocess.Popen(sleep, start_new_session=detached)
if os.fork() == 0:
    os.setsid()
time.sleep(1000)
"""
    run(tmp_path / "search", agent(script, seconds=3.0))
    record = last(tmp_path / "search")
    assert record.session is SessionState.FAILED
    assert record.session_error == "the agent was stopped at its limit of 3 s"
    assert [slot.state for slot in record.slots] == [SlotState.SCORED, SlotState.EMPTY]
    assert record.usage["calls_without_usage"] == 1
    left = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            left += [path] if marker.encode() in path.read_bytes() else []
    assert left == []


def test_a_flood_of_output_is_cut_and_its_end_is_kept(tmp_path: Path, agent: Agent) -> None:
    script = """
for _ in range(300):
    sys.stdout.write("x" * 100_000)
    sys.stderr.write("y" * 100_000)
print("cost: 0.5")
"""
    run(tmp_path / "search", agent(script, output_bytes=2000, cost_pattern=r"cost: (?P<dollars>[\d.]+)"))
    end = read_events(tmp_path / "search" / "sessions" / "001")[-1]
    assert len(end["stdout"]) == len(end["stderr"]) == 2000
    assert last(tmp_path / "search").usage["dollars"] == 0.5


TRICKS: dict[str, tuple[str, str]] = {
    "link-to-a-file": ('os.symlink("/etc/passwd", "slots/0/harness.py")', "no plain file"),
    "link-to-the-workspace": ('os.symlink("/agent/workspace/budget.json", "slots/0/harness.py")', "no plain file"),
    "linked-folder": ('os.rmdir("slots/0"); os.symlink("/etc", "slots/0")', "removed or replaced"),
    "removed-folder": ('os.rmdir("slots/0")', "removed or replaced"),
    "pipe": ('os.mkfifo("slots/0/harness.py")', "no plain file"),
    "folder": ('os.mkdir("slots/0/harness.py")', "no plain file"),
    "hard-link": ('open("slots/a", "w").close(); os.link("slots/a", "slots/0/harness.py")', "no plain file"),
    "huge": ('open("slots/0/harness.py", "w").write("#" * 300_000)', "larger than"),
    "not-utf-8": (r'open("slots/0/harness.py", "wb").write(b"A = \xff")', "not UTF-8"),
    "nothing": ("", "nothing was written"),
    "half-a-proposal": ('write(0, "A = 1"); open("slots/0/proposal.json", "w").write("{")', "cannot be read"),
    "notes-of-another-type": ('write(0, "A = 1", axis=3)', "must hold texts"),
    "no-object": ('write(0, "A = 1"); open("slots/0/proposal.json", "w").write("[]")', "no JSON object"),
    "a-secret": ('write(0, "A = \'" + os.environ["AGENT_TOKEN"] + "\'")', "secret"),
}


@pytest.mark.parametrize(("script", "reason"), TRICKS.values(), ids=TRICKS.keys())
def test_a_slot_that_holds_no_candidate_is_empty_and_says_why(
    tmp_path: Path, agent: Agent, script: str, reason: str
) -> None:
    whole = f'{script}\nwrite(1, "A = 1 + 2\\n")\nprint(os.environ["AGENT_TOKEN"])\n'
    # One look, after the end: a slot that is taken early is another test's business.
    run(tmp_path / "search", agent(whole, environment=("AGENT_TOKEN",), look_seconds=50.0))
    first, second = last(tmp_path / "search").slots
    assert first.state is SlotState.EMPTY
    assert reason in first.detail
    assert second.state is SlotState.SCORED
    for path, data in content(tmp_path / "search").items():
        assert SECRET.encode() not in data, path


def test_a_candidate_without_notes_counts_as_a_copy_of_the_incumbent(tmp_path: Path, agent: Agent) -> None:
    run(tmp_path / "search", agent('open("slots/0/harness.py", "w").write("A = 1 + 2\\n")'))
    candidate = Archive(tmp_path / "search").candidates["001"]
    assert (candidate.proposal.parent, candidate.proposal.hypothesis) == ("000", "")


def test_a_slot_is_taken_when_it_is_closed_and_not_changed_after(tmp_path: Path, agent: Agent) -> None:
    script = """
write(0, "A = 1\\n")
while not any("001" in name for name in os.listdir("slots")):
    time.sleep(0.01)
write(0, "A = BAD\\n")
write(1, "A = 2\\n")
"""
    proposer = agent(script)
    taken: list[str] = []
    original = CommandProposer._slot

    def slot(slots: Path, number: int, *rest: Any) -> Any:
        event = original(slots, number, *rest)
        if event is not None:
            taken.append(event["source"])
            (slots / f"00{len(taken)}").touch()
        return event

    proposer._slot = slot  # type: ignore[method-assign]
    run(tmp_path / "search", proposer)
    assert taken == ["A = 1\n", "A = 2\n"]
    assert [slot.state for slot in last(tmp_path / "search").slots] == [SlotState.SCORED] * 2


def test_failures_are_told_apart(tmp_path: Path, agent: Agent, backend: Backend) -> None:
    run(tmp_path / "status", agent('sys.stderr.write("no quota " + os.environ["AGENT_TOKEN"]); sys.exit(4)',
                                   environment=("AGENT_TOKEN",)))  # fmt: skip
    record = last(tmp_path / "status")
    assert record.session is SessionState.FAILED
    assert record.session_error == "the agent ended with status 4: no quota [redacted]"
    script = tmp_path / "not-a-program"
    script.write_text("nothing")
    script.chmod(0o755)
    settings = CommandSettings((str(script),), readable=(str(script),))
    with pytest.raises(ProposerUnreachable, match="cannot start"):
        run(tmp_path / "search", CommandProposer(settings, manual="", skill="", backend=backend))
    assert len(Archive(tmp_path / "search").iterations) == 1


def test_a_budget_in_dollars_ends_the_search(tmp_path: Path, agent: Agent) -> None:
    script = 'write(0, f"A = {time.monotonic_ns()}\\n"); print("cost 3")'
    proposer = agent(script, cost_pattern=r"cost (?P<dollars>\d+)", search_dollars=3.0)
    run(tmp_path / "search", proposer, iterations=9)
    assert [one.decision for one in Archive(tmp_path / "search").iterations][-1] is Decision.BUDGET
    assert len(Archive(tmp_path / "search").iterations) == 3


def test_a_run_that_was_cut_keeps_what_was_taken(tmp_path: Path, agent: Agent) -> None:
    run(tmp_path / "search", agent('write(0, "A = 1\\n"); write(1, "A = 2 + 3\\n")'))
    (tmp_path / "search" / "iterations" / "001.json").unlink()
    session = tmp_path / "search" / "sessions" / "001"
    (session / "000003.json").unlink()
    run(tmp_path / "search", agent('raise SystemExit("not to be run again")'))
    assert [slot.candidate for slot in last(tmp_path / "search").slots] == ["001", "002"]
    assert last(tmp_path / "search").usage["dollars"] is None


def test_the_only_way_out_is_a_proxy_that_knows_no_metadata_address(tmp_path: Path, agent: Agent) -> None:
    script = """
import urllib.request
def get(url):
    try:
        return urllib.request.urlopen(url, timeout=20).read().decode()
    except Exception as error:
        return str(error)
print(get(f"http://localhost:{os.environ['PORT']}/page"))
print(get(f"http://127.0.0.1:{os.environ['PORT']}/page"))
print(get("http://169.254.169.254/latest"))
print(get("http://[fd00:ec2::254]/latest"))
proxy = os.environ.pop("http_proxy").removeprefix("http://").split(":")
for target in ("169.254.169.254:80", "localhost:" + os.environ["PORT"], "[::ffff:169.254.169.254]:80", "0xA9FEA9FE:80"):
    with socket.create_connection((proxy[0], int(proxy[1]))) as s:
        s.sendall(f"CONNECT {target} HTTP/1.1\\r\\n\\r\\n".encode())
        print(s.recv(100).split(b"\\r")[0].decode())
print(attempt(socket.create_connection, ("169.254.169.254", 80), 5))
"""

    async def go() -> list[str]:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            body = head.split(b" ")[1]
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        os.environ["PORT"] = str(server.sockets[0].getsockname()[1])
        proposer = agent(script, environment=("PORT",), allow_hosts=("localhost", "169.254.169.254"))
        await asyncio.to_thread(run, tmp_path / "search", proposer)
        server.close()
        return read_events(tmp_path / "search" / "sessions" / "001")[-1]["stdout"].splitlines()

    lines = asyncio.run(go())
    assert lines[0] == "/page"
    assert all("403" in line for line in lines[1:4]), lines
    assert [line.split()[1] for line in lines[4:8]] == ["403", "200", "403", "403"]
    assert lines[8] in ("OSError", "TimeoutError")


def test_without_network_there_is_no_proxy(tmp_path: Path, agent: Agent) -> None:
    run(tmp_path / "search", agent("print('http_proxy' in os.environ)", network=False))
    assert read_events(tmp_path / "search" / "sessions" / "001")[-1]["stdout"] == "False\n"


@pytest.mark.parametrize(
    ("address", "by_name", "fine"),
    [
        ("8.8.8.8", False, True),
        ("10.0.0.1", False, False),
        ("10.0.0.1", True, True),
        ("169.254.169.254", True, False),
        ("169.254.1.1", True, False),
        ("168.63.129.16", False, False),
        ("fe80::1", True, False),
        ("::1", False, False),
        ("::ffff:169.254.169.254", True, False),
        ("2002:a9fe:a9fe::1", True, False),
        ("64:ff9b::a9fe:a9fe", True, False),
        ("224.0.0.1", False, False),
        ("0.0.0.0", False, False),
        ("2606:4700::1111", False, True),
    ],
)
def test_where_an_agent_may_connect(address: str, by_name: bool, fine: bool) -> None:
    assert may_reach(ipaddress.ip_address(address), by_name) is fine


NO_REQUESTS = (
    *(b"\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"CONNECT  HTTP/1.1\r\n\r\n", b"GET ftp://a/ HTTP/1.1\r\n\r\n"),
    *(b"CONNECT a:99999 HTTP/1.1\r\n\r\n", b"\xff\xfe x y\r\n\r\n", b"CONNECT nowhere.invalid:1 HTTP/1.1\r\n\r\n"),
)


@pytest.mark.parametrize("request_", NO_REQUESTS)
def test_what_is_no_proxy_request_is_refused(tmp_path: Path, request_: bytes) -> None:
    async def go() -> bytes:
        proxy = await Egress.start(tmp_path / "socket")
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "socket"))
        writer.write(request_)
        answer = await reader.read()
        writer.close()
        await proxy.close()
        assert sum(proxy.refusals.values()) == 1
        return answer

    assert re.match(rb"HTTP/1.1 (400|502) ", asyncio.run(go()))


def test_without_a_sandbox_a_changed_workspace_is_noticed_and_thrown_away(tmp_path: Path, agent: Agent) -> None:
    script = """
open("workspace/candidates/000/harness.py", "w").write("A = 1 + 2 + 3\\n")
open("workspace/planted", "w").write("x")
write(0, "A = 1\\n"); write(1, "A = 2\\n")
"""
    run(tmp_path / "search", agent(script, backend=detect("none")), iterations=1)
    end = read_events(tmp_path / "search" / "sessions" / "001")[-1]
    assert end["discarded"] == ["candidates/000/harness.py", "planted"]
    assert not (tmp_path / "search" / "workspace").exists()
    assert Archive(tmp_path / "search").candidates["000"].source == "A = 0\n"


def test_settings_that_cannot_work_are_refused(tmp_path: Path, agent: Agent, backend: Backend) -> None:
    with pytest.raises(ProposerSettingsError, match="command line"):
        CommandSettings(())
    with pytest.raises(ProposerSettingsError, match="group named"):
        CommandSettings(("a",), cost_pattern="cost")
    with pytest.raises(ProposerSettingsError, match="no regular expression"):
        CommandSettings(("a",), cost_pattern="(")
    with pytest.raises(ProposerSettingsError, match="file name"):
        CommandSettings(("a",), cost_from="../cost")
    with pytest.raises(ProposerSettingsError, match="limit in dollars"):
        CommandSettings(("a",), search_dollars=1.0)
    settings = CommandSettings(("no-such-program",), environment=("NO_SUCH",), readable=("/no/such",))
    with pytest.raises(ProposerSettingsError, match=r"NO_SUCH, /no/such, the program no-such-program"):
        CommandProposer(settings, manual="", skill="", backend=backend)
    try:
        landlock = detect("landlock")
    except SandboxUnavailable:
        return
    with pytest.raises(ProposerSettingsError, match="needs bubblewrap"):
        CommandProposer(CommandSettings((sys.executable,)), manual="", skill="", backend=landlock)
