"""The search loop: propose, validate, evaluate, accept, stop?

Iteration 0 evaluates the incoming harness as candidate 0. Every further iteration is one proposer session; a candidate
is validated and evaluated as soon as it is written, while the session goes on. Evidence is written first (candidates,
in slot order), the iteration's record last. What was not recorded is done again on resume, with the same result: the
workspace, the seeds and the sampling do not depend on where the search was cut.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from harness_search.accept import AcceptRule, archive_max
from harness_search.archive import Archive, ArchiveError, Candidate, Invalid, TraceRecord
from harness_search.canonical import fingerprint
from harness_search.confirmation import accept
from harness_search.measure import EvaluationError, SearchInfrastructureError, episode_keys, measure
from harness_search.proposers.base import EmptySlot, Proposal, Proposer, ProposerBudgetSpent, SessionFailed
from harness_search.records import Decision, IterationRecord, ProposalRecord, SessionState, SlotRecord, SlotState
from harness_search.scoring import Arm, Evaluate, Score, ScoreTag
from harness_search.workspace import Workspace, materialise

Validate = Callable[[str, Mapping[str, str]], Awaitable[Sequence[str]]]
"""(source, fingerprint -> id of every earlier candidate) -> all its errors; `validate.Validator` is one."""

__all__ = ["EvaluationError", "SearchBudgetError", "SearchInfrastructureError", "SearchResult", "SearchSignals", "run"]

INCOMING_ID = "000"


class SearchBudgetError(ValueError):
    """The rollout budget does not even cover the evaluation of the incoming harness."""


@dataclass(frozen=True)
class SearchSignals:
    """What a stopping rule sees after an iteration: training signals alone.

    Attributes:
        iteration: the one just finished; 0 is the evaluation of the incoming harness.
        best_scores: the archive's best success rate after iterations 0, 1, ..., `iteration`.
        rollouts: episodes evaluated so far in this search.
    """

    iteration: int
    best_scores: tuple[float, ...]
    rollouts: int


@dataclass(frozen=True)
class SearchResult:
    """The accepted candidate and how it was found."""

    best: Candidate
    iterations: tuple[IterationRecord, ...]

    @property
    def source(self) -> str:
        """The accepted harness."""
        return self.best.source

    @property
    def rollouts(self) -> int:
        return sum(record.rollouts for record in self.iterations)

    @property
    def sampled_tokens(self) -> int:
        return sum(record.sampled_tokens for record in self.iterations)


async def run(
    evaluate: Evaluate,
    *,
    archive: Archive,
    incoming_source: str,
    proposer: Proposer,
    task_ids: Sequence[str],
    seeds: Sequence[int],
    tag: ScoreTag,
    candidates: int,
    stop: Callable[[SearchSignals], bool],
    validate: Validate,
    on_commit: Callable[[IterationRecord], None],
    seed: int,
    rule: AcceptRule = archive_max,
    max_rollouts: int | None = None,
    coverage_floor: float = 0.9,
) -> SearchResult:
    """Searches, or goes on where an archive ends.

    Args:
        evaluate: the only way to a score.
        archive: empty, or the archive of this same search, cut anywhere.
        incoming_source: the harness the search starts from.
        proposer: one session per iteration.
        task_ids: the D_harness tasks; every arm runs all of them.
        seeds: one episode per task and seed; the same for every arm and iteration.
        tag: hashes of what the scores depend on, harness apart.
        candidates: slots per iteration (M).
        stop: asked after every iteration, iteration 0 included; a pure function of its signals.
        validate: checks a candidate before any rollout.
        on_commit: called once per recorded iteration, in order; on resume for the recorded ones again.
        seed: root of the proposer sessions' seeds.
        rule: which candidate is the best.
        max_rollouts: of this search in total; an evaluation that would exceed it is not started, and an iteration
            offers only as many slots as the rest allows, a challenger's trial included.
        coverage_floor: smallest scored share of an evaluation's episodes.

    Raises:
        SearchInfrastructureError, SearchBudgetError, EvaluationError, ArchiveError, and ProposerUnreachable from the
        proposer. The archive then stands at its last commit.
    """
    if candidates < 1 or not task_ids or not seeds:
        raise ValueError("a search needs at least one slot per iteration, one task and one seed")
    search = _Search(
        evaluate=evaluate,
        archive=archive,
        incoming_source=incoming_source,
        proposer=proposer,
        task_ids=tuple(task_ids),
        seeds=tuple(seeds),
        tag=tag,
        candidates=candidates,
        stop=stop,
        validate=validate,
        on_commit=on_commit,
        seed=seed,
        rule=rule,
        max_rollouts=max_rollouts,
        coverage_floor=coverage_floor,
    )
    return await search.run()


@dataclass
class _Session:
    """What one proposer session has come to so far."""

    state: SessionState = SessionState.COMPLETED
    error: str | None = None
    budget_spent: bool = False
    empty: dict[int, str] = field(default_factory=dict)
    filled: dict[int, asyncio.Task[Candidate]] = field(default_factory=dict)

    @property
    def next_slot(self) -> int:
        return 1 + max([*self.empty, *self.filled], default=-1)


@dataclass(frozen=True, kw_only=True)
class _Search:
    evaluate: Evaluate
    archive: Archive
    incoming_source: str
    proposer: Proposer
    task_ids: tuple[str, ...]
    seeds: tuple[int, ...]
    tag: ScoreTag
    candidates: int
    stop: Callable[[SearchSignals], bool]
    validate: Validate
    on_commit: Callable[[IterationRecord], None]
    seed: int
    rule: AcceptRule
    max_rollouts: int | None
    coverage_floor: float

    @property
    def cost(self) -> int:
        """Rollouts of one evaluation."""
        return len(self.task_ids) * len(self.seeds)

    @property
    def confirmation_cost(self) -> int:
        """Rollouts of one challenger's trial, which every iteration must be able to pay for."""
        return 2 * len(self.task_ids) * self.rule.confirmations

    @property
    def rollouts_left(self) -> int | None:
        if self.max_rollouts is None:
            return None
        return self.max_rollouts - sum(record.rollouts for record in self.archive.iterations)

    async def run(self) -> SearchResult:
        self._check_same_search()
        for record in self.archive.iterations:
            self.on_commit(record)
        if not self.archive.iterations:
            await self._incoming()
        while self.archive.iterations[-1].decision is Decision.GO_ON:
            await self._iterate()
        records = tuple(self.archive.iterations)
        return SearchResult(self.archive.candidates[records[-1].incumbent], records)

    def _check_same_search(self) -> None:
        """An archive with entries must be this search's."""
        where = self.archive.directory
        keys = episode_keys(self.task_ids, self.seeds)
        first = self.archive.candidates.get(INCOMING_ID)
        if first is not None and first.source != self.incoming_source:
            raise ArchiveError(f"{where}: its candidate 000 is not the incoming harness; use an empty directory")
        for candidate in self.archive.candidates.values():
            score = candidate.score
            if score is not None and (score.tag != self.tag or [row.key for row in score.results] != keys):
                raise ArchiveError(
                    f"{where}: candidate {candidate.id} was scored under other conditions (model, tasks, verifier, "
                    "sampling or seeds); use an empty directory"
                )

    async def _incoming(self) -> None:
        left = self.rollouts_left
        if left is not None and left < self.cost:
            raise SearchBudgetError(f"{left} rollouts do not cover the incoming harness's evaluation ({self.cost})")
        candidate = self.archive.candidates.get(INCOMING_ID)
        if candidate is None:
            score, traces = await self._measure(Arm(INCOMING_ID, self.incoming_source))
            proposal = ProposalRecord(proposer="incoming", iteration=0)
            candidate = self.archive.add_scored(self.incoming_source, proposal, score, traces)
        await self._commit(_Session(SessionState.INCOMING), [_slot_record(0, candidate)], {})

    async def _iterate(self) -> None:
        left = self.rollouts_left
        slots = self.candidates if left is None else min(self.candidates, (left - self.confirmation_cost) // self.cost)
        workspace = materialise(self.archive, slots=slots, rollouts_left=left)
        session = _Session()
        try:
            async with asyncio.TaskGroup() as group:
                await self._session(session, group, workspace, slots)
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None  # the first failure cancelled the others
        iteration = len(self.archive.iterations)
        records = [self._finished_slot(session, slot) for slot in range(slots)]
        usage = self.proposer.usage(iteration).to_json()
        await self._commit(session, records, usage)

    async def _session(self, session: _Session, group: asyncio.TaskGroup, workspace: Workspace, slots: int) -> None:
        """Runs the proposer; every proposal becomes a task that ends with the candidate in the archive."""
        iteration = len(workspace.history)
        known = {one.fingerprint: one.id for one in workspace.candidates.values()}
        previous: asyncio.Task[Candidate] | None = None
        seed = _session_seed(self.seed, iteration)
        stream = self.proposer.propose(workspace, iteration=iteration, slots=slots, seed=seed)
        try:
            async with aclosing(stream):
                async for item in stream:
                    if session.next_slot == slots:
                        break  # one more than there are slots; until then a session ends by itself, and says its cost
                    if not session.next_slot <= item.slot < slots:
                        raise ValueError(f"proposer {self.proposer.name} wrote slot {item.slot} out of turn")
                    if isinstance(item, EmptySlot):
                        session.empty[item.slot] = item.reason
                        continue
                    name = f"{len(workspace.candidates) + len(session.filled):03d}"
                    work = self._candidate(name, item, iteration, workspace, dict(known), previous)
                    known.setdefault(fingerprint(item.source), name)
                    previous = session.filled[item.slot] = group.create_task(work)
        except SessionFailed as error:
            session.state, session.error = SessionState.FAILED, str(error)
            session.budget_spent = isinstance(error, ProposerBudgetSpent)

    async def _candidate(
        self,
        name: str,
        proposal: Proposal,
        iteration: int,
        workspace: Workspace,
        known: Mapping[str, str],
        previous: asyncio.Task[Candidate] | None,
    ) -> Candidate:
        """One slot from proposal to archive. Works beside the other slots, and is archived after the one before it."""
        record = ProposalRecord(
            self.proposer.name, iteration, proposal.slot, proposal.parent, proposal.hypothesis, proposal.axis,
            proposal.edits,
        )  # fmt: skip
        archived = self.archive.candidates.get(name)
        if archived is not None:
            if (archived.source, archived.proposal) != (proposal.source, record):
                raise ArchiveError(
                    f"{self.archive.directory}: proposer {self.proposer.name} now proposes something else than the "
                    f"archived candidate {name}; resume with the settings and versions the search was started with"
                )
            return archived
        errors = list(await self.validate(proposal.source, known))
        if proposal.parent not in workspace.candidates:
            errors.append(f"its parent {proposal.parent!r} is not an archived candidate")
        if errors:
            await _finished(previous)
            return self.archive.add_invalid(proposal.source, record, errors)
        score, traces = await self._measure(Arm(name, proposal.source))
        await _finished(previous)
        return self.archive.add_scored(proposal.source, record, score, traces)

    async def _measure(self, arm: Arm, seeds: Sequence[int] | None = None) -> tuple[Score, list[TraceRecord]]:
        seeds = self.seeds if seeds is None else seeds
        return await measure(self.evaluate, arm, self.task_ids, seeds, tag=self.tag, coverage_floor=self.coverage_floor)

    def _finished_slot(self, session: _Session, slot: int) -> SlotRecord:
        if slot in session.filled:
            return _slot_record(slot, session.filled[slot].result())
        failed = session.state is SessionState.FAILED
        ended = "the session failed before writing it" if failed else "the session ended without writing it"
        return SlotRecord(slot, SlotState.EMPTY, detail=session.empty.get(slot, ended))

    async def _commit(self, session: _Session, slots: Sequence[SlotRecord], usage: Mapping[str, Any]) -> None:
        """Accepts, decides and records: the iteration's last write."""
        history = self.archive.iterations
        best, trial, fresh_rows = await accept(self.archive, self.rule, self.seeds, self._measure)
        everyone = self.archive.candidates
        scores = {name: one.score for name, one in everyone.items() if one.score is not None}
        fresh = [scores[slot.candidate] for slot in slots if slot.candidate in scores]
        rows = [*(row for score in fresh for row in score.results), *fresh_rows]
        best_score = float(scores[best].success_rate)
        spent = len(rows) + sum(record.rollouts for record in history)
        signals = SearchSignals(len(history), (*(record.best_score for record in history), best_score), spent)
        needed = self.cost + self.confirmation_cost
        if self.stop(signals):
            decision = Decision.STOP
        elif session.budget_spent or (self.max_rollouts is not None and self.max_rollouts - spent < needed):
            decision = Decision.BUDGET
        else:
            decision = Decision.GO_ON
        record = IterationRecord(
            iteration=len(history),
            session=session.state,
            session_error=session.error,
            slots=tuple(slots),
            rule=self.rule.name,
            incumbent_before=history[-1].incumbent if history else None,
            incumbent=best,
            best_score=best_score,
            rollouts=len(rows),
            missing=sum(row.reward is None for row in rows),
            sampled_tokens=sum(row.sampled_tokens for row in rows),
            ends=dict(sorted(Counter(row.end for row in rows).items())),
            usage=usage,
            decision=decision,
            confirmation=trial,
        )
        self.archive.commit_iteration(record)
        self.on_commit(record)


def _slot_record(slot: int, candidate: Candidate) -> SlotRecord:
    if isinstance(candidate.outcome, Invalid):
        detail = "; ".join(candidate.outcome.errors)
        return SlotRecord(slot, SlotState.INVALID, candidate.id, candidate.hash, detail=detail)
    score = candidate.outcome.score
    return SlotRecord(
        slot, SlotState.SCORED, candidate.id, candidate.hash, float(score.success_rate), float(score.mean_turns)
    )


async def _finished(task: asyncio.Task[Candidate] | None) -> None:
    if task is not None:
        await task


def _session_seed(root: int, iteration: int) -> int:
    digest = hashlib.blake2b(f"{root}:{iteration}".encode(), digest_size=8, person=b"proposer-session").digest()
    return int.from_bytes(digest, "big")
