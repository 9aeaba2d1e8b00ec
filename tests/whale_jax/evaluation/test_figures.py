"""The figures beside an evaluation's evidence."""

import pytest

from whale_jax.evaluation.figures import figures_path, read_figures, write_figures
from whale_jax.journal import JournalError


def test_figures_are_read_as_they_were_written(tmp_path):
    path = figures_path(tmp_path / "000003.json")
    assert path.name == "000003.behaviour.json"
    assert read_figures(path) == {}
    path.write_text("what a killed job left")
    write_figures(path, {"hit": 1 / 3, "searched": 1.0})
    assert read_figures(path) == {"hit": 1 / 3, "searched": 1.0}
    written = path.read_bytes()
    write_figures(path, {"searched": 1.0, "hit": 1 / 3})
    assert path.read_bytes() == written
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("content", ["{", "[1]", '{"hit": "x"}', '{"hit": null}'])
def test_damaged_figures_are_named_with_what_to_do(tmp_path, content):
    path = tmp_path / "000003.behaviour.json"
    path.write_text(content)
    with pytest.raises(JournalError, match=r"000003\.behaviour\.json is damaged .*; remove it: only reports read it"):
        read_figures(path)
