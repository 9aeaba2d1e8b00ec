"""What harnesses call: a domain whose environments write down their calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness_search.contract import CallRefused
from whale_jax.domains.domain import Domain, DomainEnv, DomainStandIn, JudgedEnv, VerifierProtocol
from whale_jax.domains.task import Task
from whale_jax.domains.verdict import Verdict


@dataclass(frozen=True)
class Call:
    """One call on `env`.

    Attributes:
        name: the primitive.
        args, kwargs: as the host passed them on; a reply stands there as the text that the policy sampled.
        result: the text that came back; None when the call was refused or broke off.
        error: why it was refused or broke off; None when it was not.
    """

    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    result: str | None
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        """JSON-able form: arguments are what a harness sent, and so JSON already."""
        return {
            "name": self.name,
            "args": list(self.args),
            "kwargs": dict(self.kwargs),
            "result": self.result,
            "error": self.error,
        }


class CallRecorder(DomainStandIn):
    """A domain whose `calls` are those of the latest environment."""

    def __init__(self, domain: Domain) -> None:
        super().__init__(domain)
        self.calls: list[Call] = []

    def env(self, task: Task) -> DomainEnv:
        """A fresh environment whose calls are written down; those of the one before are forgotten."""
        self.calls = []
        env = self._domain.env(task)
        return _JudgedRecorded(env, self.calls) if isinstance(env, JudgedEnv) else _Recorded(env, self.calls)


class _Recorded:
    def __init__(self, env: DomainEnv, calls: list[Call]) -> None:
        self._env = env
        self._calls = calls

    @property
    def names(self) -> frozenset[str]:
        return self._env.names

    async def call(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        try:
            result = await self._env.call(name, args, kwargs)
        except CallRefused as refusal:
            self._calls.append(Call(name, tuple(args), kwargs, None, str(refusal)))
            raise
        except BaseException as error:
            self._calls.append(Call(name, tuple(args), kwargs, None, type(error).__name__))
            raise
        self._calls.append(Call(name, tuple(args), kwargs, result))
        return result


class _JudgedRecorded(_Recorded):
    """For environments whose course decides the verdict: the runner tells them from others by `verify`."""

    def verify(self, answer_text: str | None, *, protocol: VerifierProtocol) -> Verdict:
        assert isinstance(self._env, JudgedEnv)
        return self._env.verify(answer_text, protocol=protocol)
