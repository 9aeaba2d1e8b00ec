"""Secrets, cut out of texts."""

from __future__ import annotations

import os
from collections.abc import Iterable

_SHORTEST = 6
"""A value shorter than this is no secret: cutting it out would only garble texts."""


class Redactor:
    """Replaces every secret value in a text."""

    def __init__(self, secrets: Iterable[str]) -> None:
        # Longest first: a secret that holds another one is cut out whole.
        self._secrets = sorted({secret for secret in secrets if len(secret) >= _SHORTEST}, key=len, reverse=True)

    @classmethod
    def of_environment(cls, names: Iterable[str]) -> Redactor:
        """For the values that these environment variables have now."""
        return cls(os.environ[name] for name in names if name in os.environ)

    @property
    def longest(self) -> int:
        """Characters of the longest secret."""
        return max(map(len, self._secrets), default=0)

    def __call__(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "[redacted]")
        return text

    def found_in(self, text: str) -> bool:
        """Whether the text holds a secret."""
        return any(secret in text for secret in self._secrets)
