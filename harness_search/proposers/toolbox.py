"""The tools of a hosted proposer: reading the workspace, computing over it, and writing candidates.

Every tool takes and returns plain JSON values. A call that makes no sense is answered with an error text, never raised:
it is the model's mistake, and the model can mend it.
"""

from __future__ import annotations

import asyncio
import difflib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness_search.canonical import fingerprint
from harness_search.compare import broke_fixed
from harness_search.contract import MAX_SOURCE_BYTES
from harness_search.proposers.base import Proposal
from harness_search.sandbox.backends import Backend
from harness_search.sandbox.scripts import ScriptLimits, run_script
from harness_search.workspace import Workspace

Check = Callable[[str, Mapping[str, str]], Awaitable[Sequence[str]]]
"""As `search.Validate`: (source, fingerprint -> id) -> errors."""

EXCERPT = 160
"""Characters on each side of a search hit."""
MAX_HITS = 40
MAX_ENTRIES = 300
MAX_SEARCHED_BYTES = 256 * 1024 * 1024
MAX_NOTE_CHARS = 2_000


class ToolError(Exception):
    """A call that cannot be carried out; the text goes to the model."""


@dataclass(frozen=True)
class Tool:
    """One tool as the model is shown it. `parameters`: name to (JSON type, description, default; None: required)."""

    name: str
    description: str
    parameters: Mapping[str, tuple[str, str, Any]]

    def declaration(self) -> dict[str, Any]:
        properties = {name: {"type": kind, "description": text} for name, (kind, text, _) in self.parameters.items()}
        required = [name for name, (_, _, default) in self.parameters.items() if default is None]
        schema = {"type": "object", "properties": properties, "required": required}
        return {"name": self.name, "description": self.description, "parametersJsonSchema": schema}

    def arguments(self, given: Any) -> dict[str, Any]:
        """The call's arguments, checked and completed. Raises ToolError naming every problem."""
        if not isinstance(given, Mapping):
            raise ToolError(f"{self.name} takes an object of arguments, got {type(given).__name__}")
        problems = [f"has no parameter {name!r}" for name in given if name not in self.parameters]
        values: dict[str, Any] = {}
        for name, (kind, _, default) in self.parameters.items():
            value = given.get(name, default)
            if isinstance(value, float) and kind == "integer" and value.is_integer():
                value = int(value)  # a protocol without integers sends 10.0
            if value is None:
                problems.append(f"needs {name!r}")
            elif type(value) is not _TYPES[kind]:
                problems.append(f"takes {kind} for {name!r}, got {type(value).__name__}")
            values[name] = value
        if problems:
            raise ToolError(f"{self.name} {'; '.join(problems)}")
        return values


_TYPES: Mapping[str, type] = {"string": str, "integer": int}
_PATH = ("string", "path relative to the workspace", ".")

TOOLS = (
    Tool(
        "list_files",
        "Lists a folder of the workspace: names, sizes of files. Long listings are paged by `offset`.",
        {"path": _PATH, "offset": ("integer", "entries to skip", 0)},
    ),
    Tool(
        "read_file",
        "Reads a text file from character `offset` on. A long file comes in pages; `next_offset` starts the next one.",
        {"path": ("string", "path relative to the workspace", None), "offset": ("integer", "first character", 0)},
    ),
    Tool(
        "search_text",
        "Finds a literal text (case ignored) in the files beneath `path`; gives excerpts with path and offset.",
        {"text": ("string", "what to look for", None), "path": _PATH, "offset": ("integer", "hits to skip", 0)},
    ),
    Tool(
        "run_python",
        "Runs a Python script whose working directory is the workspace, read-only: for statistics over many traces. "
        "Standard library only; no network, no other process; what it prints comes back, cut to a bound.",
        {"code": ("string", "the script", None)},
    ),
    Tool(
        "diff_candidates",
        "Compares two candidates: the diff of their sources, and the episodes that the second broke and fixed.",
        {"before": ("string", "id of a candidate", None), "after": ("string", "id of another", None)},
    ),
    Tool(
        "check_candidate",
        "Validates a harness without spending a slot: the checks a written candidate has to pass, without any score.",
        {"source": ("string", "the whole harness file", None)},
    ),
    Tool(
        "write_candidate",
        "Writes a harness into the next free slot, for good. It is evaluated as it is; if it is invalid the slot is "
        "spent, so check it first.",
        {
            "source": ("string", "the whole harness file", None),
            "parent": ("string", "id of the archived candidate that it was copied from", None),
            "hypothesis": ("string", "one falsifiable sentence", None),
            "axis": ("string", "what the change works on", None),
        },
    ),
    Tool("finish", "Ends the session.", {"summary": ("string", "what was done, in one paragraph", "")}),
)


class Toolbox:
    """The tools of one session, with what it has written so far."""

    def __init__(
        self,
        workspace: Workspace,
        *,
        slots: int,
        backend: Backend,
        check: Check,
        result_chars: int,
        script_limits: ScriptLimits | None = None,
    ) -> None:
        self._workspace = workspace
        self._root = workspace.directory.resolve()
        self._slots = slots
        self._backend = backend
        self._check = check
        self._result_chars = result_chars
        self._script_limits = script_limits or ScriptLimits(output_bytes=result_chars)
        self._by_name = {tool.name: tool for tool in TOOLS}
        self.written: list[Proposal] = []
        self.finished = False

    def restore(self, written: Sequence[Proposal]) -> None:
        """Takes over what a recorded part of the session has written, unless it is here already."""
        self.written += [one for one in written if one.slot == len(self.written)]

    async def call(self, name: Any, arguments: Any) -> dict[str, Any]:
        """Carries a call out and returns its answer, or {"error": text}.

        Raises:
            SandboxUnavailable: the sandbox failed; nothing can be said about the call.
        """
        try:
            tool = self._by_name.get(name) if isinstance(name, str) else None
            if tool is None:
                raise ToolError(f"there is no tool {str(name)[:100]!r}; the tools are {', '.join(self._by_name)}")
            values = tool.arguments(arguments or {})
            return await getattr(self, f"_{tool.name}")(**values)
        except ToolError as error:
            return {"error": str(error)[: self._result_chars]}

    async def _list_files(self, path: str, offset: int) -> dict[str, Any]:
        folder = self._path(path)
        if not folder.is_dir():
            raise ToolError(f"{path} is a file; read it with read_file")
        entries = [
            f"{one.name}/" if one.is_dir() else f"{one.name} ({one.stat().st_size} bytes)" for one in _visible(folder)
        ]
        page = entries[max(0, offset) : max(0, offset) + MAX_ENTRIES]
        answer: dict[str, Any] = {"entries": page, "total": len(entries)}
        if max(0, offset) + len(page) < len(entries):
            answer["next_offset"] = max(0, offset) + len(page)
        return answer

    async def _read_file(self, path: str, offset: int) -> dict[str, Any]:
        file = self._path(path)
        if not file.is_file():
            raise ToolError(f"{path} is a folder; list it with list_files")
        text = file.read_text("utf-8", "replace")
        start = max(0, offset)
        page = text[start : start + self._result_chars]
        answer: dict[str, Any] = {"text": page, "total_chars": len(text)}
        if start + len(page) < len(text):
            answer["next_offset"] = start + len(page)
        return answer

    async def _search_text(self, text: str, path: str, offset: int) -> dict[str, Any]:
        if not text.strip():
            raise ToolError("search_text needs a text that is not blank")
        return await asyncio.to_thread(self._search, text, self._path(path), max(0, offset))

    def _search(self, text: str, top: Path, offset: int) -> dict[str, Any]:
        files = [top] if top.is_file() else sorted(one for one in top.rglob("*") if one.is_file())
        wanted, hits, total, searched = text.casefold(), [], 0, 0
        for file in files:
            content = file.read_text("utf-8", "replace")
            searched += len(content)
            if searched > MAX_SEARCHED_BYTES:
                return {"hits": hits, "total": total, "note": "too much text: the search stopped; name a narrower path"}
            at = content.casefold().find(wanted)
            if at < 0:
                continue
            total += 1
            if offset < total <= offset + MAX_HITS:
                excerpt = content[max(0, at - EXCERPT) : at + len(text) + EXCERPT]
                hits.append({"path": str(file.relative_to(self._root)), "offset": at, "excerpt": excerpt})
        return {"hits": hits, "total": total, "note": "one hit per file"}

    async def _run_python(self, code: str) -> dict[str, Any]:
        result = await run_script(code, self._root, self._backend, self._script_limits)
        return result.to_json()

    async def _diff_candidates(self, before: str, after: str) -> dict[str, Any]:
        old, new = self._candidate(before), self._candidate(after)
        lines = difflib.unified_diff(
            old.source.splitlines(keepends=True), new.source.splitlines(keepends=True), before, after
        )
        diff = "".join(lines)
        answer: dict[str, Any] = {"diff": diff[: self._result_chars], "diff_cut": len(diff) > self._result_chars}
        if old.score and new.score:
            answer |= broke_fixed(old.score, new.score).to_json()
            answer["success_rates"] = [float(old.score.success_rate), float(new.score.success_rate)]
        else:
            answer["note"] = "one of the two was never rolled out: there are no episodes to compare"
        return answer

    async def _check_candidate(self, source: str) -> dict[str, Any]:
        known = {one.fingerprint: one.id for one in self._workspace.candidates.values()}
        known |= {fingerprint(one.source): f"in slot {one.slot}" for one in self.written}
        errors = list(await self._check(source, known))
        return {"valid": not errors, "errors": errors}

    async def _write_candidate(self, source: str, parent: str, hypothesis: str, axis: str) -> dict[str, Any]:
        if len(self.written) == self._slots:
            raise ToolError(f"all {self._slots} slots are filled; call finish")
        self._candidate(parent)
        if len(source.encode("utf-8", "surrogatepass")) > MAX_SOURCE_BYTES:
            raise ToolError(f"the source is larger than {MAX_SOURCE_BYTES} bytes")
        slot = len(self.written)
        self.written.append(Proposal(slot, source, parent, hypothesis[:MAX_NOTE_CHARS], axis[:MAX_NOTE_CHARS]))
        return {"slot": slot, "slots_left": self._slots - len(self.written)}

    async def _finish(self, summary: str) -> dict[str, Any]:
        self.finished = True
        return {"finished": True}

    def _candidate(self, name: str) -> Any:
        if name not in self._workspace.candidates:
            raise ToolError(f"there is no candidate {name[:100]!r}; there are {', '.join(self._workspace.candidates)}")
        return self._workspace.candidates[name]

    def _path(self, path: str) -> Path:
        try:
            found = (self._root / path).resolve()
            if not found.is_relative_to(self._root) or not found.exists():
                raise ToolError(f"there is no {path[:200]!r} in the workspace; paths are relative to it")
        except (OSError, ValueError) as error:
            raise ToolError(f"{path[:200]!r} is no path: {error}") from None
        return found


def _visible(folder: Path) -> list[Path]:
    return sorted(one for one in folder.iterdir() if not one.name.startswith("."))


def shorten(answer: Mapping[str, Any], limit: int) -> Mapping[str, Any]:
    """An answer whose JSON text is longer than `limit` characters, as one cut text."""
    text = json.dumps(answer, ensure_ascii=False)
    if len(text) <= limit:
        return answer
    return {"cut": True, "text": text[:limit], "note": f"the answer had {len(text)} characters and was cut"}
