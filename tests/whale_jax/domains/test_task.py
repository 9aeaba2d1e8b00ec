import json

import pytest

from whale_jax.domains.task import (
    ParsedTask,
    RowError,
    Split,
    Task,
    TaskError,
    check_disjoint,
    content_hash,
    load_tasks,
)


def parse(row):
    if "q" not in row:
        raise RowError("`q` is missing")
    return ParsedTask({"q": row["q"]}, {"a": row.get("a")}, row.get("id"))


def write(path, *lines):
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines))
    return path


def load(path, max_bad_rows=0.0):
    return load_tasks(path, domain="toy", split=Split.WEIGHT, parse=parse, max_bad_rows=max_bad_rows)


def test_good_rows_become_tasks_in_file_order(tmp_path):
    loaded = load(write(tmp_path / "t.jsonl", {"q": "one", "id": "1"}, b"", {"q": "two"}))
    assert [task.inputs["q"] for task in loaded.tasks] == ["one", "two"]
    assert loaded.tasks[0].id == "1"
    assert loaded.tasks[1].id == content_hash("toy", {"q": "two"})
    assert loaded.bad_rows == []


BAD_ROWS = {
    "not JSON": b"{",
    "not an object": b"[1]",
    "not UTF-8": b'{"q": "\xff"}',
    "too deep": b'{"q": ' + b"[" * 100_000 + b"}",
    "lone surrogate in a text": b'{"q": "a \\ud800 b"}',
    "lone surrogate in an id": b'{"q": "two", "id": "\\uDC00"}',
    "parser refuses": {"a": "no question"},
    "same id": {"q": "other", "id": "1"},
    "same content": {"q": " ONE ", "id": "9"},
}


@pytest.mark.parametrize("bad", BAD_ROWS.values(), ids=BAD_ROWS.keys())
def test_a_bad_row_is_named_by_line_and_refuses_the_file(tmp_path, bad):
    path = write(tmp_path / "t.jsonl", {"q": "one", "id": "1"}, bad)
    with pytest.raises(TaskError, match=r"1 of 2 rows are bad.*t\.jsonl:2: "):
        load(path)


def test_an_escaped_pair_is_text(tmp_path):
    loaded = load(write(tmp_path / "t.jsonl", b'{"q": "a \\ud83d\\ude00 b"}'))
    assert loaded.tasks[0].inputs["q"] == "a \N{GRINNING FACE} b"


def test_bad_rows_within_the_allowed_share_are_left_out_and_reported(tmp_path):
    loaded = load(write(tmp_path / "t.jsonl", {"q": "one"}, b"{", {"q": "two"}, {"q": "three"}), max_bad_rows=0.25)
    assert len(loaded.tasks) == 3
    assert [(row.line, row.reason.partition(":")[0]) for row in loaded.bad_rows] == [(2, "not JSON")]


def test_missing_and_empty_files_are_errors(tmp_path):
    with pytest.raises(TaskError, match=r"none\.jsonl: cannot be read"):
        load(tmp_path / "none.jsonl")
    with pytest.raises(TaskError, match="no task"):
        load(write(tmp_path / "empty.jsonl"))


def task(text, split, task_id=None):
    return Task(task_id or text, "toy", {"q": text}, {}, split)


def test_disjoint_splits_pass():
    check_disjoint({Split.WEIGHT: [task("a", Split.WEIGHT)], Split.TEST: [task("b", Split.TEST)]})


def test_shared_content_is_refused_unless_allowed_and_never_with_held_out_splits():
    weight = [task("a", Split.WEIGHT)]
    copy = [task("A ", Split.HARNESS, "x")]
    with pytest.raises(TaskError, match="weight and harness share 1 task"):
        check_disjoint({Split.WEIGHT: weight, Split.HARNESS: copy})
    check_disjoint({Split.WEIGHT: weight, Split.HARNESS: copy}, allow_overlap=True)
    with pytest.raises(TaskError, match="weight and test share"):
        check_disjoint({Split.WEIGHT: weight, Split.TEST: [task("a", Split.TEST)]}, allow_overlap=True)


def test_one_id_for_two_tasks_is_refused():
    with pytest.raises(TaskError, match="same id"):
        check_disjoint(
            {Split.WEIGHT: [task("a", Split.WEIGHT, "1")], Split.HARNESS: [task("b", Split.HARNESS, "1")]},
            allow_overlap=True,
        )
