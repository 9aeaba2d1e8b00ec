"""Domains by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from whale_jax.domains.domain import Domain
from whale_jax.domains.math import domain as math
from whale_jax.domains.searchqa import domain as searchqa


def _chess(**options: Any) -> Domain:
    from whale_jax.domains.chess import domain as chess  # needs an extra that the other domains do without

    return chess.load(**options)


_LOADERS: dict[str, Callable[..., Domain]] = {"chess": _chess, "math": math.load, "searchqa": searchqa.load}
_RUN_CODE = frozenset({"math"})
"""Domains whose tools run code of the model, and so need a sandbox of their own."""

DOMAIN_NAMES = tuple(sorted(_LOADERS))


def load_domain(name: str, *, sandbox: str = "auto", **options: Any) -> Domain:
    """The domain called `name`.

    Args:
        name: one of `DOMAIN_NAMES`.
        sandbox: backend of the processes that run the model's code, in domains that have such a tool.
        **options: passed to the domain's loader: `task_dir` (folder with the task files; None means the embedded demo
            tasks), `max_bad_rows`, `allow_overlap`, `count_tokens`.

    Raises:
        ValueError: there is no such domain.
        TaskError: its data cannot be used, or a package that it needs is not installed.
    """
    if name not in _LOADERS:
        raise ValueError(f"unknown domain {name!r}; known: {', '.join(DOMAIN_NAMES)}")
    if name in _RUN_CODE:
        options["sandbox"] = sandbox
    return _LOADERS[name](**options)
