"""The `replay` proposer: the recorded sessions of another search, again, without a network.

What was recorded is gone through as it was the first time: the same replies, tool answers and proposals, and the same
account. So a search replayed with the same `evaluate` writes the same archive, byte for byte.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from pathlib import Path

from harness_search.proposers.base import (
    EmptySlot,
    Proposal,
    ProposerSettingsError,
    ProposerUnreachable,
    ProposerUsage,
    SessionFailed,
)
from harness_search.proposers.command import recorded_slots
from harness_search.proposers.limits import Account, Prices, SessionLimits
from harness_search.proposers.session_log import Event, SessionLog, read_events
from harness_search.proposers.tool_loop import Retries, ToolLoop
from harness_search.workspace import Workspace, total_usage


class ReplayProposer:
    """Plays the sessions recorded beneath a folder.

    The folder is a search's (`<folder>/sessions/001/…`), or a run's that holds several searches; then the search is
    found by the names of the present archive's last two folders (`cycle_000/search`).
    """

    def __init__(self, recorded: Path) -> None:
        """Raises ProposerSettingsError when nothing is recorded there."""
        self._recorded = recorded
        first = min(recorded.rglob("sessions/*/000000.json"), default=None)
        if first is None:
            raise ProposerSettingsError(f"{recorded}: no recorded proposer session in it (…/sessions/001/000000.json)")
        self.name = str(read_events(first.parent)[0]["proposer"])
        """Of the proposer that was recorded: candidates are its work."""
        self._usage: dict[int, Callable[[], ProposerUsage]] = {}

    async def propose(
        self, workspace: Workspace, *, iteration: int, slots: int, seed: int
    ) -> AsyncGenerator[Proposal | EmptySlot, None]:
        events = self._events(workspace, iteration)
        start = events[0]
        if start["slots"] != slots:
            raise ProposerUnreachable(
                f"{self._recorded}: iteration {iteration} was recorded with {start['slots']} slots, here are {slots}"
            )
        log = SessionLog(workspace.session_directory(iteration), script=events)
        session = self._tool_session if "tools" in start else self._command_session
        async for item in session(log, start, workspace, iteration):
            yield item

    def usage(self, iteration: int) -> ProposerUsage:
        return self._usage[iteration]()

    async def _tool_session(
        self, log: SessionLog, start: Event, workspace: Workspace, iteration: int
    ) -> AsyncGenerator[Proposal | EmptySlot, None]:
        prices = Prices(**start["prices"]) if start["prices"] else None
        account = Account(SessionLimits(**start["limits"]), prices, total_usage(workspace.history))
        self._usage[iteration] = lambda: account.usage
        loop = ToolLoop(transport=None, toolbox=None, log=log, account=account, start=start, retries=Retries())
        async for proposal in loop.run(start["slots"]):
            yield proposal

    async def _command_session(
        self, log: SessionLog, start: Event, workspace: Workspace, iteration: int
    ) -> AsyncGenerator[Proposal | EmptySlot, None]:
        log.begin(start)
        for item in recorded_slots(log):
            yield item
        end = log.recorded("end")
        if end is None:
            raise ProposerUnreachable(f"{log.directory}: the recorded session ends here, and there is no agent")
        usage = ProposerUsage(**end["usage"])
        self._usage[iteration] = lambda: usage
        if end["state"] == "failed":
            raise SessionFailed(end["error"])

    def _events(self, workspace: Workspace, iteration: int) -> list[Event]:
        own = workspace.archive_directory
        places = (self._recorded, self._recorded / own.parent.name / own.name)
        for place in places:
            events = read_events(place / "sessions" / f"{iteration:03d}")
            if events:
                return events
        raise ProposerUnreachable(f"{self._recorded}: no session of iteration {iteration} is recorded there")
