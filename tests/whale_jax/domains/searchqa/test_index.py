"""The index on disk finds what the one in memory finds, and says what is wrong with itself."""

import gzip
import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from whale_jax.domains.searchqa import index, index_build
from whale_jax.domains.searchqa.corpus import Document, parse_document, stream_corpus
from whale_jax.domains.searchqa.document_store import DOCUMENTS
from whale_jax.domains.searchqa.index import META, MappedBm25Retriever, read_meta
from whale_jax.domains.searchqa.index_build import build_index
from whale_jax.domains.searchqa.retrieval import Bm25Retriever
from whale_jax.domains.task import BadRow, RowError, TaskError


def made_up(count, seed=0):
    rng = np.random.default_rng(seed)
    names = ["kalo", "Veria", "tolm", "東京", "Élodie", "of", "1,000", "don't", *(f"w{n}" for n in range(300))]
    weights = 1 / np.arange(1, len(names) + 1)
    texts = rng.choice(names, size=(count, 12), p=weights / weights.sum())
    return [Document(f"d{n}", f'"Title {n}"\n' + " ".join(text)) for n, text in enumerate(texts)]


DOCUMENTS_500 = [*made_up(500), Document("empty", "of the"), Document("line", "one\nline \ud800 end")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("indexes") / "made-up"
    build_index(DOCUMENTS_500, out, chunk_tokens=700)  # many chunks
    return out


def test_scores_and_order_are_those_of_bm25s_itself_to_the_bit(folder):
    in_memory, mapped = Bm25Retriever(DOCUMENTS_500), MappedBm25Retriever(folder)
    for query in ["kalo", "w7 w9 w200", "東京", "elodie 1,000", "end", "w1 kalo tolm of", "zzz", "", "w299 " * 50]:
        for topk in (1, 3, 1000):
            assert mapped.search(query, topk) == in_memory.search(query, topk)
    assert len(mapped) == 502
    assert mapped.search("kalo", 0) == []


def test_the_arrays_are_mapped_and_not_read(folder):
    scores = MappedBm25Retriever(folder)._index.scores
    assert all(isinstance(scores[name], np.memmap) for name in ("data", "indices", "indptr"))


def test_the_chunks_do_not_show(folder, tmp_path):
    build_index(DOCUMENTS_500, tmp_path / "one", chunk_tokens=10**6)
    for path in folder.iterdir():
        assert path.read_bytes() == (tmp_path / "one" / path.name).read_bytes(), path.name


def test_nothing_else_is_left_behind(folder):
    assert [path.name for path in folder.parent.iterdir()] == ["made-up"]


def test_threads_may_share_it(folder):
    mapped = MappedBm25Retriever(folder)
    queries = [f"w{number} kalo" for number in range(40)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda query: mapped.search(query, 5), queries)) == [mapped.search(q, 5) for q in queries]


@given(st.lists(st.text(max_size=20), min_size=1, max_size=12), st.text(max_size=20), st.integers(1, 30))
@settings(max_examples=25, deadline=None)
def test_any_text_can_be_indexed_and_found(tmp_path_factory, texts, query, chunk_tokens):
    documents = [Document(str(number), f"anchor {text}") for number, text in enumerate(texts)]
    out = tmp_path_factory.mktemp("any") / "index"
    build_index(documents, out, chunk_tokens=chunk_tokens)
    mapped, in_memory = MappedBm25Retriever(out), Bm25Retriever(documents)
    assert mapped.search(f"{query} anchor", 20) == in_memory.search(f"{query} anchor", 20)


def test_what_cannot_be_built(tmp_path):
    (tmp_path / "there").mkdir()
    with pytest.raises(TaskError, match="there: already there"):
        build_index(DOCUMENTS_500, tmp_path / "there")
    with pytest.raises(TaskError, match="no document with words"):
        build_index([Document("1", "?!")], tmp_path / "wordless")
    with pytest.raises(TaskError, match=r"1 document\(s\) have the id of an earlier one, for instance document 3 "):
        build_index([Document("1", "a"), Document("2", "kalo"), Document("1", "c")], tmp_path / "copies")
    rows = [Document("1", "kalo"), BadRow("corpus.jsonl", 2, "not JSON")]
    with pytest.raises(TaskError, match=r"corpus\.jsonl: 1 of 2 rows are bad"):
        build_index(rows, tmp_path / "bad")
    assert build_index(rows, tmp_path / "bad", max_bad_rows=0.5).bad_rows == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad", "there"]


def test_what_cannot_be_opened(tmp_path, monkeypatch):
    with pytest.raises(TaskError, match="no index here"):
        MappedBm25Retriever(tmp_path)
    out = tmp_path / "index"
    build_index(DOCUMENTS_500, out)
    meta = read_meta(out)
    (out / META).write_text("{", encoding="utf-8")
    with pytest.raises(TaskError, match=r"index\.json: damaged"):
        MappedBm25Retriever(out)
    (out / META).write_text(json.dumps(meta.to_json() | {"format": 0}), encoding="utf-8")
    with pytest.raises(TaskError, match="format 0"):
        MappedBm25Retriever(out)
    (out / META).write_text(json.dumps(meta.to_json() | {"documents": 3}), encoding="utf-8")
    with pytest.raises(TaskError, match="do not belong together"):
        MappedBm25Retriever(out)
    (out / META).write_text(json.dumps(meta.to_json()), encoding="utf-8")
    with (out / DOCUMENTS).open("ab") as stream:
        stream.write(b"x")
    with pytest.raises(TaskError, match="damaged index"):
        MappedBm25Retriever(out)
    monkeypatch.setattr(index, "words_version", lambda: "other")
    with pytest.raises(TaskError, match="by other rules"):
        MappedBm25Retriever(out)


ROWS = [{"id": n, "contents": f'"T"\nkalo {n}'} for n in range(3)]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


@pytest.mark.parametrize("name", ["c.jsonl", "c.jsonl.zst", "c.jsonl.gz"])
def test_the_command_reads_plain_and_compressed_corpora(name, tmp_path, capsys):
    packed = {"zst": zstandard.compress(LINES[:20]) + zstandard.compress(LINES[20:]), "gz": gzip.compress(LINES)}
    (tmp_path / name).write_bytes(packed.get(name.rsplit(".")[-1], LINES))
    arguments = ["index_build", f"--corpus={tmp_path / name}", f"--out={tmp_path / 'index'}"]
    assert index_build.main(arguments) == 0
    assert "3 documents" in capsys.readouterr().out
    assert [hit.document.id for hit in MappedBm25Retriever(tmp_path / "index").search("kalo 2", 1)] == ["2"]
    assert index_build.main(arguments) == 2
    assert "already there" in capsys.readouterr().err


def test_layouts_of_rows():
    assert parse_document({"id": 3, "contents": "x"}) == Document("3", "x")
    assert parse_document({"_id": "3", "title": "T", "text": "x"}) == Document("3", '"T"\nx')
    assert parse_document({"id": "3", "title": "", "text": "x"}) == Document("3", "x")
    for row in ({"contents": "x"}, {"id": True, "contents": "x"}, {"id": 1, "contents": " "}, {"id": 1, "title": "T"}):
        with pytest.raises(RowError):
            parse_document(row)


def test_bad_rows_of_a_corpus_are_named_by_line(tmp_path):
    (tmp_path / "c.jsonl").write_text('{"id": 1, "contents": "x"}\n\n[]\n', encoding="utf-8")
    good, bad = stream_corpus(tmp_path / "c.jsonl")
    assert isinstance(good, Document)
    assert isinstance(bad, BadRow)
    assert bad.line == 3
