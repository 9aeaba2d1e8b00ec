"""The shipped study, planned once."""

from pathlib import Path

import pytest

from whale_jax.study.design import read_study
from whale_jax.study.plan import plan_study

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def shipped():
    """The study on the demos; its flagfiles name others from the project's root."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        yield read_study(Path("configs/study/demo.toml"))


@pytest.fixture(scope="session")
def planned(shipped, tmp_path_factory):
    """Every run of it, with its settings and inputs read and checked."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        return plan_study(shipped, tmp_path_factory.mktemp("out"))
