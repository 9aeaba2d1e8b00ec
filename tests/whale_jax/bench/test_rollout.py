"""The rollout benchmark and the soak: what they count and what they notice, not how fast anything is."""

import dataclasses
import json

import pytest

from whale_jax.bench import soak, workload
from whale_jax.bench.__main__ import main
from whale_jax.bench.soak import Footprint, SoakError
from whale_jax.serving.driver import DriverName

KEYS = {
    "single_turn_ratio",
    "multi_turn_ratio",
    "prefill_ratio",
    "prefill_ratio_without_store",
    "prefill_ratio_without_sessions",
    "host_overhead",
    "occupancy",
}


def make(**changes: int) -> workload.Workload:
    sizes = {"prompts": 3, "group": 2, "tool_turns": 2, "longest_reply": 40, "vocab": 100, "seed": 1}
    return workload.make(**(sizes | changes))


def test_a_workload_is_what_it_says() -> None:
    work = make()
    assert work == make()
    assert work != make(seed=2)
    firsts = [turns[0].new_ids for turns in work.conversations]
    assert firsts[0] == firsts[1] != firsts[2] == firsts[3]
    assert {first[: workload.SYSTEM_TOKENS] for first in firsts} == {firsts[0][: workload.SYSTEM_TOKENS]}
    assert all(100 <= len(first) <= 250 for first in firsts)
    assert all(len(turns) == 3 for turns in work.conversations)
    assert all(4 <= turn.sampled <= 40 for turns in work.conversations for turn in turns)
    later = sum(len(turn.new_ids) for turns in work.conversations for turn in turns[1:])
    assert work.unshared_prompt_tokens == sum(map(len, firsts)) + later
    distinct = sum(len(first) - workload.SYSTEM_TOKENS for first in firsts[::2])
    assert work.new_prompt_tokens == workload.SYSTEM_TOKENS + distinct + later
    assert work.repeated_prompt_tokens > work.unshared_prompt_tokens


def test_replies_have_a_long_tail() -> None:
    lengths = [turns[0].sampled for turns in make(prompts=200, tool_turns=0, longest_reply=192).conversations]
    median = sorted(lengths)[len(lengths) // 2]
    assert 18 <= median <= 30
    assert max(lengths) > 5 * median


@pytest.mark.slow
def test_rollout_prints_its_figures(capsys) -> None:
    pytest.importorskip("transformers")
    assert main(["rollout", "--quick", "--replicas=1", "--json"]) == 0
    *table, last = capsys.readouterr().out.splitlines()
    record = json.loads(last)
    assert record.keys() >= KEYS
    assert all(record[key] > 0 for key in KEYS)
    assert record["prefill_ratio"] < record["prefill_ratio_without_store"] < record["prefill_ratio_without_sessions"]
    assert record["host_overhead"] < 1
    assert record["occupancy"] <= 1
    by = {row["by"].partition(",")[0] for row in record["rows"]}
    assert by == {"scheduler", "JetStream's orchestrator", "transformers"}
    tokens = {(row["turns"], row["tokens"]) for row in record["rows"]}
    assert len(tokens) == 2, "all sides must have sampled the same number of tokens"
    assert f"occupancy: {record['occupancy']:.3g}" in table


def test_a_small_soak_finds_nothing() -> None:
    engine, versions = soak.make_engine()
    drivers: tuple[DriverName, ...] = ("scheduler", "jetstream")
    for driver in drivers:
        state, *_ = soak.soak(1_000, engine, versions, driver=driver)
        assert state.ends["answered"] > 500
        assert state.ends["swap"] == 1
        assert state.ends["restart"] == 1
        assert state.ends.keys() >= {"CancelledError", "ContextOverflow", "DriverStopped", "ServingError", "ValueError"}


def test_a_soak_notices_what_grows() -> None:
    before = Footprint(threads=3, device_bytes=10**6, resident_bytes=10**8)
    soak._compare_footprints(before, before)
    for changes in ({"threads": 4}, {"device_bytes": 10**8}, {"resident_bytes": 10**9}):
        with pytest.raises(SoakError):
            soak._compare_footprints(before, dataclasses.replace(before, **changes))


def test_wrong_options_are_named(capsys) -> None:
    for argv, message in ((["rollout", "--slots=0"], "--slots"), (["soak", "--requests=0"], "--requests")):
        with pytest.raises(SystemExit):
            main(argv)
        assert message in capsys.readouterr().err
