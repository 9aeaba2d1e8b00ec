"""The objects under one prefix of a bucket, and what can go wrong with them."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from whale_jax.config import ConfigError
from whale_jax.storage.url import BucketUrl

AT_ONCE = 8
"""Requests in flight."""
T = TypeVar("T")


class BucketError(RuntimeError):
    """A bucket cannot be used; the message, one line, names it and what to do."""


class BucketUnreachable(BucketError):
    """No answer, or only errors of the service, for as long as it was tried."""


class Conflict(BucketError):
    """An object is not the one that a write was to replace."""


@dataclass(frozen=True)
class Stored:
    """An object.

    Attributes:
        name: below the prefix.
        size: bytes.
        generation: another one after every write.
        crc32c: of its content, in base64.
    """

    name: str
    size: int
    generation: int
    crc32c: str


class Bucket(Protocol):
    """The objects under `url`. Every method raises BucketError when the bucket is not there, may not be used so, or
    cannot be reached."""

    @property
    def url(self) -> BucketUrl: ...

    def list(self, under: str = "") -> dict[str, Stored]:
        """Objects by name; `under` is what their names begin with."""
        ...

    def read(self, name: str) -> tuple[bytes, int] | None:
        """An object's content and generation; None if there is none."""
        ...

    def fetch(self, stored: Stored, path: Path) -> None:
        """Writes an object's content to a file; its checksum is verified.

        Raises:
            Conflict: the object is not that one any more.
            OSError: the file cannot be written.
        """
        ...

    def write(self, name: str, content: bytes | Path, *, generation: int) -> int:
        """Writes an object, if the one that is there has that generation (0: if there is none).

        Returns:
            The new generation.

        Raises:
            Conflict: another one is there, or none.
            OSError: the file cannot be read.
        """
        ...

    def delete(self, name: str, generation: int) -> None:
        """Removes an object of that generation; none is as good. Raises Conflict where there is another one."""
        ...

    def same(self, stored: Stored, path: Path) -> bool:
        """Whether a file holds what an object does."""
        ...

    def close(self) -> None:
        """Closes the connections."""
        ...


def each(function: Callable[[T], object], items: Iterable[T]) -> None:
    """Calls `function` on each, several at once. Raises what the first that fails raises."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for _ in pool.map(function, items):
            pass


def bring(bucket: Bucket, stored: Stored, path: Path) -> None:
    """Makes a file equal to an object, unless it is; whole or not at all. Raises as `Bucket.fetch`."""
    if not bucket.same(stored, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.fetched")
        bucket.fetch(stored, temporary)
        os.replace(temporary, path)


def open_bucket(url: BucketUrl, *, seconds: float) -> Bucket:
    """Finds client and credentials; nothing is sent to the bucket.

    Args:
        seconds: for which a request that fails is tried again.

    Raises:
        ConfigError: the client is not installed, or there are no credentials.
    """
    try:
        from whale_jax.storage.gcs import GcsBucket
    except ImportError as error:
        raise ConfigError(f"{url}: gs:// needs the extra `gcs` (pip install 'whale-jax[gcs]'; {error})") from None
    try:
        return GcsBucket(url, seconds=seconds)
    except BucketError as error:
        raise ConfigError(str(error)) from error
