"""A job in one process, or in several that begin and end together."""

import os
import sys
import time
import traceback
from collections.abc import Callable

from whale_jax.config import RunConfig
from whale_jax.hosts.channel import HostsError
from whale_jax.hosts.hosts import Alone, Hosts
from whale_jax.hosts.join import join

NOTICE_SECONDS = 2.0
"""Within which the loss of a process is noticed, when a program of all devices fails here because of it."""

_FAULT = 1


def in_company(config: RunConfig, job: Callable[[Hosts], int]) -> int:
    """Runs a job beside the same job in the run's other processes, if it has any.

    When one process ends, all end: with the exit status that process 0 decides, and with 3 when one is lost. With
    others, this process ends here, process 0 as the last: JAX's own end would abort who is not the first to leave.

    Args:
        job: gives its exit status; it has said what is wrong.

    Raises:
        ConfigError, HostsError: the processes do not find each other.
    """
    if config.mesh.num_processes == 1:
        return job(Alone())
    hosts = join(config.mesh)
    try:
        status = job(hosts)
    except HostsError as error:
        print(f"error: {error}", file=sys.stderr)
        status = hosts.lost_status
    except Exception:  # of the device program that waited for a lost process, or a fault
        if reason := _noticed(hosts.loss):
            print(f"error: {reason}", file=sys.stderr)
            status = hosts.lost_status
        else:
            traceback.print_exc()
            status = _FAULT
    hosts.end(status, f"host {hosts.process} ended the run with exit status {status}; its output says why")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _noticed(loss: Callable[[], str | None]) -> str | None:
    deadline = time.monotonic() + NOTICE_SECONDS
    while (reason := loss()) is None and time.monotonic() < deadline:
        time.sleep(0.05)
    return reason
