import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_search.contract import CallRefused, EndReason, EpisodeEnded
from whale_jax.domains.searchqa.corpus import Document
from whale_jax.domains.searchqa.retrieval import Bm25Retriever, Hit, RetrievalError
from whale_jax.domains.searchqa.tool import SearchEnv, capped

ENV = SearchEnv(
    Bm25Retriever(
        [
            Document("a", '"Kalo"\nKalo is a city in Veria.'),
            Document("b", '"Kalo"\nAbout 60,500 people live in Kalo, in the old part and in the new part of it.'),
            Document("c", '"Veria"\nThe capital of Veria is Tolm.'),
        ]
    ),
    count_tokens=lambda text: len(text.split()),
)


def call(*args, **kwargs):
    return asyncio.run(ENV.call("search", args, kwargs))


def test_the_result_is_a_json_object_in_the_papers_layout():
    assert call(["Kalo city"], topk=2) == json.dumps(
        {
            "result": "Doc 1 (Title: Kalo)\nKalo is a city in Veria.\n\n"
            "Doc 2 (Title: Kalo)\nAbout 60,500 people live in Kalo, in the old part and in the new part of it."
        }
    )


def test_several_queries_follow_one_another_without_repeats():
    text = json.loads(call(["Kalo city", "Kalo city", "capital Tolm"]))["result"]
    assert [line for line in text.splitlines() if line.startswith("Doc")] == [
        "Doc 1 (Title: Kalo)",
        "Doc 2 (Title: Veria)",
    ]


@pytest.mark.parametrize("topk", [1, 1.0, "1", "1.0", 0, -5])
def test_topk_is_read_as_a_model_writes_it(topk):
    assert call(["Kalo"], topk=topk) == call(["Kalo"])


def test_one_text_is_one_query_and_never_iterated_by_characters():
    assert call("Kalo city") == call(["Kalo city"])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((["Kalo"], "many"), "topk must be a whole number, got 'many'"),
        ((["Kalo"], None), "topk must be a whole number"),
        ((["Kalo"], True), "topk must be a whole number"),
        ((["Kalo"], float("inf")), "topk must be a whole number"),
        ((["Kalo"], 1, 2.5), "max_doc_tokens must be a whole number"),
        (({"q": 1},), "query_list must be a list of texts, got dict"),
        (([["Kalo"]],), "query_list must hold texts, got list"),
    ],
)
def test_a_bad_value_is_told_to_the_model(args, message):
    assert f"Search error: {message}" in json.loads(call(*args))["result"]


def test_unknown_primitives_and_parameters_are_refused():
    with pytest.raises(CallRefused, match="env has no 'browse'"):
        asyncio.run(ENV.call("browse", (), {}))
    for kwargs in ({"limit": 3}, {}):
        with pytest.raises(CallRefused, match="search"):
            asyncio.run(ENV.call("search", (), kwargs))


def test_passages_are_cut_to_whole_words_within_the_cap():
    assert "Kalo is a\\n" not in call(["Kalo city"], max_doc_tokens=3)
    assert json.loads(call(["Kalo people"], max_doc_tokens=20))["result"].endswith("of it.")
    assert capped("one  two\nthree four", 3, lambda text: len(text.split())) == "one  two\nthree"


@given(st.text(max_size=60), st.integers(1, 60))
def test_the_cap_holds_for_every_text(text, limit):
    def count(piece):
        return len(piece.encode("utf-8", "surrogatepass"))

    cut = capped(text, limit, count)
    assert text.startswith(cut)
    assert count(cut) <= limit
    rest = text[len(cut) :]
    if rest:  # the next word would not have fitted
        next_word = rest[: len(rest) - len(rest.lstrip())] + rest.split()[0] if rest.split() else rest
        assert count(cut + next_word) > limit or not rest.strip()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda inner: st.lists(inner, max_size=3)
)


@given(JSON, JSON, JSON)
def test_no_value_raises(query_list, topk, max_doc_tokens):
    assert isinstance(json.loads(ENV.search(query_list, topk, max_doc_tokens))["result"], str)


class Service:
    """A retriever that notes who asked it for what, and fails when told to."""

    def __init__(self, fails=False):
        self.fails, self.asked = fails, []

    def search(self, query, topk):
        raise AssertionError("all queries of a call go together")

    def search_many(self, queries, topk):
        self.asked.append((queries, topk, threading.current_thread() is threading.main_thread()))
        if self.fails:
            raise RetrievalError("the search service cannot be reached")
        return [[Hit(Document("a", f'"Kalo"\n{query}'), 1.0)] for query in queries]


def test_a_service_is_asked_once_a_call_and_outside_of_the_loops_thread():
    service = Service()
    with ThreadPoolExecutor(1) as pool:
        env = SearchEnv(service, len, executor=pool)
        text = asyncio.run(env.call("search", [["x", "y", " "]], {"topk": 3}))
        with pytest.raises(CallRefused, match="unexpected"):
            asyncio.run(env.call("search", [["x"]], {"limit": 3}))
    assert json.loads(text)["result"] == "Doc 1 (Title: Kalo)\nx"
    assert service.asked == [(["x", "y"], 3, False)]


@pytest.mark.parametrize("threads", [False, True])
def test_a_service_that_is_down_is_told_or_ends_the_episode_unscored(threads):
    with ThreadPoolExecutor(1) as pool:
        fails(pool if threads else None)


def fails(executor):
    told = SearchEnv(Service(fails=True), len, executor=executor)
    text = asyncio.run(told.call("search", [["x"]], {}))
    assert json.loads(text)["result"] == "Search error: the search service cannot be reached"
    unscored = SearchEnv(Service(fails=True), len, executor=executor, failures="unscored")
    with pytest.raises(EpisodeEnded, match="cannot be reached") as ended:
        asyncio.run(unscored.call("search", [["x"]], {}))
    assert ended.value.reason is EndReason.INFRASTRUCTURE
    bad_value = asyncio.run(unscored.call("search", [["x"], "many"], {}))
    assert "Search error: topk must be" in json.loads(bad_value)["result"]
