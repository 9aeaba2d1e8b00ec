"""local.sh: what it installs for what, and how it starts a demo; Python is a stand-in that records its arguments."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PYTHON = """#!/bin/sh
checkout=$(dirname "$0")/../..
echo "$*" >>"$checkout/calls"
echo "$GLIBC_TUNABLES" >"$checkout/tunables"
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "launch").mkdir()
    for name in ("launch/local.sh", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("python", "pip"):
        (programs / name).write_text(PYTHON)
        (programs / name).chmod(0o755)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "bwrap").symlink_to("/bin/true")
    return tmp_path


def demo(checkout: Path, *arguments: str, **settings: str) -> list[str]:
    """The calls of Python that `local.sh demo` makes, with these variables set."""
    calls = checkout / "calls"
    calls.unlink(missing_ok=True)
    environment = {"PATH": f"{checkout / 'bin'}:{os.environ['PATH']}", **settings}
    subprocess.run(["sh", "launch/local.sh", "demo", *arguments], cwd=checkout, env=environment, check=True)
    return calls.read_text().splitlines()


def test_a_demo_installs_its_extra_once_and_passes_flags_on(checkout: Path) -> None:
    started = f"-m whale_jax.main --flagfile={checkout}/configs/demo_chess.flags --seed=3"
    *installed, last = demo(checkout, "chess", "--seed=3")
    assert last == started
    assert sum(f"{checkout}[chess]" in call for call in installed) == 1
    assert demo(checkout, "chess", "--seed=3") == [started]


def test_without_a_name_it_is_the_searchqa_demo(checkout: Path) -> None:
    *installed, last = demo(checkout, "--seed=3")
    assert last == f"-m whale_jax.main --flagfile={checkout}/configs/demo_searchqa.flags --seed=3"
    assert not any("[" in call for call in installed)
    assert demo(checkout, "searchqa") == [f"-m whale_jax.main --flagfile={checkout}/configs/demo_searchqa.flags"]


def test_a_run_asks_for_huge_pages_unless_told_otherwise(checkout: Path) -> None:
    demo(checkout)
    assert (checkout / "tunables").read_text() == "glibc.malloc.hugetlb=1\n"
    demo(checkout, GLIBC_TUNABLES="glibc.malloc.hugetlb=0")
    assert (checkout / "tunables").read_text() == "glibc.malloc.hugetlb=0\n"
