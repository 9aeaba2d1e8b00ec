"""What was frozen before the first run is the same at every later one, or nothing goes on."""

import json

import pytest

from whale_jax.study.design import StudyError
from whale_jax.study.freeze import FORMAT, freeze, read_manifest

FROZEN = {
    "format": FORMAT,
    "name": "small",
    "domains": {"math": {"data": "a" * 64, "h0.py": "b" * 64}},
    "runs": {"math/adaptive/1": {"config": "c" * 64, "max_rollouts": 100}},
}


def test_a_manifest_is_written_once_and_then_only_compared(tmp_path):
    assert freeze(tmp_path / "out", FROZEN)
    written = (tmp_path / "out/manifest.json").read_bytes()
    assert not freeze(tmp_path / "out", FROZEN)
    assert (tmp_path / "out/manifest.json").read_bytes() == written
    assert read_manifest(tmp_path / "out") == FROZEN


def test_an_amendment_is_told_and_compared_with_nothing(tmp_path):
    (tmp_path / "manifest.json").write_text(json.dumps(FROZEN | {"amended": ["on a day: why"]}))
    assert not freeze(tmp_path, FROZEN)
    assert read_manifest(tmp_path)["amended"] == ["on a day: why"]


@pytest.mark.parametrize(
    ("now", "message"),
    [
        ({"domains": {"math": {"data": "f" * 64, "h0.py": "b" * 64}}}, "domains: math: data was aaaaaaaaaaaa, is fff"),
        ({"domains": {"math": {"data": "a" * 64}}}, "domains: math: h0.py was bbbbbbbbbbbb, is not there"),
        ({"runs": {"math/adaptive/1": {"config": "c" * 64, "max_rollouts": 9}}}, "max_rollouts was 100, is 9"),
        ({"runs": {}}, "runs: math/adaptive/1: config was cccccccccccc, is not there"),
    ],
)
def test_what_changed_is_named_and_refused(tmp_path, now, message):
    freeze(tmp_path, FROZEN)
    with pytest.raises(StudyError, match=message) as raised:
        freeze(tmp_path, FROZEN | now)
    assert "Put it back to go on, or name a fresh --out" in str(raised.value)
    assert read_manifest(tmp_path) == FROZEN


@pytest.mark.parametrize(
    ("content", "message"), [("{", "not JSON"), ("[]", "is not the manifest"), ('{"format": 0}', "is not the manifest")]
)
def test_a_manifest_that_is_none(tmp_path, content, message):
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(StudyError, match=message):
        freeze(tmp_path, FROZEN)
    with pytest.raises(StudyError, match="cannot be read"):
        read_manifest(tmp_path / "elsewhere")
