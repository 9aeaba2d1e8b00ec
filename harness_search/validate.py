"""Validation: everything that is checked before a candidate costs a rollout. All errors at once, as text."""

from __future__ import annotations

import ast
import re
import string
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from harness_search.canonical import fingerprint
from harness_search.contract import Budgets, EndReason, EpisodeHost, HarnessError, TaskView, check_source, read_info
from harness_search.overfit import OverfitCheck
from harness_search.sandbox.backends import Backend, SandboxUnavailable
from harness_search.sandbox.limits import Limits
from harness_search.sandbox.worker import HarnessWorker

ADDRESS = re.compile(r"0x[0-9a-fA-F]{6,}")
FINE_ENDS = (None, EndReason.TOKEN_BUDGET, EndReason.TURN_BUDGET, EndReason.TOOL_BUDGET)
"""A scripted model may lead a sound harness to its budgets; every other end is the harness's own failure."""


class SearchSpace(StrEnum):
    """What a candidate may change."""

    FULL = "full"
    PROMPT_ONLY = "prompt_only"
    """The text of the `*_PROMPT` constants of h0, with the same placeholders, and nothing else."""


@dataclass(frozen=True)
class ScriptedEpisode:
    """The one episode that a candidate has to pass: a made-up task, and a host whose model answers from a list.

    `host` makes a fresh one per candidate, for instance a `sandbox.scripted.ScriptedHost`.
    """

    task: TaskView
    host: Callable[[], EpisodeHost]
    budgets: Budgets


class Validator:
    """Validates candidates of one search."""

    def __init__(
        self,
        *,
        h0: str,
        search_space: SearchSpace,
        backend: Backend,
        scripted: ScriptedEpisode | None,
        harness_task_texts: Sequence[str],
        limits: Limits | None = None,
    ) -> None:
        """`h0`: the run's initial harness. `harness_task_texts`: the texts of the D_harness tasks' inputs.

        Without a `scripted` episode a candidate only has to load.
        """
        self._h0 = h0
        self._search_space = search_space
        self._backend = backend
        self._scripted = scripted
        self._limits = limits or Limits()
        self._overfit = OverfitCheck(harness_task_texts, allowed_source=h0)

    async def __call__(self, source: str, archived: Mapping[str, str]) -> tuple[str, ...]:
        """All errors of one candidate; empty when it is fit to be rolled out.

        Args:
            source: the harness file.
            archived: fingerprint to candidate id, of every earlier candidate.

        Raises:
            SandboxUnavailable: the sandbox failed, not the candidate; nothing can be said about it.
        """
        contract_errors = check_source(source)
        errors = list(contract_errors)
        if copy := archived.get(fingerprint(source)):
            errors.append(f"is a copy of candidate {copy} (up to comments and layout)")
        errors += self._overfit.errors(source)
        if not contract_errors:
            if self._search_space is SearchSpace.PROMPT_ONLY:
                errors += prompt_only_errors(source, self._h0)
            errors += await self._sandbox_errors(source)
        # Object addresses in messages differ from run to run, and the errors are archived and hashed.
        return tuple(ADDRESS.sub("0x…", error) for error in errors)

    async def _sandbox_errors(self, source: str) -> list[str]:
        try:
            worker = await HarnessWorker.start(source, backend=self._backend, limits=self._limits)
        except HarnessError as error:
            return [f"does not load in the sandbox: {error}"]
        scripted = self._scripted
        async with worker:
            if scripted is None:
                return []
            outcome = await worker.run_episode(
                episode_id="validation", task=scripted.task, budgets=scripted.budgets, seed=0, host=scripted.host()
            )
        if outcome.end is EndReason.INFRASTRUCTURE:
            raise SandboxUnavailable(f"the scripted episode could not be run: {outcome.error}")
        if outcome.end in FINE_ENDS:
            return []
        return [f"fails the scripted episode ({outcome.end}): {outcome.error or 'no message'}"]


def prompt_only_errors(source: str, h0: str) -> list[str]:
    """How a candidate differs from h0 in more than the text of its prompts. Both obey the static contract."""
    errors: list[str] = []
    before, after = read_info(h0).prompts, read_info(source).prompts
    if before.keys() == after.keys():
        for name, text in after.items():
            wanted, found = _fields(before[name]), _fields(text)
            if wanted is not None and found != wanted:
                errors.append(
                    f"prompt-only: {name} must keep exactly the placeholders {_listed(wanted)}, found "
                    + ("braces that are no placeholder" if found is None else _listed(found))
                )
    if _masked(source) != _masked(h0):
        errors.append("prompt-only: differs from the initial harness in more than the text of its *_PROMPT constants")
    return errors


def _fields(prompt: str) -> frozenset[str] | None:
    """The plain placeholders of a format string; None for a text that `str.format` would refuse or read otherwise."""
    try:
        parts = list(string.Formatter().parse(prompt))
    except ValueError:
        return None
    names = {name for _, name, _, _ in parts if name is not None}
    plain = all(name.isidentifier() for name in names) and not any(spec or kind for _, _, spec, kind in parts)
    return frozenset(names) if plain else None


def _listed(names: frozenset[str]) -> str:
    return ", ".join(f"{{{name}}}" for name in sorted(names)) or "(none)"


def _masked(source: str) -> str:
    """The syntax tree as text, the prompts' values left out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(source)
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name) and target.id.endswith("_PROMPT"):
                node.value = ast.Constant("prompt")
    return ast.dump(tree)
