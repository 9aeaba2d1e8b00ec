"""Finds the home of a run: a local folder, or a prefix of a bucket with a working copy on this machine."""

import contextlib
import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from whale_jax.rundir import claim, fresh_run_dir
from whale_jax.settings import RunSettings
from whale_jax.storage.bucket import BucketError, open_bucket
from whale_jax.storage.bucket_home import BucketHome
from whale_jax.storage.home import Home, LocalHome
from whale_jax.storage.lease import LEASE_SECONDS, Lease, RunLost, home_of
from whale_jax.storage.url import BucketUrl, in_bucket, parse


@contextlib.contextmanager
def run_home(settings: RunSettings, say: Callable[[str], None]) -> Iterator[Home]:
    """The run directory that the settings name, this process's own while the context lasts.

    Raises:
        ConfigError: it cannot be had: another process uses it, it is something else, there are no credentials, ….
        BucketError, RunLost: the bucket cannot be used, or was taken over; also at the end, when the rest is sent.
    """
    if not in_bucket(settings.run_dir):
        directory = Path(settings.run_dir) if settings.run_dir else fresh_run_dir()
        with claim(directory):
            yield LocalHome(directory.resolve())
        return
    assert settings.run_dir is not None
    url = parse("run_dir", settings.run_dir)
    directory = copy_of(url, settings.work_dir)
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
        finally:
            if sys.exc_info()[0] is None:
                home.close()
            else:
                with contextlib.suppress(BucketError, RunLost, OSError):
                    home.close()


def copy_of(url: BucketUrl, work_dir: str | None, kind: str = "runs") -> Path:
    """The local folder that stands for a prefix: another one for every prefix and use."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    root = Path(work_dir) if work_dir else Path(cache) / "whale_jax"
    name = f"{url.bucket}_{url.prefix.replace('/', '_')}"[-80:]
    return root.absolute() / kind / f"{name}_{hashlib.sha256(str(url).encode()).hexdigest()[:12]}"
