"""The domain by its name: through the registry and the main command."""

import sys

import pytest

from whale_jax import domains
from whale_jax.domains.registry import DOMAIN_NAMES, load_domain
from whale_jax.domains.task import TaskError
from whale_jax.main import main


def test_the_domain_has_a_name():
    assert "chess" in DOMAIN_NAMES
    assert load_domain("chess").name == "chess"


@pytest.mark.parametrize(
    ("flag", "counts"),
    [
        ("--domain=chess", "chess: 384 weight, 128 harness, 96 validation, 200 test tasks"),
        ("--flagfile=configs/demo_chess.flags", "chess: 192 weight, 96 harness, 96 validation, 128 test tasks"),
    ],
)
def test_dry_run(capsys, flag, counts):
    assert main(["main", "--dry_run", flag]) == 0
    assert counts in capsys.readouterr().out


def test_without_the_package_the_command_says_so_in_one_line(capsys, monkeypatch):
    monkeypatch.setattr(domains, "chess", domains.chess)  # puts the package's own attribute back as well
    for name in [name for name in sys.modules if name.startswith("whale_jax.domains.chess")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "chess", None)
    assert main(["main", "--dry_run", "--domain=chess"]) == 2
    message = capsys.readouterr().err
    assert message.startswith("error: the chess domain needs the package `chess`")
    assert len(message.splitlines()) == 1
    with pytest.raises(TaskError, match="pip install"):
        load_domain("chess")
