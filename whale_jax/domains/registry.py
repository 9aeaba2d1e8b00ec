"""Domains by name. `package.module:function` names a loader outside this package (docs/domains.md)."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any, cast

from whale_jax.domains.domain import Domain
from whale_jax.domains.math import domain as math
from whale_jax.domains.searchqa import domain as searchqa
from whale_jax.domains.task import TaskError

Loader = Callable[..., Domain]


def _chess(**options: Any) -> Domain:
    from whale_jax.domains.chess import domain as chess  # needs an extra that the other domains do without

    return chess.load(**options)


_LOADERS: dict[str, Loader] = {"chess": _chess, "math": math.load, "searchqa": searchqa.load}

DOMAIN_NAMES = tuple(sorted(_LOADERS))


def load_domain(name: str, *, sandbox: str = "auto", **options: Any) -> Domain:
    """The domain called `name`.

    Args:
        name: one of `DOMAIN_NAMES`, or `package.module:function`, a loader that is imported.
        sandbox: backend of the processes that run the model's code; passed to loaders that take it, those of domains
            with such a tool.
        **options: passed to the loader: `task_dir` (folder with the task files; None means the embedded demo tasks),
            `max_bad_rows`, `allow_overlap`, `count_tokens`, and what the domain takes beside them.

    Raises:
        ValueError: there is no such domain.
        TaskError: its data cannot be used, a package that it needs is not installed, or the loader cannot be imported
            or does not take these options.
    """
    loader = _LOADERS.get(name) or _imported(name)
    signature = inspect.signature(loader)
    if "sandbox" in signature.parameters:
        options["sandbox"] = sandbox
    try:
        signature.bind(**options)
    except TypeError as error:
        raise TaskError(f"--domain={name}: the loader must take the options {', '.join(options)}: {error}") from error
    return loader(**options)


def _imported(name: str) -> Loader:
    module_name, colon, function = name.partition(":")
    if not colon:
        raise ValueError(f"unknown domain {name!r}; known: {', '.join(DOMAIN_NAMES)}, or package.module:function")
    try:
        loader = getattr(importlib.import_module(module_name), function)
    except (ImportError, ValueError, TypeError) as error:
        hint = "its folder must be the working directory or stand on PYTHONPATH"
        raise TaskError(f"--domain={name}: {module_name!r} cannot be imported ({error}); {hint}") from error
    except AttributeError as error:
        raise TaskError(f"--domain={name}: {module_name} has no function {function!r}") from error
    if not callable(loader):
        raise TaskError(f"--domain={name}: {function!r} is no function but {type(loader).__name__}")
    return cast(Loader, loader)
