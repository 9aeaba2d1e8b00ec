"""The weights of a run as a Hugging Face checkpoint: `python -m whale_jax.export --run_dir=… --out=…`.

Without `--step` it is the returned pair's weights, which a finished run has; with it, those after any training step
whose checkpoint is kept. Names, dtypes, metadata and everything that the text model does not own are those of the
checkpoint that the run started from. It is made in one process, whatever the mesh and the processes of the run; beside
the weights, once, it holds one tensor. Both places may be gs://. Exit status: 0 done, 2 refused, 8 a bucket cannot be
reached.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags as absl_flags

from whale_jax.assemble import checkpoint_directory
from whale_jax.config import ConfigError, RunConfig, on_this_machine
from whale_jax.ends import End
from whale_jax.flags import refuse_leftovers
from whale_jax.main import print_errors
from whale_jax.qwen3_5.config import ConfigError as CheckpointConfigError
from whale_jax.qwen3_5.config import Qwen35Config
from whale_jax.qwen3_5.convert import CheckpointError, each_leaf, export_checkpoint, load_checkpoint
from whale_jax.qwen3_5.params import abstract_params
from whale_jax.rundir import read_record, read_returned
from whale_jax.storage.bucket import BucketError, BucketUnreachable
from whale_jax.storage.home import Home
from whale_jax.storage.opening import run_to_read
from whale_jax.storage.outputs import folder_for
from whale_jax.training.checkpoint import CheckpointError as TrainingCheckpointError
from whale_jax.training.checkpoint import Checkpoints
from whale_jax.training.fingerprint import combine, describe

SOURCE_DTYPES = "source"


def export_run(
    run_dir: Path, out: Path, *, step: int | None = None, dtype: str | None = None, home: Home | None = None
) -> int:
    """Writes a checkpoint directory from a run directory.

    Args:
        run_dir: of `whale_jax.main`; it is only read.
        out: must not exist, or be empty.
        step: training step whose weights are wanted, 0 being those that the run started from; None: the returned
            pair's.
        dtype: as for `export_checkpoint`; None: the source's dtypes.
        home: of `run_dir`; default: what is there counts.

    Returns:
        The step exported.

    Raises:
        ConfigError: this is no run directory, or has no such step, or its first checkpoint changed.
        CheckpointError, FileExistsError: as `export_checkpoint`.
    """
    settings, weights = _read_config(run_dir / "config.json")
    if step is None:
        kept = Checkpoints(run_dir / "checkpoints").steps()
        step, _ = read_returned(run_dir, f"0 or one of {kept or 'none'}")
    source = checkpoint_directory(settings.model.checkpoint, settings.run.work_dir, settings.run.domain)
    try:
        found = combine({"/".join(path): describe(leaf) for path, leaf in each_leaf(source)})
    except (CheckpointConfigError, CheckpointError) as error:
        raise ConfigError(f"{source}: {error}") from error
    if found != weights:
        raise ConfigError(f"{source}: is not the checkpoint that {run_dir} started from (its weights' SHA-256 differs)")
    params = _restore(run_dir, step, Qwen35Config.from_dir(source), home) if step else load_checkpoint(source)[1]
    export_checkpoint(source, params, out, dtype=dtype)
    return step


def _read_config(path: Path) -> tuple[RunConfig, str]:
    """The run's settings, and the SHA-256 of the weights that it started from."""
    record = read_record(path)
    try:
        return RunConfig.from_values(on_this_machine(record["settings"])), record["inputs"]["weights"]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: not the settings of a run of this version ({error})") from error


def _restore(run_dir: Path, step: int, config: Qwen35Config, home: Home | None) -> Any:
    """The weights alone: an optimizer's state is several times as large."""
    like = abstract_params(config)
    try:
        return Checkpoints(run_dir / "checkpoints", home=home).restore(step, like, "params/")[0]
    except TrainingCheckpointError as error:
        raise ConfigError(f"--step={step}: {error}") from error


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns its exit status."""
    values = absl_flags.FlagValues()
    module = {"flag_values": values, "module_name": "the export"}
    absl_flags.DEFINE_string("run_dir", None, "run directory to read, local or gs://", required=True, **module)
    absl_flags.DEFINE_string(
        "out", None, "directory to write, local or gs://; must not exist, or be empty", required=True, **module
    )
    absl_flags.DEFINE_integer("step", None, "training step; default: the returned pair's", lower_bound=0, **module)
    absl_flags.DEFINE_enum(
        "dtype", SOURCE_DTYPES, [SOURCE_DTYPES, "float32", "bfloat16", "float16"],
        "dtype of the matrices; source: each as in the checkpoint that the run started from", **module
    )  # fmt: skip
    absl_flags.DEFINE_bool("help", False, "print all flags and stop", short_name="h", **module)
    try:
        if "--help" in argv or "-h" in argv:
            print(f"{__doc__}\n{values.get_help()}")
            return 0
        refuse_leftovers(values(list(argv)))
        dtype = None if values["dtype"].value == SOURCE_DTYPES else values["dtype"].value
        out = str(values["out"].value)
        with run_to_read(str(values["run_dir"].value)) as home, folder_for("out", out) as folder:
            step = export_run(home.directory, folder, step=values["step"].value, dtype=dtype, home=home)
    except BucketUnreachable as error:
        print_errors(error)
        return End.BUCKET_UNREACHABLE
    except (absl_flags.Error, BucketError, ConfigError, CheckpointError, FileExistsError) as error:
        print_errors(error)
        return 2
    print(f"weights after training step {step} in {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
