"""Inputs of a run that lie in a bucket: folders and files, fetched once and compared with the bucket at every start."""

import fcntl
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from whale_jax.config import ConfigError
from whale_jax.storage.bucket import Bucket, BucketError, BucketUnreachable, Stored, open_bucket
from whale_jax.storage.bucket_home import AT_ONCE
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
    bucket = open_bucket(url, seconds=SECONDS)
    try:
        return _fetched(flag, bucket, copy_of(url, work_dir, "inputs"))
    except BucketUnreachable:
        raise
    except BucketError as error:
        raise ConfigError(f"--{flag}={path}: {error}") from error
    finally:
        bucket.close()


def local_file(flag: str, path: str, work_dir: str | None = None) -> Path:
    """As `local_folder`, of a single file."""
    if not in_bucket(path):
        return Path(path)
    url = parse(flag, path)
    folder, _, name = url.prefix.rpartition("/")
    bucket = open_bucket(BucketUrl(url.bucket, folder), seconds=SECONDS)
    try:
        found = bucket.read(name)
    except BucketUnreachable:
        raise
    except BucketError as error:
        raise ConfigError(f"--{flag}={path}: {error}") from error
    finally:
        bucket.close()
    if found is None:
        raise ConfigError(f"--{flag}={path}: there is no such object")
    copy = copy_of(url, work_dir, "inputs") / name
    copy.parent.mkdir(parents=True, exist_ok=True)
    temporary = copy.with_name(f".{name}.{os.getpid()}")
    temporary.write_bytes(found[0])
    os.replace(temporary, copy)
    return copy


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
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for _ in pool.map(lambda one: _fetch(bucket, one, copy / one.name), stored.values()):
                pass
    return copy


def _fetch(bucket: Bucket, stored: Stored, path: Path) -> None:
    if not bucket.same(stored, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.fetched")
        bucket.fetch(stored, temporary)
        os.replace(temporary, path)
