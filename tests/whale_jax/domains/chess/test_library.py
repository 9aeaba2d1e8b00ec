"""Without python-chess there is one clear error, and only for this domain."""

import importlib.util
import subprocess
import sys

import pytest

from whale_jax.domains.chess import library
from whale_jax.domains.task import TaskError


def test_the_error_names_package_licence_and_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "chess", None)
    spec = importlib.util.spec_from_file_location("library_without_chess", library.__file__)
    assert spec is not None
    assert spec.loader is not None
    with pytest.raises(TaskError, match=r"needs the package `chess` \(GPL-3\.0\+\).*pip install 'whale-jax\[chess\]'"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_other_domains_do_not_need_it():
    blocked = "import sys; sys.modules['chess'] = None"
    code = f"{blocked}\nfrom whale_jax.domains import registry\nassert 'searchqa' in registry.DOMAIN_NAMES"
    subprocess.run([sys.executable, "-c", code], check=True)
