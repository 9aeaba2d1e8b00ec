"""CASES.md, section f: retrieval. The id of each test is the id of its case."""

import asyncio
import json
import unicodedata

import pytest

from tests.whale_jax.domains.searchqa.scripted_http import Answer, ScriptedServer
from whale_jax.domains.searchqa.corpus import Document
from whale_jax.domains.searchqa.http_client import HttpRetriever
from whale_jax.domains.searchqa.retrieval import Bm25Retriever, RetrievalError, words
from whale_jax.domains.searchqa.tool import SearchEnv


def retriever(*texts):
    return Bm25Retriever([Document(str(number), f'"T{number}"\n{text}') for number, text in enumerate(texts)])


FIVE = retriever("red apple", "green apple", "apple pie", "apple juice", "apple tree")


def test_f147_topk_is_clamped_to_the_corpus():
    assert len(FIVE.search("apple", 10)) == 5


@pytest.mark.parametrize("query", ["", "   ", "the a of", "zzzqqq", "?!"])
def test_f149_a_query_without_known_words_finds_nothing(query):
    assert FIVE.search(query, 3) == []


def test_f149_documents_without_a_word_of_the_query_are_left_out():
    assert [hit.document.id for hit in FIVE.search("pie", 5)] == ["2"]


def test_f151_unknown_words_are_ignored():
    assert FIVE.search("zzzqqq pie", 5) == FIVE.search("pie", 5)


def test_f152_the_same_word_gives_equal_positive_scores():
    one, two = retriever("quick god", "quick fox").search("quick", 2)
    assert one.score == two.score > 0
    assert (one.document.id, two.document.id) == ("0", "1")


def test_f154_padding_is_filtered_with_its_score():
    """BM25 pads with nothing; a service with FAISS behind it pads with its last document and the lowest float."""
    real, padding = ({"document": {"id": n, "contents": "x"}, "score": s} for n, s in ((0, 0.5), (-1, -3.4028235e38)))
    with ScriptedServer([Answer(body={"result": [[real, padding]]})]) as server:
        assert [hit.document.id for hit in HttpRetriever(server.url).search("q", 4)] == ["0"]


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("東京", "東京は日本の首都"),
        ("Elodie", "Élodie lives here"),
        ("élodie", "ELODIE lives here"),
        (unicodedata.normalize("NFD", "São Tomé"), unicodedata.normalize("NFC", "São Tomé")),
        ("Lodz", "Łódź"),
    ],
)
def test_f156_scripts_and_accents_meet(query, text):
    hits = retriever("nothing of the kind", text).search(query, 2)
    assert [hit.document.id for hit in hits] == ["1"]


def test_f156_marks_that_tell_words_apart_stay():
    assert words("か") != words("が")


class Broken:
    def search(self, query, topk):
        raise RetrievalError("no answer within 5 s")


def result(env, *args):
    return json.loads(asyncio.run(env.call("search", args, {})))["result"]


def test_f157_failure_empty_query_and_nothing_found_are_three_texts():
    texts = {
        result(SearchEnv(Broken(), len), ["apple"]),
        result(SearchEnv(FIVE, len), ["zzzqqq"]),
        result(SearchEnv(FIVE, len), [" "]),
    }
    assert len(texts) == 3
    assert "Search error: no answer within 5 s" in texts
    assert "No results found." in texts


def test_f159_a_very_long_query_is_cut():
    calls = []

    class Spy:
        def search(self, query, topk):
            calls.append(query)
            return FIVE.search(query, topk)

    assert "Doc 1" in result(SearchEnv(Spy(), len), ["apple " + "word " * 20_000])
    assert len(calls[0]) == 2_000
    assert FIVE.search("word " * 300 + "apple", 1) == []  # past the bound on terms
