"""The `command` proposer: any coding agent's command line, at work on the workspace.

The agent stands in a folder of its own:

    WORKSPACE.md  DOMAIN.md     the manual and the domain's guide
    workspace/                  what WORKSPACE.md describes, read-only
    slots/0/ slots/1/ …         where it writes (see `slots`); nothing else of what it writes is kept

It gets its task on standard input, and in its arguments wherever they hold `{prompt}`. It is locked in
(`sandbox.agents`) with a proxy as its only network, and is killed with everything it started when its time is over.
Its output is kept to a bound, and its cost is read where the settings say.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness_search.proposers.base import (
    EmptySlot,
    Proposal,
    ProposerBudgetSpent,
    ProposerSettingsError,
    ProposerUnreachable,
    ProposerUsage,
    SessionFailed,
)
from harness_search.proposers.command_watch import Watch, read_cost
from harness_search.proposers.redact import Redactor
from harness_search.proposers.session_log import Event, SessionLog
from harness_search.proposers.slots import SlotError, SlotOpen, read_slot
from harness_search.sandbox.agents import AgentView, own_user, start_agent
from harness_search.sandbox.backends import Backend, BackendName
from harness_search.sandbox.egress import Egress
from harness_search.workspace import Workspace, total_usage

PLACE = "/agent"
_COST_GROUPS = ("dollars", "input_tokens", "output_tokens")
_MAX_NAMED = 20


@dataclass(frozen=True)
class CommandSettings:
    """How the agent is run.

    Attributes:
        argv: its command line; `{prompt}` in an argument stands for the task's text.
        seconds: wall time of one session.
        output_bytes: of each of its two output streams, the last ones of which are kept.
        environment: names of the variables that it gets, keys among them; their values are kept out of every record.
        readable: files and folders of this machine that it sees beside the system's, at their own paths (its
            installation, its settings).
        network: give it the proxy.
        allow_hosts: hosts that it may reach though their addresses are not public.
        cost_from: where its cost stands: "stdout", "stderr", or a file's name in `slots/`.
        cost_pattern: a regular expression with groups named `dollars`, `input_tokens` or `output_tokens`; of several
            matches the last counts. None: the cost is not known.
        look_seconds: between two looks at the slots.
        search_dollars: no session begins once the search's sessions have cost this much; None: no limit.
    """

    argv: tuple[str, ...]
    seconds: float = 3600.0
    output_bytes: int = 256 * 1024
    environment: tuple[str, ...] = ()
    readable: tuple[str, ...] = ()
    network: bool = True
    allow_hosts: tuple[str, ...] = ()
    cost_from: str = "stdout"
    cost_pattern: str | None = None
    look_seconds: float = 1.0
    search_dollars: float | None = None

    def __post_init__(self) -> None:
        if not self.argv:
            raise ProposerSettingsError("the command proposer needs a command line")
        if "/" in self.cost_from or self.cost_from in ("", ".", ".."):
            raise ProposerSettingsError(f"the cost's place must be stdout, stderr or a file name: {self.cost_from!r}")
        try:
            found = set(re.compile(self.cost_pattern or "").groupindex)
        except re.error as error:
            raise ProposerSettingsError(f"the cost pattern is no regular expression: {error}") from None
        if self.cost_pattern is not None and not found.intersection(_COST_GROUPS):
            raise ProposerSettingsError(f"the cost pattern needs a group named {', '.join(_COST_GROUPS)}")
        if self.search_dollars is not None and "dollars" not in found:
            raise ProposerSettingsError("a limit in dollars needs a cost pattern with a group named dollars")


UNKNOWN = ProposerUsage(calls=1, dollars=None, calls_without_usage=1)
"""The usage of a run that did not say."""


class CommandProposer:
    """One run of the command per iteration."""

    name = "command"

    def __init__(self, settings: CommandSettings, *, manual: str, skill: str, backend: Backend) -> None:
        """Raises ProposerSettingsError when the program, a variable or a path is missing here."""
        self._settings, self._backend = settings, backend
        self._pages = {"WORKSPACE.md": manual, "DOMAIN.md": skill}
        self._usage: dict[int, ProposerUsage] = {}
        missing = [f"the environment variable {name}" for name in settings.environment if name not in os.environ]
        missing += [path for path in settings.readable if not Path(path).exists()]
        if shutil.which(settings.argv[0]) is None:
            missing.append(f"the program {settings.argv[0]}")
        if missing:
            raise ProposerSettingsError(f"the command proposer needs {', '.join(missing)}, which is not here")
        if backend.name is BackendName.LANDLOCK:
            raise ProposerSettingsError(
                "the command proposer needs bubblewrap to lock the agent in; install it, or pass --sandbox=none to run "
                "the agent unprotected"
            )

    async def propose(
        self, workspace: Workspace, *, iteration: int, slots: int, seed: int
    ) -> AsyncGenerator[Proposal | EmptySlot, None]:
        settings = self._settings
        self._usage[iteration] = ProposerUsage()
        spent = total_usage(workspace.history).get("dollars") or 0.0
        if settings.search_dollars is not None and spent >= settings.search_dollars:
            raise ProposerBudgetSpent(f"the search's limit of {settings.search_dollars} dollars is reached")
        redact = Redactor.of_environment(settings.environment)
        log = SessionLog(workspace.session_directory(iteration))
        start = {
            "event": "start",
            "proposer": self.name,
            "argv": [redact(one) for one in settings.argv],
            "slots": slots,
        }
        log.begin(start)
        taken = 0
        for item in recorded_slots(log):
            taken += 1
            yield item
        end = log.recorded("end")
        if end is None and taken == slots:
            # The run was cut between the agent's last slot and its end: what it cost will never be known.
            end = log.append(_end(None, UNKNOWN))
        if end is None:
            async with contextlib.aclosing(self._run(workspace, iteration, taken, slots, redact)) as events:
                async for event in events:
                    end = log.append(event)
                    for item in _items(end):
                        yield item
        assert end is not None
        self._usage[iteration] = ProposerUsage(**end["usage"])
        if end["state"] == "failed":
            raise SessionFailed(end["error"])

    def usage(self, iteration: int) -> ProposerUsage:
        return self._usage[iteration]

    async def _run(
        self, workspace: Workspace, iteration: int, first: int, slots: int, redact: Redactor
    ) -> AsyncGenerator[Event, None]:
        """Runs the command; yields an event per slot in order, then its output and its end."""
        settings, uid = self._settings, own_user()
        unprotected = self._backend.name is BackendName.NONE
        before = workspace.fingerprint() if unprotected else {}
        async with contextlib.AsyncExitStack() as stack:
            stage = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agent-", ignore_cleanup_errors=True)))
            view = self._stage(stage, workspace, slots, uid)
            egress: Path | None = None
            if settings.network and not unprotected:
                egress = stage / "egress"
                egress.mkdir()
                proxy = await Egress.start(egress / "socket", settings.allow_hosts)
                stack.push_async_callback(proxy.close)
            text = task_text(iteration, first, slots)
            process = await start_agent(
                [one.replace("{prompt}", text) for one in settings.argv],
                {name: os.environ[name] for name in settings.environment},
                view,
                self._backend,
                uid=uid,
                egress=egress,
                stdin=text.encode(),
            )
            watch = Watch(process, stage / "slots", settings, redact)
            slot = first
            async with contextlib.aclosing(watch.looks()) as looks:
                async for final in looks:
                    while slot < slots and (event := self._slot(stage / "slots", slot, workspace, redact, final)):
                        slot += 1
                        watch.all_filled = slot == slots
                        yield event
            usage = read_cost(settings, watch.stdout, watch.stderr, stage / "slots")
        after = workspace.fingerprint() if unprotected else {}
        changed = sorted(path for path in {*before, *after} if before.get(path) != after.get(path))
        if changed:
            workspace.discard()
        if watch.not_started:
            raise ProposerUnreachable(f"the proposer's command cannot be run: {watch.stderr.strip()[:500]}")
        output = {"stdout": watch.stdout, "stderr": watch.stderr, "status": watch.status}
        yield _end(watch.problem, usage, **output, discarded=changed[:_MAX_NAMED])

    def _stage(self, stage: Path, workspace: Workspace, slots: int, uid: int | None) -> AgentView:
        (stage / "slots").mkdir()
        for folder in (stage / "slots", *(stage / "slots" / str(slot) for slot in range(slots))):
            folder.mkdir(exist_ok=True)
            if uid is not None:
                os.chown(folder, uid, uid)
        for name, text in self._pages.items():
            (stage / name).write_text(text, "utf-8")
        if self._backend.name is BackendName.NONE:
            (stage / "workspace").symlink_to(workspace.directory.resolve())
            return AgentView({}, {}, str(stage))
        shown = {f"{PLACE}/{name}": stage / name for name in self._pages}
        shown[f"{PLACE}/workspace"] = workspace.directory.resolve()
        shown |= {path: Path(path) for path in self._settings.readable}
        return AgentView(shown, {f"{PLACE}/slots": stage / "slots"}, PLACE)

    @staticmethod
    def _slot(slots: Path, slot: int, workspace: Workspace, redact: Redactor, final: bool) -> Event | None:
        try:
            return {"event": "candidate"} | read_slot(
                slots, slot, incumbent=workspace.incumbent, redact=redact, final=final
            )
        except SlotOpen:
            return None
        except SlotError as error:
            return {"event": "empty", "slot": slot, "reason": str(error)}


def task_text(iteration: int, first: int, slots: int) -> str:
    """What the agent is asked to do."""
    folders = ", ".join(f"slots/{slot}" for slot in range(first, slots))
    return (
        "Improve the harness of this search. Read WORKSPACE.md and DOMAIN.md first; the paths in them are those of the "
        "folder workspace/, which is the state of the search and cannot be written. "
        f"This is iteration {iteration}. Write one candidate into each of {folders}: first the whole harness as "
        'harness.py, then, last, proposal.json with {"parent": id of the candidate that it was copied from, '
        '"hypothesis": one falsifiable sentence, "axis": what the change works on}. A slot is taken as soon as its '
        "proposal.json is there. Nothing else that you write is kept.\n"
    )


def recorded_slots(log: SessionLog) -> Iterator[Proposal | EmptySlot]:
    """The slots that a session's record holds at this place."""
    while (kind := log.peek()) in ("candidate", "empty"):
        yield from _items(log.recorded(kind) or {})


def _items(event: Event) -> list[Proposal | EmptySlot]:
    fields = {name: value for name, value in event.items() if name != "event"}
    match event.get("event"):
        case "candidate":
            return [Proposal(**fields)]
        case "empty":
            return [EmptySlot(**fields)]
    return []


def _end(problem: str | None, usage: ProposerUsage, **more: Any) -> dict[str, Any]:
    state = "completed" if problem is None else "failed"
    return {"event": "end", "state": state, "error": problem, "usage": usage.to_json(), **more}
