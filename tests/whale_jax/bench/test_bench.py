"""The benchmark command, on sizes that take no time: what it prints, not how fast it is."""

import json

import pytest

from whale_jax.bench.__main__ import main
from whale_jax.bench.delta_rule import recurrence

SMALL = ["--tokens=40", "--key_heads=1", "--value_heads=2", "--head_dim=8", "--repeats=1"]


def test_delta_rule_prints_a_table_and_one_object(capsys, monkeypatch):
    monkeypatch.setattr("whale_jax.bench.delta_rule.CHUNKS", (16,))
    assert main(["delta_rule", *SMALL, "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    record = json.loads(lines[-1])
    names = [row["implementation"] for row in record["rows"]]
    assert names[:3] == ["recurrence", "doubling, chunk 16", "triangular solve, chunk 16"]
    assert names[3:] == ["torch, chunk 64"] or record["notes"][0].startswith("torch is left out")
    assert all(row["relative_error"] < 1e-5 for row in record["rows"])
    assert all(row["forward_ms"] > 0 and row["forward_backward_ms"] > 0 for row in record["rows"])
    assert record["settings"]["value_heads"] == 2
    table = lines[:-1]
    assert [line.split("  ")[0].strip() for line in table[-len(names) :]] == names


def test_without_json_there_is_no_object(capsys, monkeypatch):
    monkeypatch.setattr("whale_jax.bench.delta_rule.implementations", lambda: {"recurrence": recurrence})
    assert main(["delta_rule", *SMALL]) == 0
    assert "{" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "NAME"),
        (["nothing"], "invalid choice: 'nothing'"),
        (["delta_rule", "--repeats=0"], "--repeats must be >= 1"),
        (["delta_rule", "--key_heads=3"], "--value_heads a multiple"),
    ],
)
def test_wrong_options_are_named(capsys, argv, message):
    with pytest.raises(SystemExit) as stopped:
        main(argv)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
