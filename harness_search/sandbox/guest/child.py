"""One episode's process: takes its limits, then runs the harness and reports how it went."""

import asyncio
import builtins
import contextlib
import importlib.abc
import inspect
import io
import linecache
import os
import random
import socket
import sys
import traceback
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness_search.contract import ALLOWED_MODULES, Budgets, TaskView
from harness_search.sandbox.guest import kernel
from harness_search.sandbox.guest.api import Env, Model, Reply
from harness_search.sandbox.guest.channel import Channel, frame, receive_blocking

SETUP_FAILED = 70
"""Exit status of a child that could not lock itself in; the harness did not run."""

_MAX_ERROR_CHARS = 4000
_POINTLESS = ("open", "input", "breakpoint", "help", "exit", "quit", "copyright", "credits", "license")
_UNLOADED = ("ctypes", "_ctypes", "subprocess", "multiprocessing", "harness_search")


@dataclass(frozen=True)
class Setup:
    """What the fork server made ready for every child."""

    code: types.CodeType
    source: str
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
            _load(setup.code)
            closing: dict[str, Any] = {"done": None}
        else:
            closing = loop.run_until_complete(_episode(setup.code, start, channel))
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
    linecache.cache["harness.py"] = (len(setup.source), None, setup.source.splitlines(keepends=True), "harness.py")
    kernel.limit(setup.limits)
    if setup.seccomp is not None:
        setup.seccomp.install()
    return loop, channel


async def _episode(code: types.CodeType, start: dict[str, Any], channel: Channel) -> dict[str, Any]:
    task = TaskView(start["task"]["id"], types.MappingProxyType(start["task"]["inputs"]))
    model = Model(channel, Budgets(**start["budgets"]))
    returned = await _load(code)(task, model, Env(channel))
    if isinstance(returned, Reply):
        return {"done": returned._id}
    return {"done": None, "returned": type(returned).__name__}


def _load(code: types.CodeType) -> Any:
    """Executes the file in a module of its own and returns its `run`."""
    module = types.ModuleType("harness")
    allowed = {name: value for name, value in vars(builtins).items() if name not in _POINTLESS}
    allowed["__import__"] = _guarded_import
    module.__dict__["__builtins__"] = allowed
    for name in [name for name in sys.modules if name.partition(".")[0] in _UNLOADED]:
        del sys.modules[name]
    sys.modules["harness"] = module  # dataclasses and typing look a class's module up
    sys.meta_path[:] = [_Refuse()]
    exec(code, module.__dict__)
    run = module.__dict__.get("run")
    if not inspect.iscoroutinefunction(run):
        raise TypeError("`run` must be a coroutine function (async def, without yield)")
    return run


def _guarded_import(
    name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
) -> types.ModuleType:
    if level or name.partition(".")[0] not in ALLOWED_MODULES:
        raise ImportError(f"module {name!r} may not be imported by a harness (WORKSPACE.md lists those that may)")
    return __import__(name, globals, locals, fromlist, level)


class _Refuse(importlib.abc.MetaPathFinder):
    """Ends the search for a module that is not loaded yet."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        raise ModuleNotFoundError(f"module {fullname!r} is not available to a harness", name=fullname)


class _Nowhere(io.TextIOBase):
    """Takes what is printed and forgets it."""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        return len(text)


def _describe(error: BaseException) -> str:
    """The traceback's frames inside the harness, and the error; bounded."""
    with contextlib.suppress(Exception):  # a hostile exception class may break while it is described
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "harness.py"]
        shown = frames if len(frames) <= 8 else [*frames[:4], *frames[-4:]]
        text = "".join(traceback.format_list(shown)) + "".join(traceback.format_exception_only(error))
        text = text.encode("utf-8", "backslashreplace").decode()
        return text if len(text) <= _MAX_ERROR_CHARS else text[-_MAX_ERROR_CHARS:]
    return f"{type(error).__name__} (which cannot be described)"
