"""A benchmark starts again with what glibc reads at a process's start alone, once."""

import os
import platform
import sys

import pytest

from whale_jax.bench.huge_pages import start_again_with_huge_pages


@pytest.fixture
def started(monkeypatch) -> list[tuple[str, list[str], str | None]]:
    """What the process was replaced by: program, arguments, tunables."""
    calls: list[tuple[str, list[str], str | None]] = []
    monkeypatch.setattr(os, "execv", lambda program, argv: calls.append((program, argv, os.environ["GLIBC_TUNABLES"])))
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.36"))
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "whale_jax.bench", "train", "--json"])
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    return calls


def test_the_same_command_starts_again(started):
    start_again_with_huge_pages()
    again = [sys.executable, "-m", "whale_jax.bench", "train", "--json"]
    assert started == [(sys.executable, again, "glibc.malloc.hugetlb=1")]
    start_again_with_huge_pages()
    assert len(started) == 1


def test_other_tunables_stay(started, monkeypatch):
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.arena_max=2")
    start_again_with_huge_pages()
    assert started[0][2] == "glibc.malloc.arena_max=2:glibc.malloc.hugetlb=1"


@pytest.mark.parametrize("libc", [("glibc", "2.34"), ("", "")], ids=str)
def test_not_where_glibc_does_not_know_it(started, monkeypatch, libc):
    monkeypatch.setattr(platform, "libc_ver", lambda: libc)
    start_again_with_huge_pages()
    assert not started


def test_a_choice_that_was_made_stays(started, monkeypatch):
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=0")
    start_again_with_huge_pages()
    assert not started
