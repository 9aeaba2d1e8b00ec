"""Which trouble ends a job with which status, however it is wrapped."""

import errno

import pytest

from harness_search.proposers.base import ProposerUnreachable
from whale_jax.ends import GOES_ON_WHEN_MENDED, End, end_of
from whale_jax.hosts.channel import HostsError
from whale_jax.run import InfrastructureError
from whale_jax.storage.bucket import BucketUnreachable
from whale_jax.training.checkpoint import CheckpointError


@pytest.mark.parametrize(
    ("error", "cause", "end"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), None, End.DISK_FULL),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), None, End.DISK_FULL),
        (CheckpointError("step 4"), OSError(errno.ENOSPC, "No space left on device"), End.DISK_FULL),
        (CheckpointError("step 4"), ValueError("[OS error 28: ENOSPC No space left on device]"), End.DISK_FULL),
        (CheckpointError("step 4"), OSError(errno.EACCES, "Permission denied"), End.INFRASTRUCTURE),
        (OSError(errno.EROFS, "Read-only file system"), None, End.INFRASTRUCTURE),
        (HostsError("host 1 is lost"), None, End.INFRASTRUCTURE),
        (InfrastructureError("unscored"), None, End.INFRASTRUCTURE),
        (ProposerUnreachable("no answer"), None, End.PROPOSER_UNREACHABLE),
        (BucketUnreachable("gs://lab"), None, End.BUCKET_UNREACHABLE),
    ],
)
def test_every_trouble_has_its_status(error, cause, end):
    error.__cause__ = cause
    assert isinstance(error, GOES_ON_WHEN_MENDED)
    assert end_of(error) == end


def test_no_two_ends_have_one_status_and_none_is_that_of_a_job_that_runs_already():
    assert len({int(end) for end in End}) == len(End)
    assert 7 not in {int(end) for end in End}  # launch/tpu/worker.sh
