"""Any other process's side of a run: it receives orders, brings its parts, and notices when process 0 is gone."""

import asyncio
import contextlib
import os
import queue
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from whale_jax.config import RunConfig
from whale_jax.hosts.channel import Channel, HostsError, Message
from whale_jax.hosts.leader import EXIT_SECONDS, LOST_STATUS
from whale_jax.hosts.parts import mine, raw, take
from whale_jax.rollout.trace import Trace

_WITHIN_A_STEP = frozenset(["go", "told", "part"])
_WAITING = 2


class Follower:
    """`Hosts` for every process but 0: it tells nobody anything."""

    def __init__(self, channel: Channel, process: int, count: int) -> None:
        """Receives from now on.

        Args:
            channel: to process 0.
            process: this one's number.
        """
        self.process, self.count, self.channel = process, count, channel
        self.stopped: Message | None = None
        self._within: queue.Queue[Message] = queue.Queue(_WAITING)
        self._early: list[Message] = []
        self._inbox: asyncio.Queue[Message] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        channel.start(self._received, self._lost)

    # Hosts ------------------------------------------------------------------------------------------------------------

    def policy(self, config: RunConfig) -> int:
        return 0

    def order(self, verb: str, *, traces: Sequence[Trace] = (), **fields: Any) -> None:
        pass

    def collect(self, leaf: Any, index: tuple[int, ...] = ()) -> np.ndarray:
        for part in mine(leaf, self.process, index):
            self.channel.send("part", raw(part))
        return np.empty(0)

    def totals(self, counters: Mapping[str, int]) -> dict[str, int]:
        return dict(counters)

    def mean_busy(self, seconds: float) -> float:
        return seconds

    # What only these processes do ---------------------------------------------------------------------------------

    def orders(self) -> "asyncio.Queue[Message]":
        """The orders, from now on to the running loop; the last one is `stop`."""
        with self._lock:
            self._loop, self._inbox = asyncio.get_running_loop(), asyncio.Queue()
            for message in self._early:
                self._inbox.put_nowait(message)
        return self._inbox

    def within(self, kind: str) -> Message:
        """The next message in the middle of a step. Raises HostsError when the run is stopped there."""
        while True:
            if self.stopped is not None:
                raise HostsError(self.stopped.fields["text"])
            with contextlib.suppress(queue.Empty):
                message = self._within.get(timeout=0.2)
                if message.kind != kind:
                    raise HostsError(f"host 0 sent {message.kind!r} where {kind!r} was expected")
                return message

    def take(self, like: Any) -> jax.Array:
        """Places this process's parts of an array that process 0 spreads."""
        return take(like, self.process, lambda: self.within("part").blobs[0])

    def terminated(self) -> None:
        """Tells process 0 that this machine is to be taken away; it then ends the run at a boundary."""
        with contextlib.suppress(HostsError):
            self.channel.send("terminated")

    @property
    def lost_status(self) -> int:
        """The exit status when nothing can be done together any more: that of process 0, if it said one."""
        return LOST_STATUS if self.stopped is None else self.stopped.fields["status"]

    def loss(self) -> str | None:
        """Why nothing can be done together any more, if that is so."""
        return None if self.stopped is None else self.stopped.fields["text"]

    def end(self, status: int, text: str) -> None:
        """Tells process 0 that this one ends, unless it is process 0 who wanted it."""
        if self._timer is not None:
            self._timer.cancel()
        if self.stopped is None:
            with contextlib.suppress(HostsError):
                self.channel.send("bye", status=status)

    def _received(self, message: Message) -> None:
        """In the receiving thread."""
        if message.kind in _WITHIN_A_STEP:
            while self.stopped is None:
                with contextlib.suppress(queue.Full):
                    return self._within.put(message, timeout=0.2)
        elif message.kind == "stop":
            self._stop(message)
        else:
            self._deliver(message)

    def _lost(self, reason: str) -> None:
        # At once: there is nothing to save here, and JAX aborts a process whose coordination service is gone.
        print(f"error: {reason}", file=sys.stderr, flush=True)
        os._exit(LOST_STATUS)

    def _stop(self, message: Message) -> None:
        with self._lock:
            if self.stopped is not None:
                return
            self.stopped = message

        def give_up() -> None:
            print(f"error: {message.fields['text']}", file=sys.stderr, flush=True)
            os._exit(message.fields["status"])

        if message.fields["status"]:  # a good end finds this process waiting for orders, not in a device program
            self._timer = threading.Timer(EXIT_SECONDS, give_up)
            self._timer.daemon = True
            self._timer.start()
        self._deliver(message)

    def _deliver(self, message: Message) -> None:
        with self._lock:
            if self._loop is None or self._inbox is None:
                self._early.append(message)
                return
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            self._loop.call_soon_threadsafe(self._inbox.put_nowait, message)
