"""google-jetstream 0.2.2, imported so that nothing of it shows outside.

Every rough edge of the package is dealt with here and in the three modules that use it (`jetstream`: its engine
interface; `jetstream_driver`: rollouts on its orchestrator; `jetstream_server`: its gRPC server). Here:

- it imports seqio (and with it TensorFlow), tiktoken and shortuuid for parts that are never used: where they are not
  installed, empty stand-ins are there during its import and gone after it;
- importing it sets the root logger to DEBUG and adds a handler, and its calls of `logging.info` would configure the
  root logger again: both are undone, and it logs to the logger "jetstream";
- `delete_pytree` calls `jax.tree_map`, which JAX no longer has: replaced;
- its thread class kills the whole process on any exception, and one thread kind is not a daemon: replaced.

The package also installs a top-level package `benchmarks`; nothing here or in it imports that, and the folder that a
program runs from comes before it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import jax

log = logging.getLogger("jetstream")


def _stand_ins() -> dict[str, types.ModuleType]:
    """Modules that the package imports and nothing here uses, with the names it needs at import time."""

    def module(name: str, **names: Any) -> types.ModuleType:
        result = types.ModuleType(name)
        vars(result).update(names)
        return result

    def refuse(*args: object, **kwargs: object) -> None:
        raise NotImplementedError("this part of google-jetstream needs a package that is not installed")

    empty = type("StandIn", (), {})
    vocabularies = module("seqio.vocabularies", SentencePieceVocabulary=empty, Vocabulary=empty)
    load = module("tiktoken.load", load_tiktoken_bpe=refuse)
    return {
        "seqio": module("seqio", vocabularies=vocabularies),
        "seqio.vocabularies": vocabularies,
        "tiktoken": module("tiktoken", load=load),
        "tiktoken.load": load,
        "shortuuid": module("shortuuid", uuid=lambda: "local"),
    }


@contextlib.contextmanager
def _contained_import() -> Iterator[None]:
    """Puts stand-ins for missing packages in place, and the root logger and `sys.modules` back afterwards."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    missing = {name for name in ("seqio", "tiktoken", "shortuuid") if importlib.util.find_spec(name) is None}
    placed = {name: module for name, module in _stand_ins().items() if name.partition(".")[0] in missing}
    sys.modules.update(placed)
    try:
        yield
    finally:
        for name in placed:
            sys.modules.pop(name, None)
        root.setLevel(level)
        root.handlers[:] = handlers


with _contained_import():
    from jetstream.core import orchestrator, server_lib
    from jetstream.core.proto import jetstream_pb2, jetstream_pb2_grpc
    from jetstream.core.utils import async_multifuture
    from jetstream.engine import engine_api, token_utils, tokenizer_api, tokenizer_pb2

messages: Any = jetstream_pb2
"""The messages of its service; protobuf makes the classes at run time."""

TokenizerParameters: Any = vars(tokenizer_pb2)["TokenizerParameters"]

__all__ = [
    "TokenizerParameters",
    "async_multifuture",
    "engine_api",
    "jetstream_pb2_grpc",
    "log",
    "messages",
    "orchestrator",
    "server_lib",
    "token_utils",
    "tokenizer_api",
]


class Owner(Protocol):
    """Who started a thread of the package."""

    def thread_failed(self, name: str, error: Exception) -> None:
        """A thread ended by an exception."""
        ...


class _Thread(threading.Thread):
    """A thread of the package's driver whose exception is its owner's to deal with, and does not end the process."""

    def __init__(self, *, target: Callable[[], None], name: str, daemon: bool = True) -> None:
        super().__init__(target=target, name=f"jetstream-{name}", daemon=True)
        self._owner: Owner = target.func.__self__  # type: ignore[attr-defined]  # a partial of a method

    def run(self) -> None:
        try:
            super().run()
        except Exception as error:
            self._owner.thread_failed(self.name, error)


def _delete_pytree(tree: Any) -> None:
    """Frees the arrays of a prefill result."""
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, jax.Array):
            leaf.delete()


orchestrator.delete_pytree = _delete_pytree
orchestrator.JetThread = _Thread
for _module in (orchestrator, server_lib, token_utils):
    vars(_module)["logging"] = log
