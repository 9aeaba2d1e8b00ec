"""Process 0's side of a run in several processes: it gives orders, collects, and notices who is gone."""

import contextlib
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from whale_jax.config import RunConfig
from whale_jax.hosts.channel import Channel, HostsError, Message
from whale_jax.hosts.parts import collect, spread
from whale_jax.hosts.traces import packed
from whale_jax.preemption import EXIT_STATUS as PREEMPTED
from whale_jax.rollout.trace import Trace

LOST_STATUS = 3
"""Exit status of every process when one is lost: infrastructure, the same command goes on."""

EXIT_SECONDS = 10.0
"""Between the loss of a process and the end of the others, wherever they are: a device program may wait for ever."""

END_SECONDS = 15.0
"""How long process 0, which has JAX's coordination service, waits for the others' end: they close their sandboxes."""

_ROLLOUTS = frozenset(["trace", "done", "failed", "dropped"])
_WAITING = 2
"""Messages of one process that wait to be taken, parts of arrays among them; then it has to wait."""


class Leader:
    """`Hosts` for process 0."""

    process = 0
    lost_status = LOST_STATUS

    def __init__(self, channels: Sequence[Channel]) -> None:
        """Receives from now on.

        Args:
            channels: to processes 1, 2, ….
        """
        self.count = 1 + len(channels)
        self.failure: HostsError | None = None
        self.on_rollouts: Callable[[int, Message], None] = lambda host, message: None
        self.on_failure: Callable[[HostsError], None] = lambda error: None
        self._channels = list(channels)
        self._answers: list[queue.Queue[Message]] = [queue.Queue(_WAITING) for _ in channels]
        self._counters: list[Mapping[str, int]] = [{} for _ in channels]
        self._busy = [0.0 for _ in channels]
        self._gone = [threading.Event() for _ in channels]
        self._policies = 0
        self._lock = threading.Lock()
        self._ended = False  # what is lost afterwards is no loss
        self._timer: threading.Timer | None = None
        for host, channel in enumerate(channels, 1):
            channel.start(
                lambda message, host=host: self._received(host, message), lambda text, host=host: self._lost(host, text)
            )

    # Hosts ------------------------------------------------------------------------------------------------------------

    def policy(self, config: RunConfig) -> int:
        self.order("policy", settings=config.values())
        self._policies += 1
        return self._policies - 1

    def order(self, verb: str, *, traces: Sequence[Trace] = (), **fields: Any) -> None:
        self.check()
        blobs = [packed(traces)] if traces else []
        self._tell(verb, *blobs, **fields)
        for host in range(1, self.count):
            self.answer(host, "ready")
        self._tell("go")

    def collect(self, leaf: Any, index: tuple[int, ...] = ()) -> np.ndarray:
        return collect(leaf, lambda host: self.answer(host, "part").blobs[0], index)

    def totals(self, counters: Mapping[str, int]) -> dict[str, int]:
        return {name: count + sum(other.get(name, 0) for other in self._counters) for name, count in counters.items()}

    def mean_busy(self, seconds: float) -> float:
        return (seconds + sum(self._busy)) / self.count

    # What only process 0 does -------------------------------------------------------------------------------------

    def tell(self, *blobs: bytes | memoryview, **fields: Any) -> None:
        """Sends all others what process 0 found in the middle of a step."""
        self._tell("told", *blobs, **fields)

    def spread(self, array: np.ndarray, sharding: Any) -> jax.Array:
        """Places an array of this host, of which the others get their parts."""
        self.check()
        return spread(array, sharding, lambda host, part: self.send(host, "part", part))

    def send(self, host: int, kind: str, *blobs: bytes | memoryview, **fields: Any) -> None:
        """Sends one process a message. Raises HostsError when it is gone."""
        self._channels[host - 1].send(kind, *blobs, **fields)

    def answer(self, host: int, kind: str) -> Message:
        """The next message of a process, which must be of this kind. Raises HostsError when any process is gone."""
        while True:
            self.check()
            with contextlib.suppress(queue.Empty):
                message = self._answers[host - 1].get(timeout=0.2)
                if message.kind != kind:
                    raise HostsError(f"host {host} sent {message.kind!r} where {kind!r} was expected")
                return message

    def check(self) -> None:
        """Raises HostsError once a process is gone."""
        if self.failure is not None:
            raise self.failure

    def heard(self, host: int, counters: Mapping[str, int], busy_seconds: float) -> None:
        """Notes what a process counted so far."""
        self._counters[host - 1], self._busy[host - 1] = counters, busy_seconds

    def loss(self) -> str | None:
        """Why nothing can be done together any more, if that is so."""
        return None if self.failure is None else str(self.failure)

    def end(self, status: int, text: str) -> None:
        """Ends all others with an exit status, and waits a while until they are gone."""
        with self._lock:
            self._ended = True
        if self._timer is not None:
            self._timer.cancel()
        for channel in self._channels:
            with contextlib.suppress(HostsError):
                channel.send("stop", status=status, text=text)
        deadline = time.monotonic() + END_SECONDS
        for gone in self._gone:
            gone.wait(max(0.0, deadline - time.monotonic()))
        for channel in self._channels:
            channel.close()

    def _tell(self, kind: str, *blobs: bytes | memoryview, **fields: Any) -> None:
        try:
            for channel in self._channels:
                channel.send(kind, *blobs, **fields)
        except HostsError as error:
            self._fail(str(error))
            self.check()
            raise

    def _received(self, host: int, message: Message) -> None:
        """In the receiving thread of a process's channel."""
        if message.kind in _ROLLOUTS:
            self.on_rollouts(host, message)
        elif message.kind == "terminated":
            if not self._ended:
                os.kill(os.getpid(), signal.SIGTERM)  # this process's own handler ends the run at a boundary
        elif message.kind == "bye":
            self._left(host, message.fields["status"])
        elif message.kind == "broken":
            # If the same happened here, this process ends all of them before the time is over.
            self._end_in_time(f"host {host} could not make a step that the others made: {message.fields['text']}")
        else:
            while self.failure is None and not self._ended:
                with contextlib.suppress(queue.Full):
                    return self._answers[host - 1].put(message, timeout=0.2)

    def _lost(self, host: int, text: str) -> None:
        self._gone[host - 1].set()
        self._fail(text)

    def _left(self, host: int, status: int) -> None:
        if status == PREEMPTED and not self._ended:
            os.kill(os.getpid(), signal.SIGTERM)
            return
        self._fail(f"host {host} ended by itself with exit status {status}; its output says why")

    def _fail(self, text: str) -> None:
        """From any thread: nothing can be done together any more."""
        with self._lock:
            if self._ended or self.failure is not None:
                return
            text = f"{text}. All hosts stop; the same command goes on from the last commit"
            self.failure = HostsError(text)
        self._end_in_time(text)
        self.on_failure(self.failure)
        for channel in self._channels:
            with contextlib.suppress(HostsError):
                channel.send("stop", status=LOST_STATUS, text=text)

    def _end_in_time(self, text: str) -> None:
        def give_up() -> None:
            print(f"error: {text}", file=sys.stderr, flush=True)
            for channel in self._channels:
                with contextlib.suppress(HostsError):
                    channel.send("stop", status=LOST_STATUS, text=text)
            os._exit(LOST_STATUS)

        if self._timer is None:
            self._timer = threading.Timer(EXIT_SECONDS, give_up)
            self._timer.daemon = True
            self._timer.start()
