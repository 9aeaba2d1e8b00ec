import asyncio
import dataclasses
import json

import pytest

from harness_search.contract import EpisodeEnded
from tests.whale_jax.domains.searchqa.gemini_server import error, reply
from tests.whale_jax.domains.searchqa.scripted_http import Answer, ScriptedServer
from whale_jax.domains.registry import load_domain
from whale_jax.domains.searchqa import corpora
from whale_jax.domains.searchqa import domain as searchqa
from whale_jax.domains.searchqa.backoff import Backoff
from whale_jax.domains.searchqa.batching import BatchSettings
from whale_jax.domains.searchqa.corpus import Document, load_corpus
from whale_jax.domains.searchqa.gemini_judge import GeminiModel, GeminiSettings
from whale_jax.domains.searchqa.http_client import ClientSettings, HttpRetriever
from whale_jax.domains.searchqa.http_server import RetrievalServer, ServerSettings
from whale_jax.domains.searchqa.index_build import build_index
from whale_jax.domains.searchqa.judge import LlmJudge
from whale_jax.domains.searchqa.retrieval import Bm25Retriever
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


def test_an_index_in_the_folder_is_searched_in_place_of_rows(tmp_path):
    folder = write_folder(tmp_path / "data")
    by_rows = load_domain("searchqa", task_dir=folder)
    documents, _ = load_corpus(folder / "corpus.jsonl")
    build_index([*documents, Document("2", '"Tolm"\nTolm is a port.')], folder / "index")
    by_index = load_domain("searchqa", task_dir=folder)
    assert "Tolm is a port." in search(by_index, "port")
    assert by_index.data_hash != by_rows.data_hash
    (folder / "corpus.jsonl").unlink()
    assert load_domain("searchqa", task_dir=folder).data_hash == by_index.data_hash


def search(domain, query):
    return asyncio.run(domain.env(domain.tasks(Split.TEST)[0]).call("search", [[query]], {}))


def test_a_corpus_that_is_too_large_for_memory_is_to_be_indexed_once(tmp_path, monkeypatch):
    folder = write_folder(tmp_path / "data")
    monkeypatch.setattr(corpora, "MAX_BYTES_IN_MEMORY", 10)
    with pytest.raises(TaskError, match=r"index_build --corpus=.*corpus\.jsonl --out=.*index"):
        load_domain("searchqa", task_dir=folder)


def test_a_retrieval_service_in_place_of_a_corpus(tmp_path):
    folder = write_folder(tmp_path / "data")
    (folder / "corpus.jsonl").unlink()
    retriever = Bm25Retriever([Document("1", '"Tolm"\nTolm is a port.')])
    settings = ServerSettings(batching=BatchSettings(window_seconds=0))
    hashes = []
    for about in ({"corpus_sha256": "one"}, {"corpus_sha256": "two"}, {}):
        with RetrievalServer(retriever, settings=settings, about=about) as server:
            domain = searchqa.load(task_dir=folder, retriever_url=server.url)
            hashes.append(domain.data_hash)
            assert "Tolm is a port." in search(domain, "port")
    assert len(set(hashes)) == 3
    gone = HttpRetriever(server.url, ClientSettings(backoff=Backoff(1, 0.01, 0.01)))
    down = dataclasses.replace(domain, corpus=dataclasses.replace(domain.corpus, retriever=gone))
    with pytest.raises(EpisodeEnded, match="infrastructure"):
        search(down, "port")
    with pytest.raises(TaskError, match="--retriever_url needs --task_dir"):
        load_domain("searchqa", retriever_url=server.url)
    with pytest.raises(TaskError, match="--retriever_url: 'x' is no URL"):
        load_domain("searchqa", task_dir=folder, retriever_url="x")
    with ScriptedServer([Answer(404)]) as other, pytest.raises(TaskError, match=r"status 404; start the service first"):
        load_domain("searchqa", task_dir=folder, retriever_url=other.url)


def test_a_judge_decides_and_is_part_of_the_hash(demo, tmp_path, monkeypatch):
    monkeypatch.setenv("GEMINI_API_KEY", "x")
    judged = load_domain("searchqa", judge_model="judge-1", judge_cache=str(tmp_path / "verdicts"))
    (tmp_path / "prompt").write_text("{question}{references}{answer}", encoding="utf-8")
    other = load_domain("searchqa", judge_model="judge-1", judge_prompt=str(tmp_path / "prompt"))
    assert len({demo.data_hash, judged.data_hash, other.data_hash}) == 3
    task = demo.tasks(Split.TEST)[0]
    with ScriptedServer([reply("CORRECT"), error(401)]) as server:
        model = GeminiModel(GeminiSettings("judge-1", base_url=server.url), api_key="x")
        local = dataclasses.replace(demo, judge=LlmJudge(model))
        assert local.verify(task, "<answer>by another name</answer>") == Verdict(1, "by another name", "judge")
        assert local.verify(task, "<answer>x</answer>").reward is None
        assert local.verify(task, "<answer>x</answer>", protocol="paper").reward == 0
        model.close()
    with pytest.raises(TaskError, match="cannot be read"):
        load_domain("searchqa", judge_model="judge-1", judge_prompt=str(tmp_path / "none"))
