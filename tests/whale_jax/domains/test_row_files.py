"""Rows come out the same whatever the file's form, and a damaged file is an error, never a shorter one."""

import gzip
import json
import sys

import pytest
import zstandard

from whale_jax.domains.row_files import RowFileError, find_rows, lines, raw_rows
from whale_jax.domains.task import BadRow, TaskError, read_rows

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

ROWS = [{"id": number, "answers": ["é", "x" * 3_000], "meta": None} for number in range(300)]
TEXT = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS).encode()


def write(path):
    if path.suffix == ".parquet":
        parquet.write_table(pyarrow.Table.from_pylist(ROWS), path, row_group_size=7)
    else:
        frames = zstandard.compress(TEXT[:100_000]) + zstandard.compress(TEXT[100_000:])
        path.write_bytes({".zst": frames, ".gz": gzip.compress(TEXT)}.get(path.suffix, TEXT))
    return path


NAMES = ["a.jsonl", "a.jsonl.zst", "a.jsonl.gz", "a.parquet"]


@pytest.mark.parametrize("name", NAMES)
def test_every_form_gives_the_same_rows(name, tmp_path):
    path = write(tmp_path / name)
    assert list(read_rows(path, dict)) == ROWS
    assert [number for number, _ in raw_rows(path)] == list(range(1, 301))


@pytest.mark.parametrize("name", NAMES[1:])
@pytest.mark.parametrize("keep", [0.0, 0.3, 0.999])
def test_a_file_that_was_cut_is_an_error(name, keep, tmp_path):
    path = write(tmp_path / name)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep) or 3])
    with pytest.raises(TaskError, match=rf"{name}: (damaged|cut short|not a sound Parquet file)"):
        list(read_rows(path, dict))


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_is_not_there_is_named(name, tmp_path):
    with pytest.raises(TaskError, match=rf"{name}: cannot be read: No such file"):
        list(read_rows(tmp_path / name, dict))


def test_lines_without_an_end_and_empty_lines(tmp_path):
    (tmp_path / "a.zst").write_bytes(zstandard.compress(b"one\n\ntwo\nthree"))
    assert list(lines(tmp_path / "a.zst")) == [b"one", b"", b"two", b"three"]
    (tmp_path / "b.jsonl.zst").write_bytes(zstandard.compress(b'{"a": 1}\n\n[]\n{"a": 2}'))
    rows = list(read_rows(tmp_path / "b.jsonl.zst", dict))
    assert [row.line if isinstance(row, BadRow) else row["a"] for row in rows] == [1, 3, 2]


def test_the_first_form_that_is_there_is_found(tmp_path):
    assert find_rows(tmp_path, "a") is None
    for name in reversed(NAMES):
        (tmp_path / name).touch()
        assert find_rows(tmp_path, "a") == tmp_path / name


def test_without_pyarrow_it_says_what_to_do(tmp_path, monkeypatch):
    path = write(tmp_path / "a.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(RowFileError, match=r"needs pyarrow: pip install 'whale-jax\[parquet\]'"):
        list(raw_rows(path))
