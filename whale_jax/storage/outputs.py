"""A folder that is written once, here or in a bucket."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from whale_jax.storage.bucket import each, open_bucket
from whale_jax.storage.inputs import SECONDS
from whale_jax.storage.places import copies
from whale_jax.storage.url import in_bucket, parse

_LAST = "config.json"
"""What a checkpoint is recognised by is sent when all else is there."""


@contextlib.contextmanager
def folder_for(flag: str, path: str) -> Iterator[Path]:
    """A folder to write into; at the end of the context, one for a place in a bucket is sent there.

    Args:
        flag: the setting that names it, for messages.

    Raises:
        ConfigError: there are no credentials.
        FileExistsError: something is there already.
        BucketError: the bucket cannot be used; what was sent until then has no config.json.
    """
    if not in_bucket(path):
        yield Path(path)
        return
    bucket = open_bucket(parse(flag, path), seconds=SECONDS)
    try:
        if there := bucket.list():
            raise FileExistsError(f"--{flag}={path}: holds {', '.join(sorted(there)[:3])}; name a fresh prefix")
        copies().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="write_", dir=copies()) as name:
            folder = Path(name) / "folder"
            yield folder
            files = [file for file in sorted(folder.rglob("*")) if file.is_file() and file != folder / _LAST]
            each(lambda file: bucket.write(file.relative_to(folder).as_posix(), file, generation=0), files)
            bucket.write(_LAST, folder / _LAST, generation=0)
    finally:
        bucket.close()
