"""The journal keeps what was committed, and notices when it was touched."""

import json
from concurrent.futures import Future

import pytest

from whale_jax.journal import Journal, JournalError, write_once


def test_replay_follows_then_append_goes_on(tmp_path):
    first = Journal(tmp_path)
    assert first.replay("weight", cycle=0) is None
    first.append("weight", {"cycle": 0, "steps": [1, 2]})
    first.append("search", {"cycle": 0})
    again = Journal(tmp_path)
    assert again.replay("weight", cycle=0)["steps"] == [1, 2]
    assert again.replaying
    assert again.replay("search", cycle=0) is not None
    assert again.replay("weight", cycle=1) is None
    assert again.hash == first.hash


def test_append_refuses_while_entries_are_left(tmp_path):
    Journal(tmp_path).append("weight", {})
    with pytest.raises(JournalError, match="replayed"):
        Journal(tmp_path).append("weight", {})


def test_another_kind_of_entry_is_an_error(tmp_path):
    Journal(tmp_path).append("weight", {"cycle": 0})
    with pytest.raises(JournalError, match="would commit"):
        Journal(tmp_path).replay("search", cycle=0)
    with pytest.raises(JournalError, match="would commit"):
        Journal(tmp_path).replay("weight", cycle=1)


def test_a_changed_entry_breaks_the_chain(tmp_path):
    journal = Journal(tmp_path)
    for cycle in range(3):
        journal.append("weight", {"cycle": cycle})
    path = tmp_path / "000001.json"
    entry = json.loads(path.read_text())
    entry["cycle"] = 7
    path.write_text(json.dumps(entry))
    with pytest.raises(JournalError, match=r"000002\.json"):
        Journal(tmp_path)


def test_a_missing_entry_and_broken_json_are_named(tmp_path):
    journal = Journal(tmp_path)
    for cycle in range(3):
        journal.append("weight", {"cycle": cycle})
    (tmp_path / "000001.json").unlink()
    with pytest.raises(JournalError, match="missing"):
        Journal(tmp_path)
    (tmp_path / "000001.json").write_text("{")
    with pytest.raises(JournalError, match="not JSON"):
        Journal(tmp_path)
    (tmp_path / "000001.json").write_text("[]")
    with pytest.raises(JournalError, match="does not follow"):
        Journal(tmp_path)


def test_two_processes_cannot_write_the_same_entry(tmp_path):
    one, two = Journal(tmp_path), Journal(tmp_path)
    one.append("weight", {"by": "one"})
    with pytest.raises(JournalError, match="another process"):
        two.append("weight", {"by": "two"})
    assert Journal(tmp_path).entries[0]["by"] == "one"


def test_not_a_number_is_refused(tmp_path):
    with pytest.raises(ValueError, match="Out of range"):
        Journal(tmp_path).append("weight", {"reward": float("nan")})
    assert Journal(tmp_path).entries == []


def test_a_temporary_left_by_a_kill_is_no_entry(tmp_path):
    (tmp_path / ".000000.json.123.tmp").write_text("{")
    Journal(tmp_path).append("weight", {})
    assert len(Journal(tmp_path).entries) == 1


def test_write_once_leaves_an_existing_file(tmp_path):
    write_once(tmp_path / "a", b"1")
    with pytest.raises(FileExistsError):
        write_once(tmp_path / "a", b"2")
    assert (tmp_path / "a").read_bytes() == b"1"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_write_that_fails_leaves_nothing(tmp_path, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_once(tmp_path / "a", b"1")
    assert list(tmp_path.iterdir()) == []


def test_an_entry_follows_its_evidence(tmp_path):
    journal = Journal(tmp_path)
    evidence = Future()
    first = journal.append("weight", {"step": 1}, after=evidence)
    assert (first["entry"], journal.entries, list(tmp_path.iterdir())) == (0, [first], [])
    journal.settle(wait=False)
    assert list(tmp_path.iterdir()) == []
    evidence.set_result(None)
    journal.append("evaluation", {})
    assert Journal(tmp_path).entries == journal.entries
    done = Future()
    done.set_result(None)
    journal.append("weight", {"step": 2}, after=done)
    journal.settle(wait=False)
    assert Journal(tmp_path).hash == journal.hash


def test_without_its_evidence_an_entry_is_none(tmp_path):
    journal = Journal(tmp_path)
    journal.append("evaluation", {})
    before = journal.hash
    evidence = Future()
    journal.append("weight", {"step": 1}, after=evidence)
    evidence.set_exception(OSError(28, "No space left on device"))
    with pytest.raises(OSError, match="No space left"):
        journal.append("evaluation", {})
    assert (journal.hash, len(journal.entries)) == (before, 1)
    journal.append("weight", {"step": 1})
    assert Journal(tmp_path).entries == journal.entries
