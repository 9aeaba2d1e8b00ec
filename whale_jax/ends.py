"""How a job ends: exit statuses, each with one meaning (docs/operations.md)."""

import enum
import errno
from collections.abc import Iterator

from harness_search.proposers.base import ProposerUnreachable
from harness_search.proposers.session_log import SessionRecordError
from harness_search.sandbox.backends import SandboxUnavailable
from harness_search.search import SearchInfrastructureError
from whale_jax.hosts.channel import HostsError
from whale_jax.run import InfrastructureError
from whale_jax.storage.bucket import BucketUnreachable
from whale_jax.training.checkpoint import CheckpointError

GOES_ON_WHEN_MENDED = (
    BucketUnreachable,
    CheckpointError,
    HostsError,
    InfrastructureError,
    OSError,  # a full disk, a folder that became read-only
    ProposerUnreachable,
    SandboxUnavailable,
    SearchInfrastructureError,
    SessionRecordError,
)
"""Nothing is wrong with the run: it stands at its last commit, and the same command goes on."""

_FULL = ("No space left on device", "Disk quota exceeded")  # what is left of it in errors of other libraries


class End(enum.IntEnum):
    """Exit status of a job."""

    DONE = 0
    REFUSED = 2
    INFRASTRUCTURE = 3
    DIVERGED = 4
    TERMINATED = 5
    DISK_FULL = 6
    BUCKET_UNREACHABLE = 8  # 7 is launch/tpu/worker.sh's: a job runs already
    PROPOSER_UNREACHABLE = 9
    INTERRUPTED = 130


def end_of(error: BaseException) -> End:
    """The status of a job that an error of `GOES_ON_WHEN_MENDED` ended."""
    for one in _causes(error):
        if isinstance(one, BucketUnreachable):
            return End.BUCKET_UNREACHABLE
        if isinstance(one, ProposerUnreachable):
            return End.PROPOSER_UNREACHABLE
        if isinstance(one, OSError) and one.errno in (errno.ENOSPC, errno.EDQUOT):
            return End.DISK_FULL
        if any(text in str(one) for text in _FULL):
            return End.DISK_FULL
    return End.INFRASTRUCTURE


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__
