"""What a domain offers: tasks, an environment, a verifier, its initial harness, and what its proposers need."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol, cast, runtime_checkable

from harness_search.contract import Budgets
from harness_search.proposers.edits import Edit
from whale_jax.domains.task import BadRow, Split, Task
from whale_jax.domains.verdict import Verdict
from whale_jax.qwen3_5.chat import SpecialIds
from whale_jax.rollout.trace import Trace

CountTokens = Callable[[str], int]
"""Number of tokens of a text under the policy's tokenizer."""

VerifierProtocol = Literal["honest", "paper"]
"""Which column of DESIGN section 12 a verifier follows where the two differ."""


class TraceCodec(Protocol):
    """What reading the texts of a trace needs of the policy's chat codec."""

    @property
    def special(self) -> SpecialIds: ...
    def decode(self, ids: Sequence[int], /) -> str: ...


class SampledText(str):
    """Text of a reply, after thinking, that the policy sampled. A text that a harness passes is a plain `str`."""

    __slots__ = ()


class DomainEnv(Protocol):
    """The primitives of one episode. An instance lives as long as its episode."""

    @property
    def names(self) -> frozenset[str]:
        """What the harness may call on `env`."""
        ...

    async def call(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """The text of the result.

        Raises:
            CallRefused: the harness called something that does not exist, or with parameters that it does not have. A
                bad *value*, which may well be the model's, gives a readable text instead.
        """
        ...


@runtime_checkable
class JudgedEnv(Protocol):
    """An environment whose course decides the verdict, together with the returned reply. Others leave it to the domain.

    Such an environment is a `DomainEnv` too.
    """

    def verify(self, answer_text: str | None, *, protocol: VerifierProtocol) -> Verdict:
        """Scores the episode: as `Domain.verify`, but knowing what was called before."""
        ...


class Domain(Protocol):
    """A domain, with its tasks loaded and checked. Objects of this kind are immutable."""

    @property
    def name(self) -> str: ...

    @property
    def tool_names(self) -> frozenset[str]:
        """The primitives of its environments."""
        ...

    @property
    def budgets(self) -> Budgets:
        """The cap of an episode, whatever its harness does."""
        ...

    @property
    def h0(self) -> str:
        """Source of the initial harness."""
        ...

    @property
    def strong(self) -> str:
        """Source of a strong harness written by hand, the yardstick for found ones."""
        ...

    @property
    def skill(self) -> str:
        """The proposer's guide to the domain (Markdown)."""
        ...

    @property
    def catalogue(self) -> Sequence[Edit]:
        """The edits of the offline proposers."""
        ...

    @property
    def scripted_replies(self) -> Sequence[str]:
        """Replies of the scripted model that a candidate must get along with before it is rolled out: among them a
        tool call, a reply without an answer, and a proper answer last."""
        ...

    @property
    def scripted_result(self) -> str:
        """What every tool returns in that episode."""
        ...

    @property
    def data_hash(self) -> str:
        """Hex digest of all tasks, references and retrievable data."""
        ...

    @property
    def bad_rows(self) -> Sequence[BadRow]:
        """Rows of the data files that were left out."""
        ...

    def tasks(self, split: Split) -> Sequence[Task]:
        """The tasks of a split, in the order of a seeded hash, so that the first n are a fair sample."""
        ...

    def env(self, task: Task) -> DomainEnv:
        """A fresh environment for one episode of `task`."""
        ...

    def verify(self, task: Task, answer_text: str | None, *, protocol: VerifierProtocol = "honest") -> Verdict:
        """Scores the returned reply: its text after the last end of thinking, or None when there is none to read."""
        ...

    @property
    def figures(self) -> Mapping[str, str]:
        """What `behaviour` measures: name (an identifier, also of a metric) → what it means, in a few words."""
        ...

    def behaviour(self, tasks: Sequence[Task], traces: Sequence[Trace], codec: TraceCodec) -> Mapping[str, float]:
        """How a pair behaved in some episodes, beside how often it was right (PAPER section 6).

        Episodes that infrastructure broke do not count, and neither does the order of the others.

        Args:
            tasks: at least those of the traces.
            traces: finished episodes.
            codec: the policy's chat codec.

        Returns:
            Those of `figures` that are defined: one with nothing to divide by is left out, so that there are none
            without episodes.
        """
        ...


class DomainStandIn:
    """A domain in everything but what a subclass does itself."""

    def __init__(self, domain: Domain) -> None:
        self._domain = domain

    def __getattr__(self, name: str) -> Any:
        return getattr(self._domain, name)

    def as_domain(self) -> Domain:
        """This object, for a type checker that does not follow `__getattr__`."""
        return cast(Domain, self)


def defined_figures(names: Iterable[str], measured: object) -> dict[str, float]:
    """The attributes of `measured` by name; those that are None are left out."""
    values = {name: getattr(measured, name) for name in names}
    return {name: float(value) for name, value in values.items() if value is not None}
