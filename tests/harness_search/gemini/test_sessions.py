"""The gemini proposer: the real client against a local server that behaves and misbehaves."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness_search.archive import Archive
from harness_search.proposers.base import ProposerSettingsError, ProposerUnreachable
from harness_search.proposers.gemini import GeminiProposer, GeminiSettings
from harness_search.proposers.limits import Prices, SessionLimits
from harness_search.proposers.session_log import read_events
from harness_search.proposers.tool_loop import Retries
from harness_search.records import Decision, SessionState, SlotState
from harness_search.sandbox.backends import Backend, detect
from tests.harness_search.gemini.sessions import BOTH, LIMITS, gemini, last, patience
from tests.harness_search.gemini_server import (
    KEY,
    USAGE,
    Behaviour,
    Raw,
    Server,
    call,
    drip,
    drop,
    error,
    hang,
    reply,
    write,
)
from tests.harness_search.small_search import H0, check, run

pytest.importorskip("google.genai", reason="the extra `gemini` is not installed")


def answers(server: Server, request: int) -> list[dict[str, Any]]:
    """The tool answers that a request carries."""
    return [part["functionResponse"]["response"] for part in server.requests[request]["contents"][-1]["parts"]]


def test_a_session_reads_writes_and_is_paid_for(tmp_path: Path, backend: Backend) -> None:
    look = reply(call("list_files"), call("read_file", path="candidates/000/harness.py"))
    prices = Prices(input=1.0, output=10.0)
    with gemini(backend, [look, BOTH], prices=prices) as (server, proposer):
        result = run(tmp_path, proposer)
    assert result.source == "A = 0 + 1\n"
    record = last(tmp_path)
    assert record.session is SessionState.COMPLETED
    assert [slot.state for slot in record.slots] == [SlotState.SCORED] * 2
    assert record.usage == {
        "calls": 2, "input_tokens": 200, "output_tokens": 54, "dollars": pytest.approx((200 + 540) / 1e6),
    }  # fmt: skip
    assert answers(server, 1)[1] == {"text": H0, "total_chars": len(H0)}
    first = server.requests[0]
    assert "THE MANUAL" in json.dumps(first["systemInstruction"])
    assert "THE SKILL" in json.dumps(first["systemInstruction"])
    assert list(first["generationConfig"]["thinkingConfig"].values()) == ["LOW"]
    names = {one["name"] for one in first["tools"][0]["functionDeclarations"]}
    assert names == {
        *("list_files", "read_file", "search_text", "run_python", "diff_candidates"),
        *("check_candidate", "write_candidate", "finish"),
    }
    assert server.paths[0].endswith("/models/gemini-test:generateContent")
    assert {name.lower(): value for name, value in server.headers[0].items()}["x-goog-api-key"] == KEY


def test_thoughts_and_their_signatures_go_back_as_they_came(tmp_path: Path, backend: Backend) -> None:
    part = {**call("list_files"), "thoughtSignature": "c2lnbmF0dXJl"}
    with gemini(backend, [reply({"text": "hm", "thought": True}, part), BOTH]) as (server, proposer):
        run(tmp_path, proposer)
    model = server.requests[1]["contents"][1]
    assert model["role"] == "model"
    assert model["parts"][0]["thought"] is True
    assert model["parts"][1]["thoughtSignature"] == "c2lnbmF0dXJl"


BROKEN: dict[str, Behaviour] = {
    "429": error(429),
    "429-retry-after": error(429, headers={"Retry-After": "0"}),
    "429-retry-after-date": error(429, headers={"Retry-After": "Thu, 01 Jan 1970 00:00:00 GMT"}),
    "429-retry-info": error(429, details=[{"retryDelay": "0s"}]),
    "500": error(500),
    "503": error(503),
    "500-no-json": Raw(b"<html>oops</html>", 500),
    "hanging": hang,
    "slow-drip": drip,
    "dropped": drop,
    "dropped-in-the-body": Raw(b'{"candidates": [', promise=100),
    "non-json": Raw(b"I am a web page"),
    "truncated-json": Raw(json.dumps(BOTH).encode()[:-20]),
    "invalid-utf-8": Raw(json.dumps(reply(write("A = X\n"))).encode().replace(b"X", b"\xff\xfe")),
    "json-of-another-kind": Raw(b"[1, 2]"),
    "json-of-another-shape": Raw(b'{"candidates": 3}'),
    "not-a-number": Raw(json.dumps(reply(call("finish", summary=float("nan")))).encode()),
    "empty-body": Raw(b""),
}  # fmt: skip


@pytest.mark.parametrize("behaviour", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_answer_is_asked_for_again_and_counted(tmp_path: Path, backend: Backend, behaviour: Behaviour) -> None:
    with gemini(backend, [behaviour, BOTH], retries=patience(behaviour, 6.0)) as (server, proposer):
        run(tmp_path, proposer)
    record = last(tmp_path)
    assert [slot.state for slot in record.slots] == [SlotState.SCORED] * 2
    assert record.usage == {
        "calls": 2, "input_tokens": 100, "output_tokens": 27, "dollars": None, "calls_without_usage": 1,
    }  # fmt: skip
    attempts = read_events(tmp_path / "sessions" / "001")[1]["attempts"]
    assert len(attempts) == 1
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    "behaviour", [error(503), hang, drop, Raw(b"no")], ids=["503", "hanging", "dropped", "non-json"]
)
def test_a_model_out_of_reach_stops_the_search_at_its_last_commit(
    tmp_path: Path, backend: Backend, behaviour: Behaviour
) -> None:
    with (
        gemini(backend, [behaviour], retries=patience(behaviour, 0.3)) as (server, proposer),
        pytest.raises(ProposerUnreachable, match="after 3 attempts"),
    ):
        run(tmp_path, proposer)
    assert len(server.requests) == 3
    assert len(Archive(tmp_path).iterations) == 1
    with gemini(backend, [BOTH]) as (server, proposer):  # later, with the same archive
        run(tmp_path, proposer)
    assert last(tmp_path).usage == {
        "calls": 4, "input_tokens": 100, "output_tokens": 27, "dollars": None, "calls_without_usage": 3,
    }  # fmt: skip


def test_a_wish_to_wait_too_long_and_a_refused_key_stop_at_once(tmp_path: Path, backend: Backend) -> None:
    for number, behaviour in enumerate([error(429, headers={"Retry-After": "9999"}), error(403, f"bad key {KEY}")]):
        with gemini(backend, [behaviour]) as (server, proposer), pytest.raises(ProposerUnreachable) as raised:
            run(tmp_path / str(number), proposer)
        assert len(server.requests) == 1
        assert KEY not in str(raised.value)


def test_a_request_refused_in_the_middle_fails_the_session_and_keeps_what_was_written(
    tmp_path: Path, backend: Backend
) -> None:
    with gemini(backend, [reply(write("A = 1\n")), error(400, "too long")]) as (_, proposer):
        run(tmp_path, proposer)
    record = last(tmp_path)
    assert record.session is SessionState.FAILED
    assert "too long" in str(record.session_error)
    assert [slot.state for slot in record.slots] == [SlotState.SCORED, SlotState.EMPTY]


IDLE: dict[str, tuple[dict[str, Any], str]] = {
    "empty-candidates": ({"candidates": [], "usageMetadata": USAGE}, "an empty reply"),
    "no-candidates": ({"usageMetadata": USAGE}, "an empty reply"),
    "max-tokens": (reply(finish="MAX_TOKENS"), "MAX_TOKENS"),
    "malformed-call": (reply(finish="MALFORMED_FUNCTION_CALL"), "MALFORMED_FUNCTION_CALL"),
    "safety": (reply(finish="SAFETY"), "SAFETY"),
    "prose": (reply({"text": "Here is my plan."}), "STOP"),
}


@pytest.mark.parametrize(("idle", "reason"), IDLE.values(), ids=IDLE.keys())
def test_a_reply_without_a_call_is_answered_and_the_third_in_a_row_ends_the_session(
    tmp_path: Path, backend: Backend, idle: dict[str, Any], reason: str
) -> None:
    with gemini(backend, [idle, idle, BOTH]) as (server, proposer):
        run(tmp_path / "patient", proposer)
    assert "text" in server.requests[1]["contents"][-1]["parts"][0]
    assert [slot.state for slot in last(tmp_path / "patient").slots] == [SlotState.SCORED] * 2
    assert last(tmp_path / "patient").usage["input_tokens"] == 300
    with gemini(backend, [idle]) as (server, proposer):
        run(tmp_path / "tired", proposer)
    record = last(tmp_path / "tired")
    assert len(server.requests) == 3
    assert record.session is SessionState.FAILED
    assert reason in str(record.session_error)
    assert record.decision is Decision.STOP


def test_a_blocked_prompt_fails_the_session_with_its_reason(tmp_path: Path, backend: Backend) -> None:
    blocked = {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "usageMetadata": {"promptTokenCount": 90}}
    with gemini(backend, [blocked]) as (server, proposer):
        run(tmp_path, proposer)
    record = last(tmp_path)
    assert "PROHIBITED_CONTENT" in str(record.session_error)
    assert record.usage["input_tokens"] == 90
    assert len(server.requests) == 1


def test_calls_that_make_no_sense_are_answered_with_what_is_wrong(tmp_path: Path, backend: Backend) -> None:
    odd = reply(
        call("rm_rf", path="/"),
        call("read_file", path=7),
        call("read_file"),
        call("read_file", path="harness.py", mode="w"),
        call("read_file", path="../candidates/000/scores.json"),
        call("read_file", path="/etc/passwd"),
        call("read_file", path="a\0b"),
        call("list_files", offset=0.5),
        call("write_candidate", source=["A"], parent="000", hypothesis="h", axis="a"),
        call("write_candidate", source="A = 1\n", parent="999", hypothesis="h", axis="a"),
        call("diff_candidates", before="000", after="zzz"),
        {"functionCall": {"name": "finish", "args": {"summary": 1}}},
    )
    with gemini(backend, [odd, BOTH]) as (server, proposer):
        run(tmp_path, proposer)
    errors = [answer["error"] for answer in answers(server, 1)]
    assert len(errors) == 12
    for text, word in zip(
        errors,
        ("no tool", "string for 'path'", "needs 'path'", "no parameter 'mode'", *["there is no"] * 2, "is no path",
         "integer for 'offset'", "string for 'source'", "no candidate '999'", "no candidate 'zzz'", "'summary'"),
        strict=True,
    ):  # fmt: skip
        assert word in text
    assert last(tmp_path).session is SessionState.COMPLETED


def test_thousands_of_calls_in_one_reply_cost_no_more_than_a_few(tmp_path: Path, backend: Backend) -> None:
    flood = reply(*[call("list_files")] * 2000)
    with gemini(backend, [flood, BOTH], replace(LIMITS, calls_per_reply=4)) as (server, proposer):
        run(tmp_path / "one", proposer)
    found = answers(server, 1)
    assert len(found) == 2000
    assert ["error" in answer for answer in found[:6]] == [False] * 4 + [True] * 2
    assert last(tmp_path / "one").session is SessionState.COMPLETED
    with gemini(backend, [reply(*[call("list_files")] * 100)], replace(LIMITS, tool_calls=10)) as (server, proposer):
        run(tmp_path / "all", proposer)
    assert "limit of 10 tool calls" in str(last(tmp_path / "all").session_error)
    with gemini(backend, [reply(call("list_files"))], replace(LIMITS, model_calls=5)) as (server, proposer):
        run(tmp_path / "on", proposer)
    assert len(server.requests) == 5
    assert "limit of 5 model calls" in str(last(tmp_path / "on").session_error)


def test_no_candidate_too_many_the_same_thrice_and_a_copy_of_the_incumbent(tmp_path: Path, backend: Backend) -> None:
    with gemini(backend, [reply(call("finish"))]) as (_, proposer):
        run(tmp_path / "none", proposer)
    assert last(tmp_path / "none").session is SessionState.COMPLETED
    assert [slot.state for slot in last(tmp_path / "none").slots] == [SlotState.EMPTY] * 2

    with gemini(backend, [reply(*[write(f"A = {number}\n") for number in range(1, 6)])]) as (_, proposer):
        run(tmp_path / "many", proposer)
    assert len(Archive(tmp_path / "many").candidates) == 3

    with gemini(backend, [reply(*[write("A = 1\n")] * 3)]) as (_, proposer):
        run(tmp_path / "same", proposer, candidates=3)
    states = [(slot.state, slot.detail) for slot in last(tmp_path / "same").slots]
    assert states[0][0] is SlotState.SCORED
    assert states[1:] == [(SlotState.INVALID, "is a copy of candidate 001")] * 2

    with gemini(backend, [reply(write(H0), write("A = 2 + 3\n"))]) as (_, proposer):
        run(tmp_path / "copy", proposer)
    assert last(tmp_path / "copy").slots[0].detail == "is a copy of candidate 000"
    assert last(tmp_path / "copy").incumbent == "002"


def test_limits_in_tokens_time_and_money_are_not_exceeded(tmp_path: Path, backend: Backend) -> None:
    busy = reply(call("list_files"), usage={"promptTokenCount": 3000, "candidatesTokenCount": 500})
    prices = Prices(input=1000.0, output=1000.0)
    cases = [
        ("tokens", replace(LIMITS, tokens=20_000), None, "session's limit of 20000 tokens"),
        ("money", replace(LIMITS, dollars=20.0), prices, "session's limit of 20.0 dollars"),
        ("search", replace(LIMITS, search_tokens=20_000), None, "search's limit of 20000 tokens"),
    ]
    for name, limits, price, words in cases:
        with gemini(backend, [busy], limits, prices=price) as (server, proposer):
            run(tmp_path / name, proposer)
        record = last(tmp_path / name)
        assert words in str(record.session_error)
        assert 1 < len(server.requests) < 100
        for request in server.requests:
            # Even a reply of the largest size that was asked for would have stayed within the limit.
            used = 3500 * server.requests.index(request)
            assert used + request["generationConfig"]["maxOutputTokens"] <= 20_000
    assert last(tmp_path / "search").decision is Decision.STOP
    with gemini(backend, [busy], replace(LIMITS, search_tokens=20_000)) as (server, proposer):
        run(tmp_path / "budget", proposer, iterations=5)
    assert [record.decision for record in Archive(tmp_path / "budget").iterations] == [Decision.GO_ON, Decision.BUDGET]
    with gemini(backend, [busy], replace(LIMITS, seconds=0.0)) as (server, proposer):
        run(tmp_path / "time", proposer)
    assert not server.requests
    assert "limit of 0 s" in str(last(tmp_path / "time").session_error)


def test_usage_is_summed_over_what_was_reported_and_the_silent_calls_are_counted(
    tmp_path: Path, backend: Backend
) -> None:
    counts = [
        {"promptTokenCount": 11, "candidatesTokenCount": 3, "thoughtsTokenCount": 5, "cachedContentTokenCount": 4},
        None,
        {"promptTokenCount": 17, "toolUsePromptTokenCount": 2},
        {},
    ]
    replies = [reply(call("list_files"), usage=usage) for usage in counts]
    with gemini(backend, [*replies, error(500), BOTH], prices=Prices(1.0, 10.0, 0.5)) as (_, proposer):
        run(tmp_path, proposer)
    assert last(tmp_path).usage == {
        "calls": 6, "input_tokens": 11 + 19 + 100, "output_tokens": 8 + 27, "cached_tokens": 4,
        "calls_without_usage": 3, "dollars": pytest.approx((126 + 4 * 0.5 + 350) / 1e6),
    }  # fmt: skip


def test_the_tools_compute_over_the_workspace(tmp_path: Path, backend: Backend) -> None:
    second = reply(
        call("run_python", code="import json; print(len(json.load(open('candidates/001/scores.json'))['results']))"),
        call("search_text", text="WORDS OF TASK-2", path="candidates/001"),
        call("diff_candidates", before="000", after="001"),
        call("check_candidate", source="A = BAD\n"),
        call("check_candidate", source="A = 7\n"),
        call("read_file", path="candidates/001/broke_fixed.json"),
        call("read_file", path="candidates/001/traces/0000.json", offset=10.0),
    )
    limits = replace(LIMITS, result_chars=400)
    with gemini(backend, [BOTH, second, reply(write("A = 5\n"), write("A = 6\n"))], limits) as (server, proposer):
        run(tmp_path, proposer, iterations=2)
    python, search, diff, bad, good, table, page = answers(server, 2)
    assert python["stdout"] == "4\n", python
    assert search["total"] == 1
    assert search["hits"][0]["path"] == "candidates/001/traces/0002.json"
    assert "+A = 0 + 1" in diff["diff"]
    assert diff["fixed"] == [["task-1", 0]]
    assert diff["broke"] == []
    assert bad == {"valid": False, "errors": ["holds BAD"]}
    assert good == {"valid": True, "errors": []}
    assert json.loads(table["text"])["000"]["fixed"] == [["task-1", 0]]
    assert page["next_offset"] == 410


def test_without_a_sandbox_a_script_that_writes_is_noticed(tmp_path: Path) -> None:
    script = "open('candidates/000/harness.py', 'w').write('A = 1 + 2 + 3'); print(1)"
    with gemini(detect("none"), [reply(call("run_python", code=script)), BOTH]) as (_, proposer):
        run(tmp_path, proposer)
    assert not (tmp_path / "workspace").exists()
    assert Archive(tmp_path).candidates["000"].source == H0


def test_what_is_missing_is_said_before_anything_starts(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GEMINI_API_KEY")
    common: dict[str, Any] = {"manual": "", "skill": "", "backend": backend, "check": check}
    with pytest.raises(ProposerSettingsError, match="GEMINI_API_KEY or GOOGLE_API_KEY"):
        GeminiProposer(GeminiSettings("m"), **common)
    with pytest.raises(ProposerSettingsError, match="project and a location"):
        GeminiSettings("m", vertex=True)
    with pytest.raises(ProposerSettingsError, match="thinking level"):
        GeminiSettings("m", thinking_level="much")
    monkeypatch.setenv("GOOGLE_API_KEY", KEY)
    with pytest.raises(ProposerSettingsError, match="prices"):
        GeminiProposer(GeminiSettings("m"), **common, limits=SessionLimits(dollars=1.0))
    monkeypatch.setitem(__import__("sys").modules, "google.genai", None)
    with pytest.raises(ProposerSettingsError, match=r"pip install 'whale-jax\[gemini\]'"):
        GeminiProposer(GeminiSettings("m"), **common)


LIVE = os.environ.get("HARNESS_SEARCH_LIVE_MODEL")
LIVE_KEY = os.environ.get("GEMINI_API_KEY") or os.environ.get("GOOGLE_API_KEY")


@pytest.mark.skipif(not (LIVE and LIVE_KEY), reason="set HARNESS_SEARCH_LIVE_MODEL and a key to talk to a real model")
def test_a_real_model_fills_a_slot(tmp_path: Path, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMINI_API_KEY", str(LIVE_KEY))
    manual = "A harness here is one line of Python, `A = <number>`. Write other numbers than those you find."
    limits = SessionLimits(model_calls=10, tokens=200_000, seconds=200.0)
    proposer = GeminiProposer(
        GeminiSettings(str(LIVE)), manual=manual, skill="", backend=backend, check=check, limits=limits
    )
    run(tmp_path, proposer, candidates=1)
    assert last(tmp_path).slots[0].state is not SlotState.EMPTY
    assert last(tmp_path).usage["output_tokens"] > 0


def test_retries_wait_longer_and_follow_the_servers_wish() -> None:
    retries = Retries(attempts=4, first_delay=1.0, longest_delay=3.0)
    assert [retries.delay(attempt, None) for attempt in (1, 2, 3, 4)] == [1.0, 2.0, 3.0, None]
    assert retries.delay(1, 2.5) == 2.5
    assert retries.delay(1, 99.0) is None
