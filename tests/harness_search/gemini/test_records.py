"""What a session of the gemini proposer leaves: replayed, gone on from, and without the key."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from harness_search.proposers.base import ProposerSettingsError, ProposerUnreachable
from harness_search.proposers.replay import ReplayProposer
from harness_search.proposers.session_log import SessionRecordError, read_events
from harness_search.records import SessionState
from harness_search.sandbox.backends import Backend
from tests.harness_search.gemini.sessions import BOTH, gemini, last
from tests.harness_search.gemini_server import (
    KEY,
    call,
    error,
    reply,
    write,
)
from tests.harness_search.small_search import content, run

pytest.importorskip("google.genai", reason="the extra `gemini` is not installed")


def test_a_search_is_replayed_from_its_record_to_the_same_bytes(
    tmp_path: Path, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = [error(500), reply({"text": "hm"}), reply(call("run_python", code="print(1)")), BOTH]
    second = [reply(write("A = 1 # 2 3\n")), reply(finish="MAX_TOKENS")]
    with gemini(backend, [*first, *second]) as (_, proposer):
        run(tmp_path / "live", proposer, iterations=2)
    monkeypatch.delenv("GEMINI_API_KEY")
    replayed = ReplayProposer(tmp_path / "live")
    run(tmp_path / "again", replayed, iterations=2)
    assert content(tmp_path / "again") == content(tmp_path / "live")
    assert last(tmp_path / "again").session is SessionState.FAILED
    with pytest.raises(ProposerUnreachable, match="iteration 3"):
        run(tmp_path / "more", ReplayProposer(tmp_path / "live"), iterations=3)
    with pytest.raises(ProposerUnreachable, match="2 slots, here are 1"):
        run(tmp_path / "fewer", ReplayProposer(tmp_path / "live"), candidates=1)
    with pytest.raises(ProposerSettingsError, match="no recorded"):
        ReplayProposer(tmp_path / "nowhere")


def test_a_session_cut_anywhere_goes_on_from_its_record(tmp_path: Path, backend: Backend) -> None:
    script = [reply(call("list_files")), reply(write("A = 1\n")), reply(finish="MAX_TOKENS"), reply(write("A = 2\n"))]
    with gemini(backend, script) as (_, proposer):
        run(tmp_path / "whole", proposer)
    whole = content(tmp_path / "whole")
    recorded = sorted(path for path in whole if path.startswith("sessions/"))
    for kept in range(1, len(recorded)):
        directory = tmp_path / str(kept)
        for path in [
            *recorded[:kept],
            "iterations/000.json",
            *(one for one in whole if one.startswith("candidates/000")),
        ]:
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            (directory / path).write_bytes(whole[path])
        used = sum(read_events(directory / "sessions" / "001")[number]["event"] == "call" for number in range(kept))
        with gemini(backend, script[used:] or [error(500)]) as (server, proposer):
            run(directory, proposer)
        assert content(directory) == whole
        assert len(server.requests) == len(script) - used
    (tmp_path / "whole" / "iterations" / "001.json").unlink()
    with (
        gemini(backend, script, thinking_level="high") as (_, proposer),
        pytest.raises(SessionRecordError, match="other thinking_level"),
    ):
        run(tmp_path / "whole", proposer)


def test_the_key_is_nowhere_but_in_the_request(
    tmp_path: Path, backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    spy = reply(call("run_python", code="import os; print(dict(os.environ))"), call("list_files"))
    with gemini(backend, [error(401, f"key {KEY} is odd"), spy, BOTH]) as (_, proposer):
        with pytest.raises(ProposerUnreachable) as raised:
            run(tmp_path, proposer)
        run(tmp_path, proposer)
    assert KEY not in str(raised.value)
    assert KEY not in repr(raised.value.__cause__)
    assert KEY not in caplog.text
    for path, data in content(tmp_path).items():
        assert KEY.encode() not in data, path
