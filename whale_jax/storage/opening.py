"""Finds the home of a run: a local folder, or a prefix of a bucket with a working copy on this machine."""

import contextlib
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from whale_jax.config import ConfigError
from whale_jax.settings import RunSettings
from whale_jax.storage.bucket import BucketError, open_bucket
from whale_jax.storage.bucket_home import BucketHome
from whale_jax.storage.home import Home, LocalHome
from whale_jax.storage.inputs import SECONDS
from whale_jax.storage.lease import LEASE_SECONDS, Lease, RunLost, home_of
from whale_jax.storage.places import copies, copy_of
from whale_jax.storage.url import in_bucket, parse


@contextlib.contextmanager
def run_home(settings: RunSettings, say: Callable[[str], None]) -> Iterator[Home]:
    """The run directory that the settings name, this process's own while the context lasts.

    Raises:
        ConfigError: it cannot be had: another process uses it, it is something else, there are no credentials, ….
        BucketError, RunLost: the bucket cannot be used, or was taken over; also at the end, when the rest is sent.
    """
    from whale_jax.rundir import claim, fresh_run_dir  # with JAX, which those do without who only read

    if not in_bucket(settings.run_dir):
        directory = Path(settings.run_dir) if settings.run_dir else fresh_run_dir()
        with claim(directory):
            yield LocalHome(directory.resolve())
        return
    assert settings.run_dir is not None
    url = parse("run_dir", settings.run_dir)
    directory = on_this_disk(settings)
    with contextlib.ExitStack() as stack:
        bucket = open_bucket(url, seconds=settings.bucket_seconds)
        stack.callback(bucket.close)
        beat = open_bucket(url, seconds=min(settings.bucket_seconds, LEASE_SECONDS / 6))
        stack.callback(beat.close)
        stack.enter_context(claim(directory, copy=True))
        lease = Lease(bucket, beat, home_of(directory), seconds=LEASE_SECONDS, say=say)
        stack.callback(lease.release)
        lease.take()
        home = BucketHome(bucket, directory, lease)
        home.fetch()
        say(f"run directory {url}, working copy {directory}")
        try:
            yield home
        except BaseException:
            with contextlib.suppress(BucketError, RunLost, OSError):
                home.close()
            raise
        home.close()


@contextlib.contextmanager
def run_to_read(path: str) -> Iterator[Home]:
    """A run directory, local or gs://, that is only read: itself, or a copy that goes with the context.

    `fetch` of a copy brings it to what the bucket has by now, arrays of checkpoints apart (`bring`).

    Raises:
        ConfigError, BucketError: it cannot be had.
    """
    if not in_bucket(path):
        yield LocalHome(Path(path))
        return
    url = parse("run_dir", path)
    copies().mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        bucket = open_bucket(url, seconds=SECONDS)
        stack.callback(bucket.close)
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="read_", dir=copies()))
        home = BucketHome(bucket, Path(folder) / (url.prefix.rpartition("/")[2] or url.bucket))
        home.directory.mkdir()
        home.fetch()
        if not (home.directory / "config.json").is_file():
            raise ConfigError(f"{url}: holds no run")
        yield home


def refuse_bucket(flag: str, path: str | None, instead: str) -> None:
    """Raises ConfigError where a place must be local."""
    if in_bucket(path):
        raise ConfigError(f"--{flag}={path}: must be local here; {instead}")


@contextlib.contextmanager
def run_to_look_at(path: str) -> Iterator[Path]:
    """A run directory, local or gs://, of which only config.json is wanted; nothing is written there.

    Raises:
        ConfigError, BucketError: it cannot be had.
    """
    if not in_bucket(path):
        yield Path(path)
        return
    url = parse("run_dir", path)
    with contextlib.ExitStack() as stack:
        bucket = open_bucket(url, seconds=SECONDS)
        stack.callback(bucket.close)
        there = bucket.list()
        record = bucket.read("config.json")
        if there and record is None:
            raise ConfigError(f"--run_dir={url}: holds {', '.join(sorted(there)[:3])} and is no run directory")
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if record is not None:
            (folder / "config.json").write_bytes(record[0])
        yield folder


def try_writing(path: str) -> None:
    """Creates an object beside a run in a bucket and removes it again. Raises BucketError, ConfigError."""
    if not in_bucket(path):
        return
    bucket = open_bucket(parse("run_dir", path), seconds=SECONDS)
    try:
        name = f".try-{uuid.uuid4().hex}"
        bucket.delete(name, bucket.write(name, b"", generation=0))
    finally:
        bucket.close()


def on_this_disk(settings: RunSettings) -> Path:
    """The folder, which need not exist, that the files of a run are in on this machine."""
    if in_bucket(settings.run_dir):
        assert settings.run_dir is not None
        return copy_of(parse("run_dir", settings.run_dir), settings.work_dir, "runs")
    return Path(settings.run_dir or "runs").absolute()
