"""SearchQA's settings reach the domain, and the paper's flagfile passes a dry run on prepared data."""

import json

import pytest
from absl import flags as absl_flags

from tests.whale_jax.domains.searchqa.test_prepare import jsonl, rows
from whale_jax import flags
from whale_jax.config import ConfigError, RunConfig
from whale_jax.domains.searchqa.prepare import Sizes, prepare
from whale_jax.domains.searchqa.public_sets import TEST_PARTS
from whale_jax.main import main


def parse(*args):
    values = absl_flags.FlagValues()
    flags.define(values)
    return flags.parse(["main", *args], values)


def test_settings_are_passed_on_by_the_loaders_names():
    assert RunConfig().searchqa_options() == {}
    given = {"retriever_url": "http://x/retrieve", "judge_model": "m", "judge_prompt": "p", "judge_cache": "c"}
    config = parse("--task_dir=d", *(f"--{name}={value}" for name, value in given.items()))
    assert config.searchqa_options() == given
    for name in ("retriever_url", "judge_cache"):  # where something is, not what
        assert name not in config.hashed_values()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--judge_prompt=p"], "--judge_prompt needs --judge_model"),
        (["--judge_cache=c"], "--judge_cache needs --judge_model"),
        (["--retriever_url=http://x"], "--retriever_url needs --task_dir"),
    ],
)
def test_settings_that_need_others(args, message):
    with pytest.raises(ConfigError, match=message):
        parse(*args)


def test_the_papers_settings_pass_a_dry_run_on_prepared_data(tmp_path, capsys):
    """The weights are the demo's: the settings do not depend on the model's size."""
    public = tmp_path / "public"
    for name, part in [*TEST_PARTS.items(), ("nq", "train"), ("hotpotqa", "train")]:
        (public / name).mkdir(parents=True, exist_ok=True)
        (public / name / f"{part}.jsonl").write_bytes(jsonl(rows(name, part, 180)))
    small = {"nq": 4, "hotpotqa": 4}
    prepare(public, tmp_path / "data", seed=42, sizes=Sizes(300, small, small, 2))
    corpus = {"id": "1", "contents": '"T"\nx'}
    (tmp_path / "data" / "corpus.jsonl").write_text(json.dumps(corpus) + "\n", encoding="utf-8")
    arguments = ["--flagfile=configs/searchqa_2b.flags", f"--task_dir={tmp_path / 'data'}", "--dry_run"]
    assert main(["main", *arguments]) == 0
    printed = capsys.readouterr().out
    assert "300 weight, 8 harness, 8 validation, 14 test tasks" in printed
    assert "--prompts_per_step=256" in printed
    assert main(["main", *arguments, "--retriever_url=ftp://x"]) == 2
    assert "is no URL of a retrieval service" in capsys.readouterr().err
