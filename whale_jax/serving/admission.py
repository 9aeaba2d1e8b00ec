"""The start of a request in a slot, where a failure is that request's alone."""

from __future__ import annotations

import logging

from whale_jax.serving.driver import ServingError
from whale_jax.serving.slots import Request, SlotTable

_log = logging.getLogger(__name__)


def attach(table: SlotTable, request: Request, slot: int) -> None:
    """`table.attach`; if it raises, the request is answered with a `ServingError` and its session is closed.

    An engine that is broken, and not just unable to start this one, fails at the next step, for everybody.
    """
    try:
        table.attach(request, slot)
    except Exception as error:
        _log.exception("a request could not be started in slot %d", slot)
        request.cancelled = True  # it leaves the slot before the next step, if it got that far
        request.session.busy, request.session.closed = False, True
        request.deliver(ServingError(f"the request could not be started: {type(error).__name__}: {error}"))
