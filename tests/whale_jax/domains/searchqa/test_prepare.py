"""Preparation: the splits' make-up, their disjointness, the record, and what is said when something is missing."""

import json
from collections import Counter

import pytest
import zstandard

from whale_jax.domains.manifest import Manifest, digest
from whale_jax.domains.registry import load_domain
from whale_jax.domains.searchqa.prepare import Sizes, prepare
from whale_jax.domains.searchqa.public_sets import PUBLIC_FILES, TEST_PARTS
from whale_jax.domains.task import Split, TaskError

SIZES = Sizes(weight=30, harness={"hotpotqa": 5, "nq": 2}, validation={"hotpotqa": 4, "nq": 3}, test_per_set=3)


def rows(name, part, count):
    questions = [f"{name} {part} question {n}?" for n in range(count)]
    return [{"id": f"{part}_{n}", "question": q, "golden_answers": [f"a{n}"]} for n, q in enumerate(questions)]


def jsonl(items):
    return "".join(json.dumps(item) + "\n" for item in items).encode()


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "public"
    for name, part in TEST_PARTS.items():
        (folder / name).mkdir(parents=True)
        (folder / name / f"{part}.jsonl").write_bytes(jsonl(rows(name, part, 5)))
    train = rows("nq", "train", 30)
    train[3]["question"] = "POPQA  test question 4?"  # stands in a test set, spelled otherwise
    train[4]["question"] = train[5]["question"]
    (folder / "nq" / "train.jsonl.zst").write_bytes(zstandard.compress(jsonl(train)))
    train = rows("hotpotqa", "train", 60)
    train[0]["question"] = "nq train question 7?"  # stands in the other training set
    (folder / "hotpotqa" / "train.jsonl").write_bytes(jsonl(train))
    (folder / "corpus.jsonl").write_bytes(b'{"id": 1, "contents": "\\"T\\"\\nx"}\n')
    return folder


def read(path):
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_the_splits_and_their_record(source, tmp_path):
    out = tmp_path / "data"
    manifest = prepare(source, out, seed=42, sizes=SIZES)
    splits = {split: read(out / f"{split}.jsonl") for split in Split}
    made_of = {split: Counter(row["data_source"] for row in rows) for split, rows in splits.items()}
    assert made_of[Split.TEST] == dict.fromkeys(TEST_PARTS, 3)
    assert made_of[Split.HARNESS] == {"hotpotqa": 5, "nq": 2}
    assert made_of[Split.VALIDATION] == {"hotpotqa": 4, "nq": 3}
    assert made_of[Split.WEIGHT] == {"hotpotqa": 21, "nq": 9}  # 50 and 23 are left: in proportion
    questions = [" ".join(row["question"].casefold().split()) for rows in splits.values() for row in rows]
    assert len(questions) == len(set(questions))
    assert "popqa test question 4?" not in {q for row in splits[Split.WEIGHT] for q in [row["question"].casefold()]}
    assert Manifest.read(out) == manifest
    assert manifest.counts["weight nq"] == 9
    assert manifest.counts["copies inside a set"] == 1
    assert manifest.counts["training questions that a test set holds, or another training set"] == 2
    by_path = {file.path: file for file in manifest.sources}
    assert len(by_path) == 7 + 2 + 1
    assert (by_path["nq/train.jsonl.zst"].bytes, by_path["nq/train.jsonl.zst"].sha256) == digest(
        source / "nq" / "train.jsonl.zst"
    )
    assert by_path["musique/dev.jsonl"].licence.startswith("CC BY 4.0")
    assert "huggingface.co" in by_path["musique/dev.jsonl"].origin
    assert by_path["nq/train.jsonl.zst"].rows == 30
    for file in manifest.outputs:
        assert (file.bytes, file.sha256) == digest(out / file.path)
    assert [file.rows for file in manifest.outputs] == [30, 7, 7, 21]


def test_the_folder_is_ready_for_a_run(source, tmp_path):
    out = tmp_path / "data"
    prepare(source, out, seed=42, sizes=SIZES)
    (out / "corpus.jsonl").write_bytes((source / "corpus.jsonl").read_bytes())
    domain = load_domain("searchqa", task_dir=out)
    assert {split: len(domain.tasks(split)) for split in Split} == dict(zip(Split, (30, 7, 7, 21), strict=True))
    assert domain.tasks(Split.TEST)[0].reference["set"] in TEST_PARTS


def test_the_order_of_files_does_not_matter_and_the_seed_does(source, tmp_path):
    prepare(source, tmp_path / "one", seed=42, sizes=SIZES)
    path = source / "hotpotqa" / "train.jsonl"
    path.write_bytes(b"".join(reversed(path.read_bytes().splitlines(keepends=True))))
    prepare(source, tmp_path / "two", seed=42, sizes=SIZES)
    prepare(source, tmp_path / "three", seed=43, sizes=SIZES)
    for split in Split:
        one, two, three = (read(tmp_path / name / f"{split}.jsonl") for name in ("one", "two", "three"))
        assert one == two
        assert {row["id"] for row in one} != {row["id"] for row in three}


def test_a_larger_d_weight_leaves_the_other_splits_as_they_are(source, tmp_path):
    prepare(source, tmp_path / "small", seed=42, sizes=SIZES)
    prepare(source, tmp_path / "large", seed=42, sizes=Sizes(40, SIZES.harness, SIZES.validation, 3))
    for split in (Split.HARNESS, Split.VALIDATION, Split.TEST):
        assert read(tmp_path / "small" / f"{split}.jsonl") == read(tmp_path / "large" / f"{split}.jsonl")


def test_merged_parquet_files_serve_in_place_of_folders(source, tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    prepare(source, tmp_path / "folders", seed=42, sizes=SIZES)
    merged = tmp_path / "merged"
    merged.mkdir()
    parts = {name: read(source / name / f"{part}.jsonl") for name, part in TEST_PARTS.items()}
    tests = [{**row, "data_source": name} for name in parts for row in parts[name]]
    packed = (source / "nq" / "train.jsonl.zst").read_bytes()
    nq = [json.loads(line) for line in zstandard.decompress(packed).splitlines()]
    trains = [
        *({**row, "data_source": "nq"} for row in nq),
        *({**row, "data_source": "hotpotqa"} for row in read(source / "hotpotqa" / "train.jsonl")),
        {"id": "x", "question": "Q of another set?", "golden_answers": ["x"], "data_source": "squad"},
    ]
    parquet.write_table(pyarrow.Table.from_pylist(tests), merged / "test.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(trains), merged / "train.parquet")
    manifest = prepare(merged, tmp_path / "out", seed=42, sizes=SIZES)
    for split in Split:
        assert read(tmp_path / "out" / f"{split}.jsonl") == read(tmp_path / "folders" / f"{split}.jsonl")
    assert [file.path for file in manifest.sources] == ["test.parquet", "train.parquet"]


def test_what_is_missing_is_named_with_where_it_is_to_be_had(source, tmp_path):
    (source / "musique" / "dev.jsonl").unlink()
    (source / "popqa" / "test.jsonl").unlink()
    with pytest.raises(TaskError) as missing:
        prepare(source, tmp_path / "data", seed=42, sizes=SIZES)
    message = str(missing.value)
    assert "2 file(s) are missing" in message
    for name in ("musique/dev.jsonl", "popqa/test.jsonl"):
        (file,) = [file for file in PUBLIC_FILES if file.path == name]
        assert str(file) in message
        assert file.origin.startswith("https://")
    assert "or in their place train.parquet from https://" in message
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (Sizes(30, {"nq": 29}, {}, 3), "D_harness: 29 questions of nq are needed and 28 are left"),
        (Sizes(99, {}, {}, 3), "D_weight: 32 questions of nq are needed and 28 are left"),
        (Sizes(30, {}, {}, 6), "test set nq: 6 questions are needed and 5 can be used"),
    ],
)
def test_too_few_questions(sizes, message, source, tmp_path):
    with pytest.raises(TaskError, match=message):
        prepare(source, tmp_path / "data", seed=42, sizes=sizes)


def test_bad_rows_and_a_folder_that_is_not_empty(source, tmp_path):
    with (source / "nq" / "test.jsonl").open("a", encoding="utf-8") as stream:
        stream.write('{"question": "no answer?"}\n')
    with pytest.raises(TaskError, match=r"1 of 6 rows are bad, more than a share of 0\.01: .*test\.jsonl:6"):
        prepare(source, tmp_path / "data", seed=42, sizes=SIZES)
    manifest = prepare(source, tmp_path / "data", seed=42, sizes=SIZES, max_bad_rows=0.5)
    assert {file.path: file.bad_rows for file in manifest.sources}["nq/test.jsonl"] == 1
    with pytest.raises(TaskError, match="must be a new or an empty folder"):
        prepare(source, tmp_path / "data", seed=42, sizes=SIZES)
