"""Exporting a run's weights: the returned pair's, any kept step's, and what is refused."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from whale_jax.assemble import checkpoint_directory
from whale_jax.config import RunConfig
from whale_jax.export import main
from whale_jax.qwen3_5.convert import load_checkpoint
from whale_jax.rundir import Inputs, open_config
from whale_jax.training.checkpoint import Checkpoints
from whale_jax.training.fingerprint import fingerprint
from whale_jax.training.optimizer import OptimizerSettings, make_optimizer
from whale_jax.training.step import TrainState

STEP = 3


@pytest.fixture(scope="module")
def source() -> Path:
    """The embedded demo checkpoint."""
    return checkpoint_directory(None)


@pytest.fixture(scope="module")
def initial(source):
    return load_checkpoint(source)[1]


@pytest.fixture(scope="module")
def trained(initial):
    return jax.tree.map(lambda leaf: np.asarray(leaf) * np.float32(1.5), initial)


@pytest.fixture(scope="module")
def run_dir(initial, trained, tmp_path_factory) -> Path:
    """What a run with one kept checkpoint leaves behind, as far as an export reads it."""
    directory = tmp_path_factory.mktemp("run")
    open_config(directory, RunConfig(), Inputs("data", "harness", fingerprint(initial), "tokenizer", "template"))
    params = jax.tree.map(jnp.asarray, trained)
    optimizer = make_optimizer(OptimizerSettings())
    state = TrainState(params, optimizer.init(params), jnp.int32(STEP))
    Checkpoints(directory / "checkpoints").save(STEP, state, {"version": STEP})
    return directory


def exported(directory: Path):
    return load_checkpoint(directory)[1]


def assert_equal(ours, theirs) -> None:
    for (path, a), b in zip(jax.tree.leaves_with_path(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_array_equal(a, b, err_msg=jax.tree_util.keystr(path))


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_a_kept_step(run_dir, trained, tmp_path, capsys):
    assert main(["export", f"--run_dir={run_dir}", f"--out={tmp_path / 'out'}", f"--step={STEP}"]) == 0
    assert "step 3" in capsys.readouterr().out
    assert_equal(exported(tmp_path / "out"), trained)


def test_step_0_is_the_source_to_the_bit(run_dir, source, tmp_path):
    assert main(["export", f"--run_dir={run_dir}", f"--out={tmp_path / 'out'}", "--step=0"]) == 0
    assert files(tmp_path / "out") == files(source)


def test_the_returned_pair_in_bf16(run_dir, trained, tmp_path):
    summary = run_dir / "summary.json"
    summary.write_text(json.dumps({"returned": {"step": STEP, "harness": "0" * 64}}))
    try:
        assert main(["export", f"--run_dir={run_dir}", f"--out={tmp_path / 'out'}", "--dtype=bfloat16"]) == 0
    finally:
        summary.unlink()
    params = exported(tmp_path / "out")
    assert_equal(params["embed"], trained["embed"].astype(jnp.bfloat16).astype(np.float32))
    assert_equal(params["linear"]["a_log"], trained["linear"]["a_log"])
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "no pair was returned yet; finish the run, or name a --step (0 or one of [3])"),
        (["--step=2"], "--step=2: "),
        (["--step=-1"], "step"),
        (["--dtype=int8"], "dtype"),
        (["more"], "unexpected arguments: more"),
    ],
)
def test_what_is_refused(run_dir, tmp_path, capsys, flags, message):
    assert main(["export", f"--run_dir={run_dir}", f"--out={tmp_path / 'out'}", *flags]) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert all(line.startswith("error: ") for line in printed.splitlines())
    assert not (tmp_path / "out").exists()


def test_directories_that_are_no_runs_and_full_targets(run_dir, tmp_path, capsys):
    assert main(["export", f"--run_dir={tmp_path}", f"--out={tmp_path / 'out'}"]) == 2
    assert "--run_dir must name a run directory" in capsys.readouterr().err
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("kept")
    assert main(["export", f"--run_dir={run_dir}", f"--out={tmp_path / 'out'}", "--step=0"]) == 2
    assert "exists already" in capsys.readouterr().err


def test_a_source_that_changed_is_refused(tmp_path, capsys):
    inputs = Inputs("data", "harness", "0" * 64, "tokenizer", "template")
    open_config(tmp_path, RunConfig(), inputs)
    assert main(["export", f"--run_dir={tmp_path}", f"--out={tmp_path / 'out'}", "--step=0"]) == 2
    assert "is not the checkpoint that" in capsys.readouterr().err
