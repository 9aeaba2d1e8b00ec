"""How the processes of a run find each other: JAX's coordination service, and through it process 0's own channel."""

import json
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import jax
from jax._src import distributed  # the key-value store of the service has no public name

from whale_jax.config import ConfigError
from whale_jax.hosts.channel import Channel, HostsError
from whale_jax.hosts.follower import Follower
from whale_jax.hosts.leader import LOST_STATUS, Leader
from whale_jax.settings import MeshSettings

_KEY = "whale_jax/channel"
JOIN_SECONDS = 300
"""How long the processes wait for each other at the start: machines of a pod do not begin together."""


def join(settings: MeshSettings) -> Leader | Follower:
    """Joins the processes of a run; nothing of JAX may have been used before.

    Without `--coordinator_address` JAX finds the others itself, as on a TPU pod. A process that does not find them in
    time ends here, with exit status 3: JAX would abort it, and say less.

    Raises:
        ConfigError: there are other processes than the settings say.
        HostsError: process 0's channel does not come up.
    """
    wanted = settings.num_processes
    late = threading.Timer(JOIN_SECONDS, _give_up, [settings])
    late.daemon = True
    late.start()
    try:
        _initialize(settings)
        state = distributed.global_state
        if state.num_processes != wanted:
            raise ConfigError(f"--num_processes={wanted}: JAX finds {state.num_processes} processes")
        assert state.coordinator_address is not None
        assert state.client is not None
        host = state.coordinator_address.rsplit(":", 1)[0].strip("[]")
        if state.process_id == 0:
            return Leader(list(_accepted(host, state.client, wanted, settings.host_timeout_seconds)))
        return _connected(host, state.client, state.process_id, wanted, settings.host_timeout_seconds)
    except (OSError, EOFError) as error:
        raise HostsError(f"process 0's channel does not come up: {_first(error)}") from error
    finally:
        late.cancel()


def _initialize(settings: MeshSettings) -> None:
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM away from `preemption`
    address = settings.coordinator_address
    try:
        jax.distributed.initialize(
            coordinator_address=address,
            num_processes=settings.num_processes if address else None,
            process_id=settings.process_id if address else None,
            cluster_detection_method="deactivate" if address else None,
            initialization_timeout=2 * JOIN_SECONDS,
            # Who is lost is noticed by the channel, with a message; JAX would abort the process first.
            heartbeat_timeout_seconds=int(3 * settings.host_timeout_seconds),
        )
    except (RuntimeError, ValueError) as error:
        raise ConfigError(f"{_flags(settings)}: the processes do not find each other: {_first(error)}") from error


def _give_up(settings: MeshSettings) -> None:
    print(
        f"error: {_flags(settings)}: not all processes were there within {JOIN_SECONDS} s; start all of them together, "
        "on hosts that reach process 0",
        file=sys.stderr,
        flush=True,
    )
    os._exit(LOST_STATUS)


def _flags(settings: MeshSettings) -> str:
    where = settings.coordinator_address
    here = f" --coordinator_address={where} --process_id={settings.process_id}" if where else ""
    return f"--num_processes={settings.num_processes}{here}"


def _accepted(host: str, client: Any, count: int, silence: float) -> Iterator[Channel]:
    """Channels to processes 1, 2, …; the port and a secret are in the key-value store."""
    token = secrets.token_hex(16)
    with _listening(host) as server:
        client.key_value_set(_KEY, json.dumps({"port": server.getsockname()[1], "token": token}))
        found: dict[int, Channel] = {}
        deadline = time.monotonic() + JOIN_SECONDS
        while len(found) < count - 1:
            server.settimeout(max(0.1, deadline - time.monotonic()))
            connection, peer = server.accept()
            channel = Channel(connection, "a process", silence)
            try:
                hello = channel.receive()
                known = secrets.compare_digest(str(hello.fields["token"]), token)
                number = int(hello.fields["process"])
            except (OSError, EOFError, ValueError, KeyError):
                known = False
            if not known or not 0 < number < count or number in found:
                channel.close()
                continue
            channel.peer = f"host {number} ({peer[0]})"
            found[number] = channel
    return iter([found[number] for number in sorted(found)])


def _listening(host: str) -> socket.socket:
    """A listening socket at the address where the others look for process 0, or, if it is no own one, at all."""
    try:
        family, _, _, _, where = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        return socket.create_server(where[:2], family=family)
    except OSError:
        return socket.create_server(("", 0))


def _connected(host: str, client: Any, process: int, count: int, silence: float) -> Follower:
    found = json.loads(client.blocking_key_value_get(_KEY, 1000 * JOIN_SECONDS))
    connection = socket.create_connection((host, found["port"]), timeout=silence)
    channel = Channel(connection, f"host 0 ({host})", silence)
    channel.send("hello", token=found["token"], process=process)
    return Follower(channel, process, count)


def _first(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
