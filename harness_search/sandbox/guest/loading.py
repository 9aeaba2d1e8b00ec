"""How a harness file becomes a module: what it may import, which builtins it has."""

import builtins
import contextlib
import importlib
import importlib.abc
import inspect
import linecache
import sys
import types
from collections.abc import Callable, Coroutine
from typing import Any

from harness_search.contract import ALLOWED_MODULES

FILE_NAME = "harness.py"

_ALSO_LOADED = (
    *("_strptime", "collections.abc", "html.entities", "html.parser", "concurrent.futures.thread", "linecache"),
    *("encodings.ascii", "encodings.latin_1", "encodings.utf_8", "encodings.utf_16", "encodings.utf_32"),
    *("encodings.cp1252", "encodings.idna", "encodings.punycode", "encodings.unicode_escape", "tracemalloc"),
)
"""Modules the standard library imports late; nothing can be imported any more once the process is locked in."""

_POINTLESS = ("open", "input", "breakpoint", "help", "exit", "quit", "copyright", "credits", "license")
_UNLOADED = ("ctypes", "_ctypes", "subprocess", "multiprocessing", "harness_search")

Run = Callable[[Any, Any, Any], Coroutine[Any, Any, Any]]


def import_allowed() -> None:
    """Loads every module a harness may import, so that its process needs no file."""
    sys.modules["ssl"] = None  # type: ignore[assignment]  # asyncio does without; less native code in reach
    for name in sorted(ALLOWED_MODULES):
        importlib.import_module(name)
    for name in _ALSO_LOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


class Loader:
    """Holds the compiled file. Made in the fork server; `load` runs the file, in a child only."""

    def __init__(self, source: str) -> None:
        """Compiles; raises SyntaxError, ValueError, RecursionError or MemoryError where it does not."""
        self._code = compile(source, FILE_NAME, "exec", dont_inherit=True)
        self._builtins = {name: value for name, value in vars(builtins).items() if name not in _POINTLESS}
        self._builtins["__import__"] = _guarded_import
        linecache.cache[FILE_NAME] = (len(source), None, source.splitlines(keepends=True), FILE_NAME)

    def close_imports(self) -> None:
        """From here on nothing new can be imported in this process or its children."""
        for name in [name for name in sys.modules if name.partition(".")[0] in _UNLOADED]:
            del sys.modules[name]
        sys.meta_path[:] = [_Refuse()]

    def load(self) -> Run:
        """Executes the file in a module of its own and returns its `run`."""
        module = types.ModuleType("harness")
        vars(module)["__builtins__"] = self._builtins
        sys.modules["harness"] = module  # dataclasses and typing look a class's module up
        exec(self._code, vars(module))
        run = vars(module).get("run")
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
