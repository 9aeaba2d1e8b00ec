"""The record of one proposer session: every event in a file of its own, in order, never changed.

    <archive>/sessions/001/000000.json    {"event": "start", ...}    who proposes, with which settings and instructions
                           000001.json    {"event": "call", ...}     one request, its attempts, and the reply
                           000002.json    {"event": "results", ...}  what the tools answered, and what was written
                           ...
                           000017.json    {"event": "end", ...}      how the session ended

A session that was cut goes on where its record ends: what is recorded is taken from there, and only what comes after
is done. The same machinery replays a finished session from another search's record (`script`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness_search import durable
from harness_search.canonical import json_bytes

Event = Mapping[str, Any]


class SessionRecordError(Exception):
    """A session's record is damaged, or belongs to a session with other settings; the message names the file."""


class SessionLog:
    """One session's events: a recorded head that is gone through once, then a tail that grows."""

    def __init__(self, directory: Path, script: Sequence[Event] = ()) -> None:
        """Reads what `directory` holds. `script`: another session's events, which follow once those are used up."""
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        durable.discard_temporaries(directory)
        self.events: list[Event] = read_events(directory)
        self._script = script
        self._place = 0

    def begin(self, start: Event, *, same: bool = True) -> Event:
        """The session's first event: the recorded one, or `start`, which is then written.

        Raises:
            SessionRecordError: with `same`, when the recorded one has other settings; they are named.
        """
        recorded = self.recorded("start")
        if recorded is None:
            return self.append(start)
        wanted = json.loads(json_bytes(start))
        differing = sorted(name for name in {*recorded, *wanted} if recorded.get(name) != wanted.get(name))
        if same and differing:
            raise SessionRecordError(
                f"{self.directory}: was recorded with other {', '.join(differing)}; go on with the settings it was "
                "started with, or remove the folder to begin the session anew"
            )
        return recorded

    def recorded(self, kind: str) -> Event | None:
        """The next recorded event if it is of this kind; None at the end of the record.

        Raises:
            SessionRecordError: the record goes on with something else.
        """
        if self._place == len(self.events) and self._place < len(self._script):
            self._write(self._script[self._place])
        if self._place == len(self.events):
            return None
        event = self.events[self._place]
        if event["event"] != kind:
            raise SessionRecordError(
                f"{self._path(self._place)}: holds {event['event']!r} where the session comes to {kind!r}; it was "
                "recorded with other settings or another version. Remove the folder to begin the session anew"
            )
        self._place += 1
        return event

    def peek(self) -> str | None:
        """The kind of the next recorded event; None at the end of the record."""
        events = self.events if self._place < len(self.events) else self._script
        return events[self._place]["event"] if self._place < len(events) else None

    def append(self, event: Event) -> Event:
        """Writes the next event, steps over it, and returns it as a reader of the record will see it.

        Raises:
            ValueError: the record has not been gone through yet.
        """
        if self._place != len(self.events):
            raise ValueError(f"{self.directory}: event {event['event']!r} would be written over a recorded one")
        self._write(event)
        self._place += 1
        return self.events[-1]

    def _write(self, event: Event) -> None:
        path = self._path(len(self.events))
        temporary = path.with_name(durable.TEMPORARY_PREFIX + path.name)
        data = json_bytes(event)
        durable.write_bytes(temporary, data)
        durable.publish(temporary, path)
        self.events.append(json.loads(data))

    def _path(self, number: int) -> Path:
        return self.directory / f"{number:06d}.json"


def read_events(directory: Path) -> list[Event]:
    """The recorded events of a session; none where there is no such folder.

    Raises:
        SessionRecordError: a file is missing or damaged.
    """
    events: list[Event] = []
    for number, path in enumerate(sorted(directory.glob("[0-9]*.json"))):
        if path.name != f"{number:06d}.json":
            raise SessionRecordError(f"{directory}: event {number:06d} is missing; restore it from a copy")
        try:
            event = json.loads(path.read_bytes())
            event["event"]
        except (ValueError, TypeError, KeyError) as error:
            raise SessionRecordError(f"{path}: is no session event ({error}); restore it from a copy") from None
        events.append(event)
    return events
