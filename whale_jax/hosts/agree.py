"""Whether all processes of a run are of one mind before it begins: settings, inputs, versions, code."""

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

import harness_search
import whale_jax
from whale_jax.config import ConfigError, RunConfig
from whale_jax.hosts.channel import HostsError
from whale_jax.hosts.follower import Follower
from whale_jax.hosts.hosts import Hosts
from whale_jax.hosts.leader import Leader
from whale_jax.rundir import INPUT_NAMES, Inputs, environment

HOST_LOCAL = frozenset(
    ["run_dir", "work_dir", "bucket_seconds",
     "fork_from", "stop_after", "checkpoint", "harness", "task_dir", "retriever_url", "judge_cache",
     "sandbox", "coordinator_address", "process_id", "grace_seconds", "profile_step", "keep_last", "keep_every"]
)  # fmt: skip
"""Settings that may differ between processes: places of inputs, whose content is compared, and what only one does."""
_HARDWARE = frozenset(["cpus"])


def agree(hosts: Hosts, config: RunConfig, inputs: Inputs) -> None:
    """Process 0 compares what every other one has read with what it has; all of them call this.

    Raises:
        ConfigError: in all of them, naming each host and difference.
        HostsError: a process is gone, or stops.
    """
    if hosts.count == 1:
        return
    if jax.process_index() != hosts.process:
        raise HostsError(
            f"this is process {hosts.process} of the run, and process {jax.process_index()} for its devices"
        )
    mine = {"settings": config.values(), "inputs": dataclasses.asdict(inputs), "environment": versions()}
    if isinstance(hosts, Follower):
        hosts.channel.send("hello", **mine)
        if refusal := hosts.within("told").fields.get("refusal"):
            raise ConfigError(refusal)
        return
    assert isinstance(hosts, Leader)
    found = []
    for host in range(1, hosts.count):
        record = hosts.answer(host, "hello").fields
        found += [f"host {host}: {line}" for line in compared(record, config, inputs, mine["environment"])]
    if found:
        refusal = "the hosts of this run differ from host 0: " + "; ".join(found)
        hosts.tell(refusal=refusal)
        raise ConfigError(refusal)
    hosts.tell()


def compared(
    record: Mapping[str, Any], config: RunConfig, inputs: Inputs, own_versions: Mapping[str, str]
) -> list[str]:
    """What another process has that this one has not, one line each."""
    theirs, ours = record["settings"], config.values()
    lines = [
        f"--{name} is {theirs[name]} there, {value} here"
        for name, value in ours.items()
        if name not in HOST_LOCAL and theirs[name] != value
    ]
    lines += [
        f"{INPUT_NAMES[name]} differs (SHA-256 {record['inputs'][name][:12]} there, {value[:12]} here)"
        for name, value in dataclasses.asdict(inputs).items()
        if record["inputs"][name] != value
    ]
    return lines + [
        f"{name} is {record['environment'].get(name)} there, {value} here"
        for name, value in own_versions.items()
        if record["environment"].get(name) != value
    ]


def versions() -> dict[str, str]:
    """Of everything whose version may decide a bit, this package's own code included."""
    found = {name: value for name, value in environment().items() if name not in _HARDWARE}
    return found | {"the code": code_hash()}


def code_hash() -> str:
    """Beginning of the SHA-256 of this package's source files."""
    digest = hashlib.sha256()
    for package in (whale_jax, harness_search):
        root = Path(package.__path__[0])
        for path in sorted(root.rglob("*.py")):
            digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]
