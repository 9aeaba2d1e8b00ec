"""A sandbox, and an environment without anybody's key."""

from __future__ import annotations

import os

import pytest

from harness_search.sandbox.backends import Backend, SandboxUnavailable, detect
from tests.harness_search.gemini_server import (
    KEY,
)


@pytest.fixture(scope="module")
def backend() -> Backend:
    try:
        return detect("auto")
    except SandboxUnavailable:
        return detect("none")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("GOOGLE_", "GEMINI_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("GEMINI_API_KEY", KEY)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
