"""A run directory belongs to one process and one configuration."""

import dataclasses
import json

import pytest

from whale_jax.config import ConfigError, RunConfig
from whale_jax.rundir import Inputs, claim, open_config, refuse_inside, remember

INPUTS = Inputs(data="d", harness="h", weights="w", tokenizer="t", template="c")


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
    with pytest.raises(ConfigError, match="damaged"), claim(tmp_path):
        pass


def test_somebody_elses_config_json_makes_no_run_directory(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "qwen3_5_text"}')
    with pytest.raises(ConfigError, match="is not the record of a run"), claim(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_warnings_of_every_job_are_kept_once_each(tmp_path):
    assert remember(tmp_path, []) == []
    assert list(tmp_path.iterdir()) == []
    assert remember(tmp_path, ["--sandbox=none: …"]) == ["--sandbox=none: …"]
    assert remember(tmp_path, ["jax was 1, is 2"]) == ["--sandbox=none: …", "jax was 1, is 2"]
    assert remember(tmp_path, ["--sandbox=none: …"]) == ["--sandbox=none: …", "jax was 1, is 2"]


def test_a_run_directory_in_the_checkpoint_is_refused(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "model")
    for inside in ("model", "model/runs/0000", "link/run"):
        with pytest.raises(ConfigError, match="lies in the checkpoint's folder"):
            refuse_inside(tmp_path / inside, tmp_path / "model")
    refuse_inside(tmp_path / "model-run", tmp_path / "model")


def test_another_chat_template_is_another_run(tmp_path):
    open_config(tmp_path, RunConfig(), INPUTS)
    with pytest.raises(ConfigError, match="the chat template changed"):
        open_config(tmp_path, RunConfig(), dataclasses.replace(INPUTS, template="d"))


def test_the_same_files_elsewhere_are_the_same_run(tmp_path):
    base = RunConfig()
    open_config(tmp_path, base, INPUTS)
    moved = dataclasses.replace(base, model=dataclasses.replace(base.model, checkpoint="/moved", harness="./h.py"))
    assert open_config(tmp_path, moved, INPUTS) == []
