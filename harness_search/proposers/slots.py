"""What an agent wrote into its slot folders, read as from a stranger: no link is followed, nothing large is read.

slots/0/harness.py       the candidate
        proposal.json    {"parent": "000", "hypothesis": "…", "axis": "…"}, written last: it closes the slot
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness_search.contract import MAX_SOURCE_BYTES
from harness_search.proposers.redact import Redactor

MAX_PROPOSAL_BYTES = 64 * 1024
MAX_NOTE_CHARS = 2_000


class SlotError(Exception):
    """A slot does not hold a candidate; the message says why."""


class SlotOpen(Exception):
    """The slot is not closed yet."""


def read_slot(slots: Path, slot: int, *, incumbent: str, redact: Redactor, final: bool) -> dict[str, Any]:
    """The candidate in a slot: slot, source, parent, hypothesis, axis.

    Args:
        incumbent: the parent of a candidate whose proposal.json is missing at the end.
        redact: a candidate that holds one of its secrets is refused.
        final: the agent has ended: what is there counts as it is.

    Raises:
        SlotOpen: not closed yet; never when `final`.
        SlotError: closed, and no candidate.
    """
    folder_fd = _open_folder(slots, slot, final)
    try:
        notes = _proposal(folder_fd, final)
        source = _read(folder_fd, "harness.py", MAX_SOURCE_BYTES)
    finally:
        os.close(folder_fd)
    if source is None:
        raise SlotError("nothing was written into it" if notes is None else "holds a proposal.json and no harness.py")
    try:
        text = source.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SlotError(f"harness.py is not UTF-8: {error}") from None
    notes = notes or {}
    fields = {name: notes.get(name, "") for name in ("parent", "hypothesis", "axis")}
    if not all(isinstance(value, str) for value in fields.values()):
        raise SlotError("proposal.json must hold texts for parent, hypothesis and axis")
    if redact.found_in(text) or any(redact.found_in(value) for value in fields.values()):
        raise SlotError("holds a secret of the environment; it was discarded")
    cut = {name: value[:MAX_NOTE_CHARS] for name, value in fields.items()}
    return {"slot": slot, "source": text, **cut, "parent": cut["parent"] or incumbent}


def _open_folder(slots: Path, slot: int, final: bool) -> int:
    try:
        slots_fd = os.open(slots, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        raise SlotError("the folder of the slots is gone") from None
    try:
        return os.open(str(slot), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=slots_fd)
    except OSError:
        if final:
            raise SlotError("its folder was removed or replaced") from None
        raise SlotOpen from None
    finally:
        os.close(slots_fd)


def _proposal(folder_fd: int, final: bool) -> Mapping[str, Any] | None:
    """What proposal.json holds; None when there is none and the agent has ended."""
    try:
        data = _read(folder_fd, "proposal.json", MAX_PROPOSAL_BYTES)
        if data is not None:
            value = json.loads(data)
            if isinstance(value, dict):
                return value
            raise SlotError("proposal.json is no JSON object")
    except (ValueError, RecursionError) as error:
        if final:
            raise SlotError(f"proposal.json cannot be read: {error}") from None
        raise SlotOpen from None  # it may be half written
    if final:
        return None
    raise SlotOpen


def _read(folder_fd: int, name: str, limit: int) -> bytes | None:
    """A plain file's bytes; None where there is none."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder_fd)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SlotError(f"{name} is no plain file: {error.strerror}") from None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            raise SlotError(f"{name} is no plain file of its own")
        with open(fd, "rb", closefd=False) as file:
            data = file.read(limit + 1)
    finally:
        os.close(fd)
    if len(data) > limit:
        raise SlotError(f"{name} is larger than {limit} bytes")
    return data
