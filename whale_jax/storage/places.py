"""Where on this machine the copies of what lies in buckets are kept."""

import hashlib
import os
from pathlib import Path

from whale_jax.storage.url import BucketUrl


def copies(work_dir: str | None = None) -> Path:
    """The folder of all of them: `work_dir`, or `whale_jax` in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(work_dir).absolute() if work_dir else Path(cache) / "whale_jax"


def copy_of(url: BucketUrl, work_dir: str | None, kind: str) -> Path:
    """The folder that stands for a prefix: another one for every prefix and use."""
    name = f"{url.bucket}_{url.prefix.replace('/', '_')}"[-80:]
    return copies(work_dir) / kind / f"{name}_{hashlib.sha256(str(url).encode()).hexdigest()[:12]}"
