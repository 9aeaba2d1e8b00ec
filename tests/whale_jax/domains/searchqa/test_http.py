"""The retrieval service and its client: the convention, batching, limits, and what either does when the other fails."""

import http.client
import json
import random
import socket
import threading
from urllib.parse import urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.whale_jax.domains.searchqa.scripted_http import Answer, ScriptedServer
from whale_jax.domains.searchqa import serve
from whale_jax.domains.searchqa.backoff import Backoff, retry_after
from whale_jax.domains.searchqa.batching import Batcher, BatchSettings, Overloaded
from whale_jax.domains.searchqa.corpus import Document
from whale_jax.domains.searchqa.http_client import ClientSettings, HttpRetriever
from whale_jax.domains.searchqa.http_server import RetrievalServer, ServerSettings
from whale_jax.domains.searchqa.retrieval import Bm25Retriever, Hit, RetrievalError

DOCUMENTS = [
    Document("a", '"Kalo"\nKalo is a city in Veria.'),
    Document("b", '"Kalo"\nAbout 60,500 people live in Kalo.'),
    Document("c", '"Veria"\nThe capital of Veria is Tölm 東京.'),
]
BM25 = Bm25Retriever(DOCUMENTS)
NOW = BatchSettings(window_seconds=0)


def post(url, body, *, method="POST", headers=None):
    """Status and JSON of one raw request."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)
    try:
        connection.request(method, parts.path, body, headers or {})
        response = connection.getresponse()
        return response.status, json.loads(response.read() or b"null")
    finally:
        connection.close()


@pytest.fixture(scope="module")
def service():
    settings = ServerSettings(batching=NOW, max_queries=4, max_topk=2, max_body_bytes=500)
    with RetrievalServer(BM25, settings=settings, about={"documents": 3}) as server:
        yield server


def test_the_client_finds_what_the_retriever_behind_the_service_finds(service):
    client = HttpRetriever(service.url)
    queries = ["Kalo city", "capital Tolm", "zzz", "東京"]
    assert client.search_many(queries, 2) == [BM25.search(query, 2) for query in queries]
    assert client.search("Kalo", 1) == BM25.search("Kalo", 1)
    assert HttpRetriever(service.url.removesuffix("/retrieve")).search("Kalo", 1) == BM25.search("Kalo", 1)


def test_the_convention_without_scores_and_with_defaults(service):
    status, answer = post(service.url, json.dumps({"queries": ["Veria"]}))
    assert status == 200
    assert answer == {"result": [[{"id": d.id, "contents": d.contents} for d in (DOCUMENTS[2], DOCUMENTS[0])]]}
    assert post(service.url, json.dumps({"queries": [], "topk": None}))[1] == {"result": []}
    assert len(post(service.url, json.dumps({"queries": ["Kalo Veria"], "topk": 10**6}))[1]["result"][0]) == 2
    assert post(service.url.replace("/retrieve", "/health"), None, method="GET") == (
        200,
        {"status": "ok", "documents": 3, "waiting": 0},
    )


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        (b"{", 400, "not JSON"),
        (b"[1]", 400, "must be a JSON object"),
        (b"[" * 400, 400, "not JSON"),
        (b"{}", 400, "`queries` must be a list of texts"),
        (b'{"queries": "Kalo"}', 400, "`queries` must be a list of texts"),
        (b'{"queries": [1]}', 400, "`queries` must be a list of texts"),
        (b'{"queries": ["a"], "topk": 0}', 400, "`topk` must be a whole number above 0, got 0"),
        (b'{"queries": ["a"], "topk": true}', 400, "got True"),
        (b'{"queries": ["a", "b", "c", "d", "e"]}', 413, "5 queries; at most 4"),
        (b" " * 501, 413, "longer than 500 bytes"),
    ],
)
def test_a_bad_request_is_told_what_is_wrong_with_it(service, body, status, reason):
    answer = post(service.url, body)
    assert answer[0] == status
    assert reason in answer[1]["error"]


def test_other_bad_requests(service):
    assert post(service.url, None, headers={"Transfer-Encoding": "chunked"})[0] == 411
    assert post(service.url, None, headers={"Content-Length": "x"})[0] == 411
    assert post(service.url.replace("/retrieve", "/other"), b"{}")[0] == 404
    assert post(service.url.replace("/retrieve", "/other"), None, method="GET")[0] == 404


class Gate:
    """A retriever that waits until it is let go, and remembers its batches."""

    def __init__(self):
        self.batches, self.started, self.go = [], threading.Semaphore(0), threading.Event()

    def search(self, query, topk):
        return self.search_many([query], topk)[0]

    def search_many(self, queries, topk):
        self.batches.append((list(queries), topk))
        self.started.release()
        assert self.go.wait(30)
        return [[Hit(Document(f"{query}{n}", "x"), 1.0) for n in range(topk)] for query in queries]


def test_queries_that_wait_together_are_answered_together_and_each_once():
    gate = Gate()
    with Batcher(gate, BatchSettings(window_seconds=0, max_batch=5)) as batcher:
        first = batcher.submit(["first"], 1)
        assert gate.started.acquire(timeout=30)
        rest = batcher.submit(["a", "b", "a"], 1) + batcher.submit(["b", "c"], 3)
        assert batcher.waiting == 5
        gate.go.set()
        answers = [[hit.document.id for hit in future.result(30)] for future in first + rest]
    assert gate.batches == [(["first"], 1), (["a", "b", "c"], 3)]
    assert answers == [["first0"], ["a0"], ["b0"], ["a0"], ["b0", "b1", "b2"], ["c0", "c1", "c2"]]


def test_a_window_gathers_queries_and_a_full_batch_does_not_wait_for_its_end():
    gate = Gate()
    gate.go.set()
    with Batcher(gate, BatchSettings(window_seconds=3600, max_batch=2)) as batcher:
        futures = batcher.submit(["a"], 1) + batcher.submit(["b"], 1)
        assert [future.result(30)[0].document.id for future in futures] == ["a0", "b0"]
    assert gate.batches == [(["a", "b"], 1)]


def test_a_line_that_is_full_or_closed_takes_no_more():
    gate = Gate()
    with Batcher(gate, BatchSettings(window_seconds=0, max_waiting=2)) as batcher:
        (busy,) = batcher.submit(["busy"], 1)
        assert gate.started.acquire(timeout=30)
        (waiting,) = batcher.submit(["waiting"], 1)
        with pytest.raises(Overloaded, match="1 queries are waiting"):
            batcher.submit(["a", "b"], 1)
        closing = threading.Thread(target=batcher.__exit__, args=(None, None, None))
        closing.start()
        with pytest.raises(Overloaded, match="closing"):
            waiting.result(30)
        with pytest.raises(Overloaded, match="closing"):
            batcher.submit(["late"], 1)
        gate.go.set()
        closing.join()
        assert busy.result(30)


def test_too_many_queries_and_too_slow_results_get_statuses_that_say_come_back():
    gate = Gate()
    settings = ServerSettings(batching=BatchSettings(window_seconds=0, max_waiting=1), answer_seconds=0.05)
    with RetrievalServer(gate, settings=settings) as server:
        status, answer = post(server.url, json.dumps({"queries": ["slow"]}))
        assert (status, answer) == (504, {"error": "no result within 0.05 s"})
        status, answer = post(server.url, json.dumps({"queries": ["a", "b"]}))
        assert status == 503
        assert answer["error"].startswith("overloaded")
        gate.go.set()


def test_a_query_that_nobody_waits_for_any_more_is_not_searched():
    gate = Gate()
    settings = ServerSettings(batching=NOW, answer_seconds=0.05)
    with RetrievalServer(gate, settings=settings) as server:
        assert post(server.url, json.dumps({"queries": ["first"]}))[0] == 504
        assert post(server.url, json.dumps({"queries": ["second"]}))[0] == 504
        gate.go.set()
    assert [queries for queries, _ in gate.batches] == [["first"]]


def test_a_connection_too_many_is_turned_away_and_the_next_one_served():
    with RetrievalServer(BM25, settings=ServerSettings(batching=NOW, max_connections=1)) as server:
        parts = urlsplit(server.url)
        with socket.create_connection((parts.hostname, parts.port), timeout=10) as held:
            held.sendall(b"POST /retrieve HTTP/1.1\r\nContent-Length: 2\r\n\r\n{")  # the rest does not come yet
            with socket.create_connection((parts.hostname, parts.port), timeout=10) as second:
                assert second.recv(100).startswith(b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1")
            held.sendall(b"}")
            assert b"400" in held.recv(1000)
        client = HttpRetriever(server.url, ClientSettings(backoff=Backoff(20, 0.01, 0.05)))
        assert client.search("Kalo", 1) == BM25.search("Kalo", 1)


class Broken:
    def search(self, query, topk):
        if query == "bad":
            raise RuntimeError("secret detail")
        return BM25.search(query, topk)


def test_a_failing_retriever_costs_its_own_request_alone(caplog):
    with RetrievalServer(Broken(), settings=ServerSettings(batching=NOW)) as server:
        assert post(server.url, json.dumps({"queries": ["bad"]})) == (
            500,
            {"error": "the retriever failed: RuntimeError"},
        )
        assert HttpRetriever(server.url).search("Kalo", 1) == BM25.search("Kalo", 1)
    assert "secret detail" in caplog.text


# The client against services that misbehave.

FOUND = Answer(body={"result": [[{"document": {"id": 1, "contents": "x"}, "score": 0.5}]]})
QUICK = ClientSettings(timeout_seconds=60, backoff=Backoff(3, 0.01, 0.02), max_response_bytes=2_000)
IMPATIENT = ClientSettings(timeout_seconds=0.1, backoff=Backoff(3, 0.01, 0.02))


def ask(script, settings=QUICK, queries=("q",), topk=3):
    """The answer or the error's text, the number of requests, and the waits between them."""
    waits = []
    with ScriptedServer(script) as server:
        client = HttpRetriever(server.url, settings, sleep=waits.append)
        try:
            answer = client.search_many(queries, topk)
        except RetrievalError as error:
            answer = str(error)
        return answer, len(server.requests), waits


def test_what_passes_is_tried_again_and_what_does_not_is_not():
    for passing in (Answer(503), Answer(429), Answer(500), Answer(0), Answer(200, b'{"re', cut=True)):
        answer, requests, waits = ask([passing, FOUND])
        assert (answer, requests, len(waits)) == ([[Hit(Document("1", "x"), 0.5)]], 2, 1), passing
    assert ask([Answer(404), FOUND]) == ("the search service answered with status 404", 1, [])
    assert ask([Answer(400, {"error": "x"}), FOUND]) == ("the search service answered with status 400", 1, [])


def test_tries_and_time_have_an_end():
    assert ask([Answer(503)])[:2] == ("the search service answered with status 503", 3)
    assert ask([Answer(0)])[:2] == ("the search service cannot be reached", 3)
    assert ask([Answer(hang=True)], IMPATIENT)[:2] == ("the search service did not answer in time", 3)
    assert ask([Answer(trickle=True)], IMPATIENT)[:2] == ("the search service did not answer in time", 3)


def test_nobody_there():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: refused
        client = HttpRetriever(f"http://127.0.0.1:{taken.getsockname()[1]}", QUICK, sleep=lambda _: None)
        with pytest.raises(RetrievalError, match=r"^the search service cannot be reached$"):
            client.search("q", 1)


def test_waits_grow_within_bounds_and_follow_the_server():
    settings = ClientSettings(backoff=Backoff(5, 1.0, 5.0, jitter=0.25))
    _, _, waits = ask([Answer(503)], settings)
    for wait, full in zip(waits, (1.0, 2.0, 4.0, 5.0), strict=True):
        assert 0.75 * full <= wait <= full
    (wait,) = ask([Answer(429, headers={"Retry-After": "3"}), FOUND], settings)[2]
    assert 3.0 <= wait <= 3.75
    assert ask([Answer(429, headers={"Retry-After": "9999"}), FOUND], settings)[2] == [5.0]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"<html>", "is not JSON"),
        (b"[" * 1_900, "is not JSON"),
        ({"result": []}, "has not one list of documents per query"),
        ({"result": [[], []]}, "has not one list of documents per query"),
        ({"result": [None]}, "has not one list of documents per query"),
        ({"error": "x"}, "has not one list of documents per query"),
        ([], "has not one list of documents per query"),
        ({"result": [["x"]]}, "an entry is no object"),
        ({"result": [[{"document": 3, "score": 1}]]}, "`document` is no object"),
        ({"result": [[{"document": {"id": 1}, "score": 1}]]}, "`contents`"),
        ({"result": [[{"document": {"id": 1, "contents": "x"}, "score": "high"}]]}, "`score` must be a number"),
        (b" " * 2_001, "is too long"),
    ],
)
def test_an_answer_that_is_none_is_an_error_at_once(body, error):
    answer, requests, _ = ask([Answer(200, body)])
    assert error in answer
    assert requests == 1


def test_layouts_of_answers_that_other_services_give():
    rows = [{"id": "1", "contents": "x"}, {"id": 2, "title": "T", "text": "y"}]
    hits = [Hit(Document("1", "x"), 0.0), Hit(Document("2", '"T"\ny'), 0.0)]
    assert ask([Answer(body={"result": [rows]})])[0] == [hits]
    assert ask([Answer(body={"result": [rows]})], topk=1)[0] == [hits[:1]]


def test_f154_padding_is_filtered_with_its_score():
    """FAISS pads with id -1, which many services turn into their last document, and with the lowest float."""
    last = {"id": "9", "contents": "last"}
    entries = [
        {"document": {"id": "1", "contents": "x"}, "score": 0.5},
        {"document": last, "score": -3.4028234663852886e38},
        {"document": None, "score": 0.1},
        {"document": last, "score": float("nan")},
        None,
    ]
    assert ask([Answer(body={"result": [entries]})])[0] == [[Hit(Document("1", "x"), 0.5)]]


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://x/retrieve", "http://", "http://x/retrieve?q=1"])
def test_a_url_that_is_none_is_refused_at_once(url):
    with pytest.raises(ValueError, match="is no URL of a retrieval service"):
        HttpRetriever(url)


@settings(deadline=None)
@given(
    failures=st.integers(1, 200),
    first=st.floats(1e-3, 10),
    jitter=st.floats(0, 1),
    factor=st.floats(1, 100),
    asked=st.none() | st.floats(0, 1e6),
    seed=st.integers(),
)
def test_every_wait_is_within_its_bounds(failures, first, jitter, factor, asked, seed):
    backoff = Backoff(3, first, first * factor, jitter)
    wait = backoff.seconds(failures, random.Random(seed), asked=asked)
    full = min(first * 2.0 ** min(failures - 1, 60), first * factor)
    assert 0 <= wait <= backoff.longest_seconds
    assert wait >= full * (1 - jitter) * (1 - 1e-12)
    assert wait >= min(asked or 0, backoff.longest_seconds)
    assert wait <= max(full, (asked or 0) * (1 + jitter) * (1 + 1e-12))


@pytest.mark.parametrize(
    "wrong",
    [{"attempts": 0}, {"first_seconds": 0}, {"first_seconds": 30}, {"longest_seconds": float("inf")}, {"jitter": 2}],
)
def test_a_backoff_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(ValueError, match="Backoff"):
        Backoff(**wrong)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [(None, None), ("", None), ("7", 7.0), (" 7 ", 7.0), ("-1", None), ("²", None), ("Wed, 21 Oct 2015", None)],
)
def test_retry_after(header, seconds):
    assert retry_after(header) == seconds


def test_the_command_builds_serves_and_stops(tmp_path, capsys):
    rows = "".join(json.dumps({"id": d.id, "contents": d.contents}) + "\n" for d in DOCUMENTS)
    (tmp_path / "corpus.jsonl").write_text(rows, encoding="utf-8")
    arguments = ["serve", f"--index={tmp_path / 'index'}", f"--corpus={tmp_path / 'corpus.jsonl'}", "--port=0"]
    stop = threading.Event()
    stop.set()
    assert serve.main(arguments, stop=stop) == 0
    assert serve.main(arguments, stop=stop) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed] == ["building", "3", "3"]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert serve.main([*arguments, f"--port={taken.getsockname()[1]}"], stop=stop) == 2
    assert serve.main(["serve", f"--index={tmp_path / 'none'}"], stop=stop) == 2
    assert serve.main([*arguments, "--workers=0"], stop=stop) == 2
    errors = capsys.readouterr().err
    for message in ("cannot listen", "no index here", "BatchSettings.workers must be >= 1"):
        assert message in errors
