"""Settings, flags, and what is refused before anything starts."""

import dataclasses

import pytest
from absl import flags as absl_flags

from whale_jax import flags
from whale_jax.config import ConfigError, RunConfig, all_settings
from whale_jax.rundir import fresh_run_dir


def parse(*args):
    values = absl_flags.FlagValues()
    flags.define(values)
    return flags.parse(["main", *args], values)


def test_no_flags_is_the_default_configuration():
    assert parse() == RunConfig()


def test_every_setting_has_help_and_one_flag():
    names = [spec.name for _, spec in all_settings()]
    assert len(names) == len(set(names))
    assert all(len(spec.metadata["help"]) > 10 for _, spec in all_settings())


def test_flagfile_round_trip(tmp_path):
    config = parse("--seed=5", "--schedule=adaptive", "--learning_rate=0.001", "--nothinking", "--harness=h.py")
    path = tmp_path / "run.flags"
    path.write_text(flags.to_flagfile(config))
    assert parse(f"--flagfile={path}") == config


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--schedule=sometimes"], "--schedule=sometimes: value should be one of"),
        (["--seed=x"], "--seed=x"),
        (["--no_such_flag=1"], "no_such_flag"),
        (["leftover"], "unexpected arguments: leftover"),
        (["--weight_phase_epochs=-1"], "--weight_phase_epochs must be > 0, got -1.0"),
        (["--learning_rate=nan"], "--learning_rate must be a finite number, got nan"),
        (["--weight_budget_epochs=inf"], "--weight_budget_epochs must be a finite number, got inf"),
        (["--run_dir=/tmp/\udcff"], "--run_dir must be UTF-8 text, got '/tmp/\\udcff'"),
        (["--max_len=16"], "--extend_chunk must be <= --max_len (16), got 32"),
        (["--top_p=1.5"], "--top_p must be <= 1"),
        (["--row_len=100"], "--row_len must be >= --max_len"),
        (["--min_iterations=9", "--max_iterations=8"], "--min_iterations must be <= --max_iterations"),
        (["--select_on=test"], "--select_on=test needs --test_schedule=always"),
    ],
)
def test_bad_settings_are_named(args, message):
    with pytest.raises(ConfigError) as error:
        parse(*args)
    assert message in str(error.value)


def test_all_problems_are_listed_at_once():
    with pytest.raises(ConfigError) as error:
        parse("--top_p=1.5", "--minibatch=0", "--clip_norm=-1")
    assert len(str(error.value).splitlines()) == 3


def test_a_problem_of_a_flagfile_names_the_file(tmp_path):
    path = tmp_path / "x.flags"
    path.write_text("--weight_phase_epochs=-1\n")
    with pytest.raises(ConfigError) as error:
        parse(f"--flagfile={path}")
    assert str(error.value) == f"{path}: --weight_phase_epochs must be > 0, got -1.0"


def test_operational_settings_are_outside_the_hash():
    base = RunConfig()
    for group, spec in all_settings():
        old = getattr(getattr(base, group), spec.name)
        new = (old or 0) + 1 if isinstance(old, int | float) else f"{old}x"
        part = dataclasses.replace(getattr(base, group), **{spec.name: new})
        changed = dataclasses.replace(base, **{group: part})
        assert (changed.hash() == base.hash()) == spec.metadata["operational"], spec.name


def test_unknown_values_are_refused():
    with pytest.raises(ConfigError, match="--nonsense"):
        RunConfig.from_values({"nonsense": 1})


def test_run_directories_are_numbered(tmp_path):
    assert [fresh_run_dir(tmp_path).name for _ in range(3)] == ["0000", "0001", "0002"]
    (tmp_path / "notes").mkdir()
    (tmp_path / "²").mkdir()
    assert fresh_run_dir(tmp_path).name == "0003"


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "runs").write_text("")
    with pytest.raises(ConfigError, match=r"runs: cannot be written .* --run_dir"):
        fresh_run_dir(tmp_path / "runs")


def test_a_flagfile_that_is_no_text_is_named(tmp_path):
    path = tmp_path / "x.flags"
    path.write_bytes(b"\xff\xfe--seed=1\n")
    with pytest.raises(ConfigError, match="not UTF-8"):
        parse(f"--flagfile={path}")
