"""Names of places in a bucket: `gs://bucket/some/prefix`."""

import os
from dataclasses import dataclass

from whale_jax.config import ConfigError

SCHEME = "gs://"


@dataclass(frozen=True)
class BucketUrl:
    """A prefix in a bucket.

    Attributes:
        bucket: its name.
        prefix: without slashes at its ends; empty for the whole bucket.
    """

    bucket: str
    prefix: str

    def __str__(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.prefix}".rstrip("/")

    def object(self, name: str) -> str:
        """The name in the bucket of what is called `name` under the prefix."""
        return f"{self.prefix}/{name}" if self.prefix else name


def in_bucket(path: str | os.PathLike[str] | None) -> bool:
    """Whether a setting names a place in a bucket, and not a local one."""
    return path is not None and os.fspath(path).startswith(SCHEME)


def parse(flag: str, text: str) -> BucketUrl:
    """Reads `gs://bucket/prefix`.

    Args:
        flag: the setting's name, for the message.

    Raises:
        ConfigError: it names no bucket, or a prefix that cannot be a path (empty parts, `.` and `..`).
    """
    bucket, _, prefix = text.removeprefix(SCHEME).partition("/")
    prefix = prefix.removesuffix("/")
    if not text.startswith(SCHEME) or not bucket or (prefix and not is_path(prefix)):
        raise ConfigError(f"--{flag}={text}: must be gs://bucket/prefix, without empty parts, '.' and '..'")
    return BucketUrl(bucket, prefix)


def is_path(name: str) -> bool:
    """Whether an object's name can be that of a file below a folder."""
    return "\0" not in name and all(part not in ("", ".", "..") for part in name.split("/"))
