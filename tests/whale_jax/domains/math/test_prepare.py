"""Preparation: splits, manifest, and messages about what is missing."""

import json

import pytest

from whale_jax.domains.manifest import MANIFEST_NAME, Manifest, digest
from whale_jax.domains.math.domain import load
from whale_jax.domains.math.prepare import PUBLIC_FILES, prepare
from whale_jax.domains.task import Split, TaskError

SMALL = {"seed": 0, "harness_tasks": 5, "validation_tasks": 4}


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def downloads(tmp_path):
    """The three sets in small: copies, a bad row, and a training problem that the test set holds."""
    folder = tmp_path / "downloads"
    folder.mkdir()
    train = [{"prompt": f"Problem {number}?", "solution": str(number)} for number in range(40)]
    train += [train[3], {"prompt": "No answer?"}, {"prompt": "Test 1 of 2024?", "solution": "1"}] + [train[7]] * 60
    (folder / "dapo-math-17k.jsonl").write_text(lines(train))
    for year in (2024, 2025):
        rows = [{"id": n, "problem": f"Test {n} of {year}?", "answer": n} for n in range(3)]
        (folder / f"aime_{year}.jsonl").write_text(lines(rows))
    return folder


def rows_of(folder, split):
    return [json.loads(line) for line in (folder / f"{split}.jsonl").read_text().splitlines()]


def test_the_splits_are_disjoint_and_hold_everything_once(downloads, tmp_path):
    out = tmp_path / "out"
    manifest = prepare(downloads, out, **SMALL)
    problems = {split: [row["problem"] for row in rows_of(out, split)] for split in Split}
    assert {split: len(found) for split, found in problems.items()} == {
        Split.WEIGHT: 31,
        Split.HARNESS: 5,
        Split.VALIDATION: 4,
        Split.TEST: 6,
    }
    training = {one for split in (Split.WEIGHT, Split.HARNESS, Split.VALIDATION) for one in problems[split]}
    assert training == {f"Problem {number}?" for number in range(40)}
    assert manifest.counts["training problems that the test set holds"] == 1
    domain = load(task_dir=out)
    assert len(domain.tasks(Split.WEIGHT)) == 31
    assert domain.budgets.assistant_tokens == 8_192
    domain.close()


def test_the_manifest_tells_files_hashes_licences_and_seed(downloads, tmp_path):
    out = tmp_path / "out"
    manifest = prepare(downloads, out, **SMALL | {"seed": 5})
    assert Manifest.read(out) == manifest
    assert (manifest.domain, manifest.seed) == ("math", 5)
    dapo = manifest.sources[0]
    assert dapo.path == "dapo-math-17k.jsonl"
    assert (dapo.bytes, dapo.sha256) == digest(downloads / "dapo-math-17k.jsonl")
    assert (dapo.rows, dapo.bad_rows) == (103, 1)
    assert manifest.counts["DAPO-Math-17k problems"] == 41
    assert manifest.counts["DAPO-Math-17k problems by the paper"] == 17_917
    assert manifest.counts["DAPO-Math-17k copies"] == 61
    assert manifest.counts["harness tasks that D_weight holds"] == 0
    assert manifest.notes[1:] == (
        "dapo-math-17k.jsonl:42 could not be used: no answer: `answer`, `Answer` or `reward_model.ground_truth` must "
        "be a text or a number",
    )
    assert [(file.origin, file.licence) for file in manifest.sources] == [
        (file.origin, file.licence) for file in PUBLIC_FILES
    ]
    assert [(file.path, file.rows) for file in manifest.outputs] == [
        ("weight.jsonl", 31), ("harness.jsonl", 5), ("validation.jsonl", 4), ("test.jsonl", 6)
    ]  # fmt: skip
    assert all((file.bytes, file.sha256) == digest(out / file.path) for file in manifest.outputs)
    assert sorted(path.name for path in out.iterdir()) == sorted(
        [MANIFEST_NAME, *(f"{split}.jsonl" for split in Split)]
    )
    with pytest.raises(TaskError, match="must be a new or an empty folder"):
        prepare(downloads, out, **SMALL)


def test_the_draw_depends_on_the_seed_and_not_on_the_order_of_rows(downloads, tmp_path):
    prepare(downloads, tmp_path / "one", **SMALL)
    path = downloads / "dapo-math-17k.jsonl"
    path.write_text("".join(reversed(path.read_text().splitlines(keepends=True))))
    prepare(downloads, tmp_path / "two", **SMALL)
    prepare(downloads, tmp_path / "other", **SMALL | {"seed": 1})
    one, two, other = (rows_of(tmp_path / name, Split.HARNESS) for name in ("one", "two", "other"))
    assert one == two != other


def test_overlap_is_the_papers_setting_and_spares_validation(downloads, tmp_path):
    out = tmp_path / "out"
    manifest = prepare(downloads, out, overlap=True, **SMALL)
    assert manifest.counts["harness tasks that D_weight holds"] == 5
    assert any("--allow_overlap" in note for note in manifest.notes)
    ids = {split: {row["id"] for row in rows_of(out, split)} for split in Split}
    assert ids[Split.HARNESS] < ids[Split.WEIGHT]
    assert not ids[Split.VALIDATION] & ids[Split.WEIGHT]
    with pytest.raises(TaskError, match="weight and harness share 5"):
        load(task_dir=out)
    load(task_dir=out, allow_overlap=True).close()


def test_what_is_missing_is_named_with_where_it_is_to_be_had(downloads, tmp_path):
    (downloads / "aime_2025.jsonl").rename(downloads / "unknown.jsonl")
    with pytest.raises(TaskError, match=r"AIME-2025 is missing .*https://huggingface\.co/datasets/math-ai/aime25"):
        prepare(downloads, tmp_path / "out", seed=0)
    (downloads / "unknown.jsonl").rename(downloads / "aime25.jsonl")
    with pytest.raises(TaskError, match="40 problems are too few; the splits need at least 513"):
        prepare(downloads, tmp_path / "out", seed=0)
    (downloads / "aime2025-copy.jsonl").write_text("")
    with pytest.raises(TaskError, match=r"more than one .*aime2025-copy\.jsonl, aime25\.jsonl"):
        prepare(downloads, tmp_path / "out", seed=0)
    with pytest.raises(TaskError, match="is no folder"):
        prepare(tmp_path / "nowhere", tmp_path / "out", seed=0)
