"""The one place where python-chess comes in.

`chess` is GPL-3.0+ and an extra: nothing outside this package imports it, and nothing inside does but through here.
"""

from whale_jax.domains.task import TaskError


class ChessMissing(TaskError):
    """python-chess is not installed; the message says how to get it."""


try:
    import chess
    import chess.svg
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "chess":
        raise
    raise ChessMissing(
        "the chess domain needs the package `chess` (GPL-3.0+), which is an extra: pip install 'whale-jax[chess]'"
    ) from error

__all__ = ["ChessMissing", "chess"]
