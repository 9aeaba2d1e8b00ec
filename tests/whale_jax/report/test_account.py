"""What a run spent: the clock, the meter, and the account over several jobs."""

import io
import json
import time

import pytest
from rich.console import Console

from whale_jax.assemble import checkpoint_directory
from whale_jax.qwen3_5.config import Qwen35Config
from whale_jax.qwen3_5.params import param_shapes
from whale_jax.report.account import Meter, account, flops
from whale_jax.report.busy import BusyClock
from whale_jax.report.summary import print_account


@pytest.fixture
def config() -> Qwen35Config:
    """The demo model's."""
    return Qwen35Config.from_dir(checkpoint_directory(None))


@pytest.fixture
def now(monkeypatch):
    """A clock that stands until it is set."""
    seconds = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: seconds[0])
    return seconds


def test_steps_that_overlap_are_counted_once(now):
    clock = BusyClock()
    with clock:
        now[0] = 101.0
        with clock:
            now[0] = 103.0
            assert clock.seconds == 3.0
        now[0] = 104.0
    now[0] = 110.0
    with pytest.raises(ZeroDivisionError):
        _break_off(clock, now)
    now[0] = 120.0
    assert clock.seconds == 5.0


def _break_off(clock, now):
    with clock:
        now[0] = 111.0
        raise ZeroDivisionError


def test_flops_are_two_forward_and_four_backward_per_weight(config):
    head = config.vocab_size * config.hidden_size
    assert flops(config, computed=0, sampled=5, trained=0) == 2 * 5 * head
    layers = flops(config, computed=1, sampled=0, trained=0) / 2
    linear = param_shapes(config)["linear"]["gate"]  # [groups, layers of a group, D, F]: one of the matrices
    assert layers > linear[0] * linear[1] * linear[2] * linear[3]
    assert flops(config, computed=0, sampled=0, trained=7) == 6 * 7 * (layers + head)
    assert flops(config, computed=3, sampled=2, trained=1) == 2 * (3 * layers + 2 * head) + 6 * (layers + head)


def test_a_lap_holds_what_came_since_the_last(now, config):
    stats, clock = {"computed_tokens": 10, "sampled_tokens": 4}, BusyClock()
    meter = Meter(config, lambda: dict(stats), clock, job_seconds=8.0)
    with clock:
        now[0] = 103.0
    now[0] = 104.0
    stats |= {"computed_tokens": 110, "sampled_tokens": 24}
    meter.trained(50)
    meter.trained(6)
    assert meter.lap() == {
        "seconds": 4.0,
        "busy_seconds": 3.0,
        "computed_tokens": 100,
        "trained_tokens": 56,
        "flops": flops(config, computed=100, sampled=20, trained=56),
        "start_seconds": 8.0,
    }
    now[0] = 105.0
    assert meter.since_lap == 1.0
    second = meter.lap()
    assert (second["seconds"], second["busy_seconds"], second["flops"], second["start_seconds"]) == (1.0, 0.0, 0.0, 0.0)


ENTRIES = [
    {"entry": 0, "kind": "evaluation", "split": "validation", "episodes": 8, "sampled_tokens": 80},
    {"entry": 1, "kind": "weight", "cycle": 0, "rollouts": 16,
     "steps": [{"sampled_tokens": 100}, {"sampled_tokens": 60}]},
    {"entry": 2, "kind": "weight", "cycle": 0, "rollouts": 8, "steps": [{"sampled_tokens": 70}]},
    {"entry": 3, "kind": "search", "cycle": 0, "rollouts": 12, "sampled_tokens": 120,
     "usage": {"calls": 2, "input_tokens": 1000, "output_tokens": 50, "dollars": 0.25}},
    {"entry": 4, "kind": "search", "cycle": 0, "rollouts": 4, "sampled_tokens": 40,
     "usage": {"calls": 1, "input_tokens": 500, "output_tokens": 10, "dollars": 0.5}},
    {"entry": 5, "kind": "evaluation", "split": "validation", "episodes": 8, "sampled_tokens": 90},
]  # fmt: skip


def line(entry: int, **values) -> dict:
    fields = {"seconds": 10.0, "busy_seconds": 8.0, "computed_tokens": 1000, "trained_tokens": 0, "flops": 1e9}
    fields |= {"rollout_seconds": 6.5, "train_seconds": 3.0}
    return {"kind": "account", "entry": entry, "start_seconds": 0.0, **fields, **values}


def written(tmp_path, lines):
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    return path


def test_the_jobs_of_a_run_add_up(tmp_path):
    lines = [line(0, start_seconds=30.0), {"kind": "weight", "step": 1}, line(1, trained_tokens=500), line(2)]
    lines += [line(3, start_seconds=20.0, busy_seconds=1.0), line(4), line(5)]
    spent = account(ENTRIES, written(tmp_path, lines))
    assert list(spent.phases) == ["evaluation, validation", "cycle 1, weights", "cycle 1, search"]
    weights, search = spent.phases["cycle 1, weights"], spent.phases["cycle 1, search"]
    assert (weights.rollouts, weights.sampled_tokens, weights.trained_tokens, weights.commits) == (24, 230, 500, 2)
    assert (search.rollouts, search.seconds, search.idle_seconds) == (16, 20.0, 11.0)
    assert (search.proposer["dollars"], search.proposer_tokens, weights.proposer_tokens) == (0.75, 1560, 0)
    total = spent.total
    assert (total.rollouts, total.sampled_tokens, total.computed_tokens, total.flops) == (56, 560, 6000, 6e9)
    assert (total.seconds, total.commits, total.measured) == (60.0, 6, 6)
    assert (spent.jobs, spent.start_seconds) == (2, 50.0)
    assert (search.other_seconds, total.other_seconds) == (1.0, 3.0)
    assert spent.other_share() == (3 + 50) / (60 + 50)
    assert spent.other_share(10.0) == (3 + 50 + 10) / (60 + 50 + 10)
    assert len(spent.notes) == 1
    assert spent.notes[0].startswith("2 jobs: what one of them did after its last commit")
    assert json.loads(json.dumps(spent.to_json()))["total"]["rollouts"] == 56


def test_what_the_records_do_not_hold_is_said(tmp_path):
    spent = account(ENTRIES, written(tmp_path, [line(0, start_seconds=1.0), line(1), line(5)]))
    assert (spent.total.rollouts, spent.total.measured, spent.total.seconds) == (56, 3, 30.0)
    assert spent.phases["cycle 1, search"].seconds is None
    assert spent.notes[0].startswith("3 of 6 commits have no measurements")
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "account", "ent\n[1]\n')
    assert account(ENTRIES, tmp_path / "metrics.jsonl").total == spent.total
    nothing = account(ENTRIES, tmp_path / "none.jsonl")
    assert (nothing.total.rollouts, nothing.total.flops, nothing.jobs) == (56, None, 0)
    assert nothing.other_share(5.0) is None
    old = {name: value for name, value in line(1).items() if not name.startswith(("rollout", "train_"))}
    assert account(ENTRIES, written(tmp_path, [line(0), old, line(2)])).other_share() is None
    unknown = {**ENTRIES[3], "usage": {"calls": 2, "input_tokens": None, "output_tokens": 5, "dollars": None}}
    assert account([unknown], tmp_path / "none.jsonl").total.proposer_tokens is None


def test_the_table_shows_unknown_figures_as_such(tmp_path):
    console = Console(file=io.StringIO(), width=80)
    print_account(account(ENTRIES, written(tmp_path, [line(entry) for entry in (0, 1, 2, 5)])), console)
    rows = {row[:16].strip(): row.split() for row in console.file.getvalue().splitlines()}  # type: ignore[attr-defined]
    assert rows["cycle 1, search"][3:] == ["16", "160", "?", "?", "1,560", "0.75", "?", "?"]
    assert rows["cycle 1, weights"][3:] == ["24", "230", "2,000", "2e+09", "0", "0.00", "0.3", "20", "%"]
    assert rows["validation"][1:3] == ["16", "170"]
    assert rows["total"][1:3] == ["56", "560"]
    assert "5.0 % of the time was neither episodes nor training steps" in console.file.getvalue()  # type: ignore[attr-defined]
