"""The harness worker: one locked-in server per harness, one forked child per episode, many at once.

Whatever an episode does ends that episode alone: its wall clock runs outside the process, and its child is killed
without the others hearing of it.
"""

import asyncio
import os
import signal
import socket
from dataclasses import asdict, dataclass
from typing import Any

from harness_search.contract import (
    Budgets,
    CallRefused,
    EndReason,
    EnvResult,
    EpisodeHost,
    HarnessError,
    HarnessInfo,
    ReplyData,
    TaskView,
    read_info,
)
from harness_search.sandbox.backends import Backend, SandboxUnavailable
from harness_search.sandbox.forkserver import Child, Exit, ForkServer
from harness_search.sandbox.limits import DEFAULT_LIMITS, Limits
from harness_search.sandbox.session import ChildNotReady, ChildSilent, Closing, Session
from harness_search.sandbox.wire import Pipe

_MAX_RESTARTS = 8
_SILENT_SECONDS = 2.0  # between a closed pipe and the exit that should follow at once
_REAP_SECONDS = 10.0
_KILLED = "the harness process was killed from outside"


@dataclass(frozen=True)
class EpisodeOutcome:
    """How an episode ended. `end` None: the harness returned the reply with id `reply`."""

    end: EndReason | None
    reply: int | None
    error: str | None
    harness_seconds: float
    """Wall time in which no host call was in flight: the harness, the worker and the protocol."""


class HarnessWorker:
    """Runs episodes of one harness. Made by `start`; an async context manager."""

    def __init__(self, source: str, info: HarnessInfo, backend: Backend, limits: Limits, server: ForkServer) -> None:
        self.info = info
        self.backend = backend
        self._source = source
        self._limits = limits
        self._server = server
        self._restarting = asyncio.Lock()
        self._restarts = 0
        self._closed = False

    @classmethod
    async def start(cls, source: str, *, backend: Backend, limits: Limits = DEFAULT_LIMITS) -> "HarnessWorker":
        """Checks the harness, starts its sandbox, and loads it there once.

        Raises:
            HarnessError: the file breaks the contract, does not load, or does not load in time.
            SandboxUnavailable: the sandbox does not come up.
        """
        info = read_info(source)
        worker = cls(source, info, backend, limits, await ForkServer.start(source, backend, limits))
        try:
            await worker._load_once()
        except BaseException:
            await worker.close()
            raise
        return worker

    async def __aenter__(self) -> "HarnessWorker":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def enforced(self) -> tuple[str, ...]:
        """What holds the harness, in words."""
        return self._server.enforced

    async def run_episode(
        self, *, episode_id: str, task: TaskView, budgets: Budgets, seed: int, host: EpisodeHost
    ) -> EpisodeOutcome:
        """Runs the harness on one task. Episodes may run at the same time; `seed` seeds the child's `random`.

        A broken sandbox is an outcome (`infrastructure`); a fault in the host's own code is raised as it is, after the
        child was killed.
        """
        try:
            server = await self._living_server()
        except SandboxUnavailable as error:
            return EpisodeOutcome(EndReason.INFRASTRUCTURE, None, f"episode {episode_id}: {error}", 0.0)
        start = {
            "task": {"id": task.id, "inputs": dict(task.inputs)},
            "budgets": asdict(budgets),
            "seed": seed,
        }
        closing, seconds = await self._converse(server, start, budgets.wall_seconds, host)
        return EpisodeOutcome(closing.end, closing.reply, closing.error, seconds)

    async def close(self) -> None:
        """Ends the sandbox and every episode in it."""
        self._closed = True
        await self._server.close()

    async def _load_once(self) -> None:
        start = {"task": None, "budgets": None, "seed": 0}
        closing, _ = await self._converse(self._server, start, self._limits.load_seconds, _NoHost())
        match closing:
            case Closing(EndReason.INVALID_RETURN):  # the closing message of a child that only loads
                return
            case Closing(EndReason.INFRASTRUCTURE, error=error):
                raise SandboxUnavailable(f"the {self.backend.name} sandbox cannot run a child: {error}")
            case Closing(EndReason.TIMEOUT):
                raise HarnessError(f"the file does not load within {self._limits.load_seconds} s")
            case Closing(error=error):
                raise HarnessError(f"the file does not load: {error}")

    async def _converse(
        self, server: ForkServer, start: dict[str, Any], wall_seconds: float, host: EpisodeHost
    ) -> tuple[Closing, float]:
        ours, theirs = socket.socketpair()
        session = Session(Pipe(ours), host, self._limits)
        child = server.fork(theirs)
        try:
            closing = await session.run(start, self._limits.start_seconds, wall_seconds)
        except ChildNotReady as fault:
            closing = Closing(EndReason.INFRASTRUCTURE, error=str(fault))
        except ChildSilent:
            closing = await self._explain(server, child)
        finally:
            server.kill(child)
            await session.close()
        return closing, session.harness_seconds

    async def _explain(self, server: ForkServer, child: Child) -> Closing:
        """What became of a child that closed its pipe without a word."""
        done, _ = await asyncio.wait({child.exited}, timeout=_SILENT_SECONDS)
        if done:
            return explain_exit(child.exited.result(), self._limits)
        server.kill(child)
        done, _ = await asyncio.wait({child.exited}, timeout=_REAP_SECONDS)
        if not done:
            return Closing(EndReason.INFRASTRUCTURE, error="the sandbox server does not answer")
        closing = explain_exit(child.exited.result(), self._limits)
        if closing.error == _KILLED:  # by the kill just sent
            return Closing(EndReason.HARNESS_ERROR, error="the harness process closed its pipe and went on")
        return closing

    async def _living_server(self) -> ForkServer:
        async with self._restarting:
            if self._closed:
                raise SandboxUnavailable("the worker is closed")
            if not self._server.alive:
                if self._restarts >= _MAX_RESTARTS:
                    raise SandboxUnavailable(f"the sandbox server died {_MAX_RESTARTS + 1} times")
                self._restarts += 1
                await self._server.close()
                self._server = await ForkServer.start(self._source, self.backend, self._limits)
            return self._server


def explain_exit(ended: Exit, limits: Limits) -> Closing:
    """The end reason of a child that ended by itself, from its wait status."""
    if ended.status is None:
        return Closing(EndReason.INFRASTRUCTURE, error=ended.fault)
    if os.WIFSIGNALED(ended.status):
        number = os.WTERMSIG(ended.status)
        if number == signal.SIGXCPU or (number == signal.SIGKILL and ended.cpu_seconds >= limits.cpu_seconds):
            return Closing(EndReason.TIMEOUT, error=f"{limits.cpu_seconds} s of computing time are used up")
        if number == signal.SIGKILL:
            return Closing(EndReason.INFRASTRUCTURE, error=_KILLED)
        return Closing(EndReason.HARNESS_ERROR, error=f"the harness process was killed by {signal.strsignal(number)}")
    status = os.WEXITSTATUS(ended.status)
    return Closing(
        EndReason.HARNESS_ERROR, error=f"the harness process exited with status {status} before run returned"
    )


class _NoHost:
    """The host of a child that only loads its file: it has nothing to call."""

    async def open_chat(self, system: str | None, tools: list[dict[str, Any]]) -> int:
        raise CallRefused("no episode")

    async def append(self, chat: int, kind: str, content: str | int, handle: int | None) -> None:
        raise CallRefused("no episode")

    async def reply(self, chat: int, max_tokens: int | None) -> ReplyData:
        raise CallRefused("no episode")

    async def extend_reply(self, chat: int, text: str, max_tokens: int | None) -> ReplyData:
        raise CallRefused("no episode")

    async def env(self, name: str, args: list[Any], kwargs: dict[str, Any]) -> EnvResult:
        raise CallRefused("no episode")

    async def count_tokens(self, text: str) -> int:
        raise CallRefused("no episode")
