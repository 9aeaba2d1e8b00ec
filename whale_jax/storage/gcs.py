"""Google Cloud Storage over its JSON API, with the official client.

A write names the generation of the object that it replaces (0: there is none yet) and happens only if that is still the
one there. Requests that fail are sent again for a bounded time; a write whose first answer was lost is recognised by a
mark that only it carries, so it is no conflict with itself.
"""

import base64
import contextlib
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import google_crc32c
import requests

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "Please install grpcio-status")  # of gRPC, which is not used here
    from google.api_core import exceptions as api
    from google.auth.exceptions import GoogleAuthError, TransportError
    from google.cloud import storage
    from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
    from google.cloud.storage.retry import DEFAULT_RETRY

from whale_jax.storage.bucket import BucketError, BucketUnreachable, Conflict, Stored
from whale_jax.storage.url import SCHEME, BucketUrl

_TIMEOUT = (10.0, 60.0)
"""Seconds to connect, and without a byte."""
_IN_MEMORY = 256 << 20
_MARK = "whale-write"
_UNREACHABLE = (
    api.RetryError, api.ServerError, api.TooManyRequests, TransportError, requests.RequestException, ConnectionError,
    InvalidResponse,
)  # fmt: skip


class GcsBucket:
    """A `Bucket`. May be used from several threads."""

    def __init__(self, url: BucketUrl, *, seconds: float = 120.0) -> None:
        """Finds credentials; nothing is sent to the bucket.

        Args:
            seconds: for which a request that fails is tried again.

        Raises:
            BucketError: there are no credentials.
        """
        self.url = url
        self._seconds = seconds
        try:
            # The project matters to nothing that is asked here, and need not be known.
            self._client: Any = storage.Client(project="none")
        except GoogleAuthError as error:
            raise BucketError(
                f"{url}: no Google Cloud credentials ({_first_line(error)}): run `gcloud auth application-default "
                "login`, or set GOOGLE_APPLICATION_CREDENTIALS; on a Cloud VM, give it a service account"
            ) from error
        self._bucket: Any = self._client.bucket(url.bucket)
        retry = DEFAULT_RETRY.with_delay(initial=0.2, maximum=15.0, multiplier=2.0).with_timeout(seconds)
        self._how: dict[str, Any] = {"retry": retry, "timeout": _TIMEOUT}

    def list(self, under: str = "") -> dict[str, Stored]:
        start = self.url.object("")
        fields = "items(name,size,generation,crc32c),nextPageToken"
        with self._plainly("be listed"):
            found = self._client.list_blobs(self._bucket, prefix=start + under, fields=fields, **self._how)
            return {
                name: Stored(name, blob.size, blob.generation, blob.crc32c)
                for blob in found
                if (name := blob.name[len(start) :]) and not name.endswith("/")  # a folder made in the console
            }

    def read(self, name: str) -> tuple[bytes, int] | None:
        blob = self._bucket.blob(self.url.object(name))
        with self._plainly("be read", name):
            try:
                data = blob.download_as_bytes(raw_download=True, **self._how)
            except api.NotFound as error:
                if _names_bucket(error):
                    raise
                return None
            return data, int(blob.generation)

    def fetch(self, stored: Stored, path: Path) -> None:
        blob = self._bucket.blob(self.url.object(stored.name))
        with self._plainly("be read", stored.name):
            try:
                blob.download_to_filename(
                    str(path), raw_download=True, if_generation_match=stored.generation, **self._how
                )
            except api.NotFound as error:
                raise Conflict(f"{self.url}/{stored.name} was removed while it was read") from error

    def write(self, name: str, content: bytes | Path, *, generation: int) -> int:
        if isinstance(content, Path) and content.stat().st_size <= _IN_MEMORY:
            content = content.read_bytes()  # a file that grows meanwhile does no harm
        blob = self._bucket.blob(self.url.object(name))
        blob.metadata = {_MARK: (mark := uuid.uuid4().hex)}
        how = {**self._how, "if_generation_match": generation, "content_type": "application/octet-stream"}
        try:
            with self._plainly("be written", name):
                if isinstance(content, Path):
                    blob.upload_from_filename(str(content), **how)
                else:
                    blob.upload_from_string(content, **how)
                return int(blob.generation)
        except Conflict:
            with self._plainly("be read", name):
                there = self._bucket.get_blob(self.url.object(name), **self._how)
            if there is not None and (there.metadata or {}).get(_MARK) == mark:
                return int(there.generation)
            raise

    def delete(self, name: str, generation: int) -> None:
        with self._plainly("be removed", name):
            try:
                self._bucket.blob(self.url.object(name)).delete(if_generation_match=generation, **self._how)
            except api.NotFound as error:
                if _names_bucket(error):
                    raise

    def same(self, stored: Stored, path: Path) -> bool:
        return path.is_file() and path.stat().st_size == stored.size and crc32c(path) == stored.crc32c

    def close(self) -> None:
        self._client.close()

    @contextlib.contextmanager
    def _plainly(self, verb: str, name: str = "") -> Iterator[None]:
        """The client's errors as ours: what cannot `be read`, …, and why."""
        what = f"{self.url}/{name}" if name else str(self.url)
        try:
            yield
        except api.PreconditionFailed as error:
            raise Conflict(f"{what}: another process has written it") from error
        except _UNREACHABLE as error:
            raise BucketUnreachable(
                f"{what}: cannot {verb}: the bucket was not reached within {self._seconds:g} s "
                f"(--bucket_seconds; {_first_line(error)})"
            ) from error
        except (api.ClientError, GoogleAuthError, DataCorruption) as error:
            raise BucketError(f"{what}: cannot {verb}: {self._refusal(error)}") from error

    def _refusal(self, error: Any) -> str:
        """What to do about an answer that will not change by itself."""
        bucket = f"{SCHEME}{self.url.bucket}"
        code = getattr(error, "code", 401 if isinstance(error, GoogleAuthError) else None)
        if code == 401:
            return f"the credentials are not accepted ({_first_line(error)})"
        if code == 403:
            return f"forbidden: this account needs roles/storage.objectUser on {bucket} ({_first_line(error)})"
        if code == 404:
            return (
                f"there is no bucket {bucket}: make it (`gcloud storage buckets create {bucket} --location=REGION`), "
                "or name another one"
            )
        return _first_line(error)


def crc32c(path: Path) -> str:
    """CRC32C of a file as the service writes it."""
    checksum = google_crc32c.Checksum()
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            checksum.update(part)
    return base64.b64encode(checksum.digest()).decode()


def _names_bucket(error: Exception) -> bool:
    """Whether a 404 is about the bucket itself, and not about one object in it."""
    text = str(error).lower()
    return "bucket does not exist" in text or "bucket not found" in text


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
