"""One episode's process: takes its limits, then runs the harness and reports how it went."""

import asyncio
import contextlib
import io
import os
import random
import socket
import sys
import traceback
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness_search.contract import Budgets, TaskView
from harness_search.sandbox.guest import kernel
from harness_search.sandbox.guest.api import Env, Model, Reply
from harness_search.sandbox.guest.channel import Channel, frame, receive_blocking
from harness_search.sandbox.guest.loading import FILE_NAME, Loader

SETUP_FAILED = 70
"""Exit status of a child that could not lock itself in; the harness did not run."""

_MAX_ERROR_CHARS = 4000
_REHEARSALS = 10


@dataclass(frozen=True)
class Setup:
    """What the fork server made ready for every child."""

    loader: Loader
    limits: Mapping[str, int]
    seccomp: kernel.Seccomp | None


def run(fd: int, setup: Setup) -> None:
    """Runs the episode whose channel is `fd`; returns after the closing message was sent."""
    sock = socket.socket(fileno=fd)
    start = receive_blocking(sock)
    try:
        loop, channel = _lock_in(sock, setup)
    except OSError as error:
        sock.sendall(frame({"fault": f"the episode's process cannot lock itself in: {error}"}))
        raise
    channel.send_blocking({"ready": True})
    random.seed(start["seed"])
    try:
        if start["task"] is None:
            setup.loader.load()
            closing: dict[str, Any] = {"done": None}
        else:
            closing = loop.run_until_complete(_episode(setup.loader, start, channel))
    except BaseException as error:  # the harness may raise anything, SystemExit included: all of it is its own failure
        closing = {"failed": _describe(error)}
    channel.send_blocking(closing)


def _lock_in(sock: socket.socket, setup: Setup) -> tuple[asyncio.AbstractEventLoop, Channel]:
    os.setsid()
    kernel.die_with_parent()
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    channel = Channel(sock, loop)
    for standard in (0, 1, 2):
        os.close(standard)
    sys.stdin, sys.stdout, sys.stderr = io.StringIO(), _Nowhere(), _Nowhere()
    kernel.limit(setup.limits)
    if setup.seccomp is not None:
        setup.seccomp.install()
    return loop, channel


async def _episode(loader: Loader, start: dict[str, Any], channel: Channel) -> dict[str, Any]:
    task = TaskView(start["task"]["id"], types.MappingProxyType(start["task"]["inputs"]))
    model = Model(channel, Budgets(**start["budgets"]))
    returned = await loader.load()(task, model, Env(channel))
    if isinstance(returned, Reply):
        return {"done": returned._id}
    return {"done": None, "returned": type(returned).__name__}


def rehearse() -> None:
    """Goes through an episode's motions in the fork server, without a harness.

    The interpreter adapts its code in place while it warms up. Done here once, a child need not copy those pages: it
    saves about a third of its computing time.
    """
    for _ in range(_REHEARSALS):
        ours, theirs = socket.socketpair()
        with ours, theirs, contextlib.closing(asyncio.new_event_loop()) as loop:
            _rehearse_once(ours, theirs, loop)


def _rehearse_once(ours: socket.socket, theirs: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
    reply = {"id": 0, "text": "", "thinking": "", "raw": "", "tool_calls": [], "finish": "stop"}
    answers = enumerate((reply, {"text": "", "handle": 0}, reply, 0))

    def answer() -> None:
        ours.recv(1 << 16)
        number, ok = next(answers)
        ours.sendall(frame({"id": number, "ok": ok}))

    async def motions(channel: Channel) -> None:
        model, env = Model(channel, Budgets(1, 1, 1, 1.0)), Env(channel)
        chat = model.chat(system="", tools=[{}])
        chat.user("")
        await chat.reply()
        chat.tool(await env.search([""], topk=1))
        await chat.reply(max_tokens=1)
        await model.count_tokens("")

    loop.add_reader(ours.fileno(), answer)
    loop.run_until_complete(motions(Channel(theirs, loop)))
    for side in (ours, theirs):
        loop.remove_reader(side.fileno())


class _Nowhere(io.TextIOBase):
    """Takes what is printed and forgets it."""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        return len(text)


def _describe(error: BaseException) -> str:
    """The traceback's frames inside the harness, and the error; bounded."""
    with contextlib.suppress(Exception):  # a hostile exception class may break while it is described
        frames = [entry for entry in traceback.extract_tb(error.__traceback__) if entry.filename == FILE_NAME]
        shown = frames if len(frames) <= 8 else [*frames[:4], *frames[-4:]]
        text = "".join(traceback.format_list(shown)) + "".join(traceback.format_exception_only(error))
        text = text.encode("utf-8", "backslashreplace").decode()
        return text if len(text) <= _MAX_ERROR_CHARS else text[-_MAX_ERROR_CHARS:]
    return f"{type(error).__name__} (which cannot be described)"
