"""The environment: one primitive, `convert(amount, unit, to)`."""

from collections.abc import Mapping, Sequence
from typing import Any

from harness_search.contract import CallRefused
from tests.toy_domain.tasks import FACTORS


class ConvertEnv:
    """Implements `DomainEnv`. It keeps nothing of its episode."""

    names = frozenset({"convert"})

    async def call(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """See `DomainEnv.call`: what the harness does wrong is refused, what the model writes wrong is told."""
        if name not in self.names:
            raise CallRefused(f"env has no {name!r}; it has: convert")
        try:
            return self.convert(*args, **kwargs)
        except TypeError as error:
            raise CallRefused(f"env.{error}") from error

    def convert(self, amount: Any, unit: Any, to: Any) -> str:
        """The conversion in words, or why there is none."""
        factor = FACTORS.get((unit, to)) if isinstance(unit, str) and isinstance(to, str) else None
        if factor is None:
            return f"Cannot convert {unit} to {to}."
        try:
            return f"{amount} {unit} are {int(amount) * factor} {to}."
        except (TypeError, ValueError):
            return f"The amount must be a whole number, got {amount}."
