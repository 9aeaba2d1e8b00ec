import asyncio
import json

import pytest

from whale_jax.domains.registry import load_domain
from whale_jax.domains.task import Split, TaskError
from whale_jax.domains.verdict import Verdict


@pytest.fixture(scope="module")
def demo():
    return load_domain("searchqa")


def test_an_unknown_domain_is_named_with_the_known_ones():
    with pytest.raises(ValueError, match=r"unknown domain 'go'; known: .*searchqa"):
        load_domain("go")


def test_the_demo_answers_searches_and_scores_answers(demo):
    task = demo.tasks(Split.TEST)[0]
    gold = task.reference["answers"][0]
    text = asyncio.run(demo.env(task).call("search", [[task.inputs["question"]]], {"topk": 3}))
    assert json.loads(text)["result"].startswith("Doc 1 (Title: ")
    assert demo.env(task).names == demo.tool_names == {"search"}
    assert demo.verify(task, f"I found it.\n<answer>{gold}</answer>").reward == 1
    assert demo.verify(task, "<answer>Atlantis</answer>").reward == 0
    assert demo.verify(task, None) == Verdict(0, None, "no reply to read")


def test_the_inputs_hold_nothing_of_the_reference(demo):
    assert all(set(task.inputs) == {"question"} for split in Split for task in demo.tasks(split))


def test_the_data_hash_is_stable_and_follows_the_data(demo, tmp_path):
    assert demo.data_hash == load_domain("searchqa").data_hash
    one = load_domain("searchqa", task_dir=write_folder(tmp_path / "one"))
    two = load_domain("searchqa", task_dir=write_folder(tmp_path / "two", corpus='{"id": "1", "contents": "other"}\n'))
    assert len({demo.data_hash, one.data_hash, two.data_hash}) == 3


def row(number, **fields):
    return json.dumps(
        {"id": str(number), "question": f"Question {number}?", "golden_answers": ["x", "x", " "], **fields}
    )


def write_folder(folder, corpus='{"id": 1, "contents": "\\"Kalo\\"\\nKalo is a city."}\n', **files):
    folder.mkdir()
    for number, split in enumerate(Split):
        (folder / f"{split}.jsonl").write_text(files.get(split, row(number)) + "\n", encoding="utf-8")
    (folder / "corpus.jsonl").write_text(corpus, encoding="utf-8")
    return folder


def test_a_folder_of_task_files_is_loaded(tmp_path):
    domain = load_domain("searchqa", task_dir=write_folder(tmp_path / "data"))
    (task,) = domain.tasks(Split.HARNESS)
    assert (task.id, task.inputs, task.reference) == ("1", {"question": "Question 1?"}, {"answers": ["x"]})
    assert domain.budgets.turns == 16
    assert "Kalo is a city." in asyncio.run(domain.env(task).call("search", [["Kalo"]], {}))


def test_bad_rows_and_overlaps_stop_the_run(tmp_path):
    bad = "\n".join([row(1), row(2, question=" "), row(3, golden_answers=[])])
    with pytest.raises(TaskError, match=r"harness\.jsonl: 2 of 3 rows.*harness\.jsonl:2: `question`.*jsonl:3: `golden"):
        load_domain("searchqa", task_dir=write_folder(tmp_path / "bad", harness=bad))
    domain = load_domain("searchqa", task_dir=tmp_path / "bad", max_bad_rows=0.7)
    assert [bad_row.line for bad_row in domain.bad_rows] == [2, 3]
    with pytest.raises(TaskError, match="weight and test share 1 task"):
        load_domain("searchqa", task_dir=write_folder(tmp_path / "copy", test=row(0, id="9")))
    with pytest.raises(TaskError, match=r"corpus\.jsonl:1: `contents`"):
        load_domain("searchqa", task_dir=write_folder(tmp_path / "corpus", corpus='{"id": 1}\n'))


def test_a_corpus_without_words_stops_the_run(tmp_path):
    with pytest.raises(TaskError, match=r"corpus\.jsonl: .* words in it"):
        load_domain("searchqa", task_dir=write_folder(tmp_path / "data", corpus='{"id": 1, "contents": "!!!"}\n'))


@pytest.mark.parametrize("bad_id", [True, 1.5, [1], {}])
def test_an_id_that_is_no_name_is_a_bad_row(tmp_path, bad_id):
    with pytest.raises(TaskError, match=r"test\.jsonl:1: `id` must be"):
        load_domain("searchqa", task_dir=write_folder(tmp_path / "data", test=row(3, id=bad_id)))


def test_a_verdict_takes_no_other_reward():
    with pytest.raises(ValueError, match="a reward is"):
        Verdict(0.5, None, "")  # pyright: ignore[reportArgumentType]
    assert not Verdict(None, None, "judge down").scored
