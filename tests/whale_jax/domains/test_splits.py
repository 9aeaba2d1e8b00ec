"""Task files of a folder, in every domain alike."""

import gzip
import json
from hashlib import sha256

import pytest
import zstandard

from whale_jax.domains.registry import load_domain
from whale_jax.domains.splits import data_hash, task_file
from whale_jax.domains.task import Split, Task, TaskError

PUZZLES = (
    ("7k/8/6K1/8/8/8/8/RR6 b - - 0 1", "h8g8 b1b8"),
    ("6k1/5ppp/8/8/8/8/r7/6K1 w - - 0 1", "g1f1 a2a1"),
    ("6k1/5ppp/8/8/8/8/1r6/6K1 w - - 0 1", "g1f1 b2b1"),
    ("6k1/5ppp/8/8/8/8/2r5/6K1 w - - 0 1", "g1h1 c2c1"),
)
ROWS = {
    "searchqa": [{"question": f"Question {number}?", "golden_answers": ["x"]} for number in range(4)],
    "math": [{"problem": f"Problem {number}?", "answer": "5"} for number in range(4)],
    "chess": [{"fen": fen, "moves": moves} for fen, moves in PUZZLES],
}


def write_parquet(path, row):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.Table.from_pylist([row]), path)


@pytest.mark.parametrize("name", ROWS)
def test_every_domain_reads_every_kind_of_task_file(name, tmp_path):
    packed, plain = tmp_path / "packed", tmp_path / "plain"
    for folder in (packed, plain):
        folder.mkdir()
        (folder / "corpus.jsonl").write_text('{"id": "1", "contents": "words"}\n')
    lines = [json.dumps(row).encode() + b"\n" for row in ROWS[name]]
    for split, line in zip(Split, lines, strict=True):
        (plain / f"{split}.jsonl").write_bytes(line)
    (packed / "weight.jsonl").write_bytes(lines[0])
    (packed / "harness.jsonl.zst").write_bytes(zstandard.compress(lines[1]))
    (packed / "validation.jsonl.gz").write_bytes(gzip.compress(lines[2]))
    write_parquet(packed / "test.parquet", ROWS[name][3])
    one, two = (load_domain(name, task_dir=folder) for folder in (packed, plain))
    assert one.data_hash == two.data_hash
    assert [len(one.tasks(split)) for split in Split] == [1, 1, 1, 1]


def test_a_missing_file_is_named_with_what_will_do(tmp_path):
    with pytest.raises(TaskError, match=r"no test tasks: one of test\.jsonl, test\.jsonl\.zst, .* must be there"):
        task_file(tmp_path, Split.TEST)
    for name in ("test.parquet", "test.jsonl"):
        (tmp_path / name).touch()
        assert task_file(tmp_path, Split.TEST).name == name


def test_tasks_come_in_the_order_of_the_hash_of_their_ids_whatever_the_order_of_the_file(tmp_path):
    rows = [{"id": f"id{number}", "problem": f"Problem {number}?", "answer": "5"} for number in range(30)]
    orders = []
    for name, order in (("one", rows), ("two", rows[::-1])):
        folder = tmp_path / name
        folder.mkdir()
        for number, split in enumerate(Split):
            own = order if split is Split.WEIGHT else [{"problem": f"Of {split}?", "answer": str(number)}]
            (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in own))
        domain = load_domain("math", task_dir=folder)
        orders.append(([task.id for task in domain.tasks(Split.WEIGHT)], domain.data_hash))
    assert orders[0] == orders[1]
    assert orders[0][0] != [row["id"] for row in rows]
    assert orders[0][0][:2] == sorted((row["id"] for row in rows), key=lambda one: sha256(one.encode()).digest())[:2]


def test_the_hash_is_that_of_the_tasks_and_of_what_is_added():
    task = Task("1", "toy", {"question": "Q?"}, {"answer": "A"}, Split.TEST)
    splits = {split: [task] if split is Split.TEST else [] for split in Split}
    line = '{"domain":"toy","id":"1","inputs":{"question":"Q?"},"reference":{"answer":"A"},"split":"test"}\n'
    assert data_hash(splits) == sha256(line.encode()).hexdigest()
    assert data_hash(splits, lambda digest: digest.update(b"more")) == sha256(line.encode() + b"more").hexdigest()
