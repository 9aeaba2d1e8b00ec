"""What a proposer is: a session that writes candidates into slots."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from harness_search.workspace import Workspace


class ProposerSettingsError(ValueError):
    """A proposer cannot be made: a package, program or key is missing, or settings contradict each other."""


class SessionFailed(Exception):
    """The session answered and failed. It spends its iteration; what it had written before is kept."""


class ProposerBudgetSpent(SessionFailed):
    """A budget of the whole search for its proposer is used up: this iteration is the search's last."""


class ProposerUnreachable(Exception):
    """The proposer could not be reached within its bounds: infrastructure. The search stops at its last commit."""


@dataclass(frozen=True)
class Proposal:
    """A candidate as written.

    Attributes:
        slot: 0-based slot of the session.
        source: the whole harness file.
        parent: id of the archived candidate that it was copied from.
        hypothesis: one falsifiable sentence.
        axis: what the change works on.
        edits: names of the catalogue edits applied to the parent; empty for proposers that write freely.
    """

    slot: int
    source: str
    parent: str
    hypothesis: str
    axis: str = ""
    edits: tuple[str, ...] = ()


@dataclass(frozen=True)
class EmptySlot:
    """A slot that its proposer could not fill. The slot is spent."""

    slot: int
    reason: str


@dataclass(frozen=True)
class ProposerUsage:
    """What a session used. Times are not part of it: they belong to the metrics, not to the archive.

    Attributes:
        calls: requests sent, those included that got no usable reply.
        input_tokens: as reported, over the replies that reported usage.
        output_tokens: the same; thinking included.
        dollars: what that cost; None when no price is known.
        cached_tokens: the part of `input_tokens` that was read from a cache.
        calls_without_usage: the calls whose usage is not known, because no reply came or it did not say.
    """

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    dollars: float | None = 0.0
    cached_tokens: int = 0
    calls_without_usage: int = 0

    def to_json(self) -> dict[str, Any]:
        """JSON-able form; the last two fields are left out while they are 0."""
        optional = ("cached_tokens", "calls_without_usage")
        return {name: value for name, value in asdict(self).items() if value or name not in optional}


class Proposer(Protocol):
    """One session per iteration."""

    @property
    def name(self) -> str: ...

    def propose(
        self, workspace: Workspace, *, iteration: int, slots: int, seed: int
    ) -> AsyncGenerator[Proposal | EmptySlot, None]:
        """Yields at most `slots` items, slots in ascending order from 0.

        The workspace is the state at the start of the iteration. Raises SessionFailed or ProposerUnreachable.
        """
        ...

    def usage(self, iteration: int) -> ProposerUsage:
        """What the session of that iteration has used."""
        ...
