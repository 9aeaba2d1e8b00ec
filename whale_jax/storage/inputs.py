"""Inputs of a run that lie in a bucket: folders and files, fetched once and compared with the bucket at every start."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from whale_jax.config import ConfigError
from whale_jax.storage.bucket import Bucket, BucketError, BucketUnreachable, bring, each, open_bucket
from whale_jax.storage.places import copy_of
from whale_jax.storage.url import BucketUrl, in_bucket, is_path, parse

SECONDS = 120.0
"""For which a request that fails is tried again."""


def local_folder(flag: str, path: str | os.PathLike[str], work_dir: str | None = None) -> Path:
    """A folder on this machine that holds what `path`, local or gs://, does.

    Args:
        flag: the setting that names it, for messages.
        work_dir: folder of the local copies; default: as of `--work_dir`.

    Raises:
        ConfigError: there is nothing, or it cannot be had.
        BucketUnreachable: for as long as it was tried.
    """
    if not in_bucket(path):
        return Path(path)
    url = parse(flag, os.fspath(path))
    with _opened(flag, os.fspath(path), url) as bucket:
        return _fetched(flag, bucket, copy_of(url, work_dir, "inputs"))


def local_file(flag: str, path: str, work_dir: str | None = None) -> Path:
    """As `local_folder`, of a single file."""
    if not in_bucket(path):
        return Path(path)
    url = parse(flag, path)
    folder, _, name = url.prefix.rpartition("/")
    with _opened(flag, path, BucketUrl(url.bucket, folder)) as bucket:
        found = bucket.read(name)
    if found is None:
        raise ConfigError(f"--{flag}={path}: there is no such object")
    copy = copy_of(url, work_dir, "inputs") / name
    copy.parent.mkdir(parents=True, exist_ok=True)
    temporary = copy.with_name(f".{name}.{os.getpid()}")
    temporary.write_bytes(found[0])
    os.replace(temporary, copy)
    return copy


@contextlib.contextmanager
def _opened(flag: str, path: str, url: BucketUrl) -> Iterator[Bucket]:
    """A bucket; what is wrong with it is wrong with the setting, unless it cannot be reached."""
    bucket = open_bucket(url, seconds=SECONDS)
    try:
        yield bucket
    except BucketUnreachable:
        raise
    except BucketError as error:
        raise ConfigError(f"--{flag}={path}: {error}") from error
    finally:
        bucket.close()


def _fetched(flag: str, bucket: Bucket, copy: Path) -> Path:
    stored = bucket.list()
    if not stored:
        raise ConfigError(f"--{flag}={bucket.url}: there is nothing there")
    if strange := [name for name in stored if not is_path(name)]:
        raise ConfigError(f"--{flag}={bucket.url}: no file can be called {strange[0]!r}; remove the object")
    copy.mkdir(parents=True, exist_ok=True)
    with (copy.parent / f".{copy.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # processes of one machine may have the same inputs
        for path in copy.rglob("*"):
            if path.is_file() and path.relative_to(copy).as_posix() not in stored:
                path.unlink()
        each(lambda one: bring(bucket, one, copy / one.name), stored.values())
    return copy
