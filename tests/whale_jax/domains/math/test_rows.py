"""Rows of the public sets, from every kind of file."""

import gzip
import json
import re
import sys

import pytest
import zstandard

from whale_jax.domains.math.rows import parse_row, read_problems
from whale_jax.domains.row_files import ROW_SUFFIXES
from whale_jax.domains.task import RowError, TaskError

DAPO_PROMPT = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\n{}\n\n"
    'Remember to put your answer on its own line after "Answer:".'
)


def dapo(problem, answer, index="a"):
    return {
        "data_source": "math_dapo",
        "prompt": [{"role": "user", "content": DAPO_PROMPT.format(problem)}],
        "ability": "MATH",
        "reward_model": {"ground_truth": answer, "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": index},
    }


LAYOUTS = [
    (dapo("Find $x$.\n\nIt is whole.", "34"), "Find $x$.\n\nIt is whole.", "34", "a"),
    ({"prompt": "Find $x$.", "solution": "34", "data_source": "math_dapo"}, "Find $x$.", "34", None),
    ({"prompt": "Find $x$.", "solution": "", "reward_model": {"ground_truth": "5"}}, "Find $x$.", "5", None),
    (
        {"id": 60, "problem": "Find $x$.", "solution": "Long …", "answer": "204", "year": "2024"},
        "Find $x$.",
        "204",
        "60",
    ),
    ({"ID": "2024-I-1", "Problem": "Find $x$.", "Solution": "…", "Answer": 204}, "Find $x$.", "204", "2024-I-1"),
    ({"question": " Find $x$. ", "answer": 70.0}, "Find $x$.", "70", None),
    ({"problem": "Find.", "answer": 0}, "Find.", "0", None),
]


@pytest.mark.parametrize(("row", "question", "answer", "row_id"), LAYOUTS)
def test_the_layouts_of_the_public_sets(row, question, answer, row_id):
    parsed = parse_row(row)
    assert (parsed.inputs, parsed.reference, parsed.id) == ({"question": question}, {"answer": answer}, row_id)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({}, "no problem"),
        ({"problem": " ", "answer": "1"}, "the problem is empty"),
        ({"prompt": [], "answer": "1"}, "no problem"),
        ({"prompt": [{"role": "system", "content": "x"}], "answer": "1"}, "no problem"),
        ({"prompt": [{"role": "user", "content": None}], "answer": "1"}, "no problem"),
        ({"problem": "x"}, "no answer"),
        ({"problem": "x", "solution": "1"}, "no answer"),
        ({"problem": "x", "answer": True}, "no answer"),
        ({"problem": "x", "answer": ["1"]}, "no answer"),
        ({"problem": "x", "answer": " "}, "the answer is empty"),
        ({"problem": "x", "answer": r"\frac{1}{2"}, "unbalanced braces"),
    ],
)
def test_bad_rows_say_why(row, reason):
    with pytest.raises(RowError, match=reason):
        parse_row(row)


ROWS = [dapo("One?", "1"), dapo("Two?", "2", "b"), dapo("ONE? ", "1", "c"), dapo("One?", "7", "d"), dapo("One?", "1")]


def write(path, rows):
    if path.suffix != ".parquet":
        pack = {".zst": zstandard.compress, ".gz": gzip.compress}.get(path.suffix, bytes)
        path.write_bytes(pack("".join(json.dumps(row) + "\n" for row in rows).encode()))
    else:
        arrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.Table.from_pylist(rows), path)
    return path


@pytest.mark.parametrize("suffix", ROW_SUFFIXES)
def test_copies_are_dropped_and_contradictions_are_bad_rows(tmp_path, suffix):
    file = read_problems(write(tmp_path / f"x{suffix}", ROWS), max_bad_rows=0.5)
    assert [(one.inputs["question"], one.id) for one in file.problems] == [("One?", "a"), ("Two?", "b")]
    assert file.copies == 2
    (bad,) = file.bad_rows
    assert (bad.line, bad.reason) == (4, "the same problem as an earlier row, with another answer")


@pytest.mark.parametrize("suffix", ROW_SUFFIXES)
def test_too_many_bad_rows_stop_the_run_and_name_the_line(tmp_path, suffix):
    path = write(tmp_path / f"x{suffix}", ROWS)
    with pytest.raises(TaskError, match=rf"1 of 5 rows are bad.*x{re.escape(suffix)}:4: the same problem"):
        read_problems(path)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(TaskError, match="no problem in this file"):
        read_problems(write(tmp_path / "empty.jsonl", []))
    with pytest.raises(TaskError, match="cannot be read"):
        read_problems(tmp_path / "missing.jsonl")


def test_a_broken_parquet_file_is_named(tmp_path):
    pytest.importorskip("pyarrow")
    path = tmp_path / "x.parquet"
    path.write_bytes(b"PAR1 but not really PAR1")
    with pytest.raises(TaskError, match=r"x\.parquet: not a sound Parquet file"):
        read_problems(path)


def test_without_pyarrow_the_message_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(TaskError, match=r"x\.parquet: reading Parquet needs pyarrow: pip install"):
        read_problems(tmp_path / "x.parquet")
