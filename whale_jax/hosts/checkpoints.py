"""Checkpoints of a state that is divided over processes: process 0 reads and writes, parts travel between hosts.

So the run directory is process 0's alone and need not be shared. Beside the state on the devices, the host of process 0
holds one copy while it is saved or restored; the other hosts hold a part of one array.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax

from whale_jax.hosts.follower import Follower
from whale_jax.hosts.hosts import Hosts
from whale_jax.hosts.leader import Leader
from whale_jax.storage.home import Home
from whale_jax.training.checkpoint import CheckpointError, Checkpoints
from whale_jax.training.fingerprint import named_leaves

State = TypeVar("State")


class LeadersCheckpoints(Checkpoints):
    """`Checkpoints` for process 0."""

    def __init__(self, directory: str | os.PathLike[str], hosts: Leader, **options: Any):
        super().__init__(directory, collect=hosts.collect, processes={hosts.process}, **options)
        self._hosts = hosts

    def restore(self, step: int, like: State, part: str = "") -> tuple[State, dict[str, Any]]:
        """As `Checkpoints.restore`, while all other processes restore too."""
        try:
            arrays, meta = self.read(step, like, part)
        except CheckpointError as error:
            self._hosts.tell(error=str(error))
            raise
        self._hosts.tell(meta=meta)
        placed = [self._hosts.spread(arrays.pop(name), leaf.sharding) for name, leaf in named_leaves(like).items()]
        return jax.tree.unflatten(jax.tree.structure(like), placed), meta


class FollowersCheckpoints(Checkpoints):
    """`Checkpoints` for the others, which have no files."""

    def __init__(self, hosts: Follower) -> None:
        super().__init__(os.devnull, collect=hosts.collect)
        self._hosts = hosts

    def restore(self, step: int, like: State, part: str = "") -> tuple[State, dict[str, Any]]:
        """What process 0 restores. Raises CheckpointError where it does."""
        told: Mapping[str, Any] = self._hosts.within("told").fields
        if "error" in told:
            raise CheckpointError(told["error"])
        placed = [self._hosts.take(leaf) for leaf in jax.tree.leaves(like)]
        return jax.tree.unflatten(jax.tree.structure(like), placed), dict(told["meta"])


def make_checkpoints(
    hosts: Hosts, directory: Path, keep_last: int, keep_every: int = 0, home: Home | None = None
) -> Checkpoints:
    """The checkpoints of a run in `directory`, as this process has to do with them."""
    if isinstance(hosts, Leader):
        return LeadersCheckpoints(directory, hosts, keep_last=keep_last, keep_every=keep_every, home=home)
    if isinstance(hosts, Follower):
        return FollowersCheckpoints(hosts)
    return Checkpoints(directory, keep_last=keep_last, keep_every=keep_every, home=home)
