"""A run directory belongs to one process and one configuration."""

import dataclasses
import json

import pytest

from whale_jax.config import ConfigError, RunConfig
from whale_jax.rundir import Inputs, claim, open_config

INPUTS = Inputs(data="d", harness="h", weights="w", tokenizer="t")


def with_seed(seed):
    base = RunConfig()
    return dataclasses.replace(base, run=dataclasses.replace(base.run, seed=seed))


def test_a_second_process_is_refused_while_the_first_lasts(tmp_path):
    with claim(tmp_path / "run"), pytest.raises(ConfigError, match="another process"), claim(tmp_path / "run"):
        pass
    with claim(tmp_path / "run"):
        pass


def test_the_same_configuration_goes_on(tmp_path):
    assert open_config(tmp_path, RunConfig(), INPUTS) == []
    assert open_config(tmp_path, RunConfig(), INPUTS) == []


def test_operational_settings_may_change(tmp_path):
    base = RunConfig()
    open_config(tmp_path, base, INPUTS)
    other = dataclasses.replace(base, rollout=dataclasses.replace(base.rollout, slots=3, rollout_driver="jetstream"))
    assert open_config(tmp_path, other, INPUTS) == []


def test_every_difference_is_named(tmp_path):
    open_config(tmp_path, with_seed(1), INPUTS)
    with pytest.raises(ConfigError) as error:
        open_config(tmp_path, with_seed(2), dataclasses.replace(INPUTS, data="e", weights="x"))
    assert "--seed was 1, is 2" in str(error.value)
    assert "the data changed" in str(error.value)
    assert "the checkpoint changed" in str(error.value)
    assert "harness" not in str(error.value)


def test_another_environment_is_told_and_goes_on(tmp_path):
    open_config(tmp_path, RunConfig(), INPUTS)
    path = tmp_path / "config.json"
    record = json.loads(path.read_text())
    record["environment"]["jax"] = "0.0.1"
    path.write_text(json.dumps(record))
    assert any(line.startswith("jax was 0.0.1") for line in open_config(tmp_path, RunConfig(), INPUTS))


def test_a_damaged_record_is_an_error(tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="damaged"):
        open_config(tmp_path, RunConfig(), INPUTS)
