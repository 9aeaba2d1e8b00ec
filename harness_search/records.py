"""What a search writes down: where a candidate comes from, and what each iteration did and decided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


@dataclass(frozen=True)
class ProposalRecord:
    """Where a candidate comes from. The incoming harness has proposer "incoming" and neither parent nor slot."""

    proposer: str
    iteration: int
    slot: int | None = None
    parent: str | None = None
    hypothesis: str = ""
    axis: str = ""
    edits: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "edits": list(self.edits)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ProposalRecord:
        return cls(**{**data, "edits": tuple(data["edits"])})


class SlotState(StrEnum):
    """What became of a slot."""

    SCORED = "scored"
    INVALID = "invalid"
    EMPTY = "empty"
    """Nothing was written into it; the detail says why."""


class SessionState(StrEnum):
    """How the proposer's session went."""

    INCOMING = "incoming"
    """Iteration 0: no session; the incoming harness was evaluated."""
    COMPLETED = "completed"
    FAILED = "failed"
    """The session answered and failed; what it had written before counts."""


class Decision(StrEnum):
    """What the search does after an iteration."""

    GO_ON = "go_on"
    STOP = "stop"
    """The stopping rule said so."""
    BUDGET = "budget"
    """Another evaluation would exceed the rollout budget, or the proposer's own budget is used up."""


@dataclass(frozen=True)
class SlotRecord:
    """One slot of an iteration. Scores are floats here for readers; the exact ones are in the candidate's files."""

    slot: int
    state: SlotState
    candidate: str | None = None
    hash: str | None = None
    success_rate: float | None = None
    mean_turns: float | None = None
    detail: str = ""


@dataclass(frozen=True)
class ConfirmationRecord:
    """Fresh rollouts of the incumbent and a challenger, and what they decided. No search score enters it.

    Attributes:
        incumbent, challenger: ids of the two.
        seeds: of the fresh rollouts, which no score of the search was measured with.
        comparison: content of `PairedComparison`: before is the incumbent's success rate, after the challenger's.
        accepted: whether the challenger became the incumbent.
        hash: of the evidence, `confirmations/<iteration>.json`.
    """

    incumbent: str
    challenger: str
    seeds: tuple[int, ...]
    comparison: Mapping[str, Any]
    accepted: bool
    hash: str

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ConfirmationRecord:
        return cls(**{**data, "seeds": tuple(data["seeds"])})


@dataclass(frozen=True)
class IterationRecord:
    """One committed iteration: no times and no rates, so that a resumed search writes the same bytes.

    Attributes:
        iteration: 0 for the evaluation of the incoming harness, then 1, 2, ...
        session: see `SessionState`; `session_error` says what failed.
        slots: one per slot, in order.
        rule: name of the acceptance rule.
        incumbent_before: the best so far when the iteration began; None in iteration 0.
        incumbent: the best so far after it.
        best_score: the incumbent's success rate in the search. What fresh rollouts say of it is in `confirmation`.
        rollouts: episodes evaluated in this iteration, missing ones and those of the confirmation included.
        missing: how many of them have no reward.
        sampled_tokens: ids sampled in them.
        ends: counts by end reason.
        usage: the proposer's usage in this session.
        decision: go on, or why not.
        confirmation: the challenger's trial; None when the rule asks for none or nobody challenged.
    """

    iteration: int
    session: SessionState
    slots: tuple[SlotRecord, ...]
    rule: str
    incumbent_before: str | None
    incumbent: str
    best_score: float
    rollouts: int
    missing: int
    sampled_tokens: int
    ends: Mapping[str, int]
    decision: Decision
    session_error: str | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)
    confirmation: ConfirmationRecord | None = None

    @property
    def accepted(self) -> str | None:
        """The candidate that became the incumbent in this iteration, if one did."""
        return self.incumbent if self.incumbent_before not in (None, self.incumbent) else None

    def to_json(self) -> dict[str, Any]:
        """JSON-able form; `confirmation` is left out when there was none."""
        out = {**asdict(self), "slots": [asdict(slot) for slot in self.slots]}
        if self.confirmation is None:
            del out["confirmation"]
        else:
            out["confirmation"]["seeds"] = list(self.confirmation.seeds)
        return out

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> IterationRecord:
        slots = tuple(SlotRecord(**{**slot, "state": SlotState(slot["state"])}) for slot in data["slots"])
        enums = {"session": SessionState(data["session"]), "decision": Decision(data["decision"])}
        confirmation = data.get("confirmation")
        trial = None if confirmation is None else ConfirmationRecord.from_json(confirmation)
        return cls(**{**data, **enums, "slots": slots, "confirmation": trial})
