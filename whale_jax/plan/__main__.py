"""`python -m whale_jax.plan`: does a step fit on a TPU topology, and how fast can it be at best, without a TPU.

    python -m whale_jax.plan --model=2b --topology=v5e:4x4 --step=train --batch=16 --seq_len=32768
    python -m whale_jax.plan --model=4b --topology=v5p:2x2x2 --step=decode --batch=64 --seq_len=32768 --fit --json

With a flagfile, a whole run: every stage together, hours and money (`run_command`).

    python -m whale_jax.plan --flagfile=configs/searchqa_2b.flags --topology=v5e:4x4

Exit status: 0 when the plan was made, whether it fits or not; 2 for settings that no plan can be made of.
"""

import json
import sys
from collections.abc import Sequence
from typing import Any

import jax
from absl import app, flags

from whale_jax.plan import run_command
from whale_jax.plan.chips import CHIPS, TopologyError, topology
from whale_jax.plan.hlo import HloError
from whale_jax.plan.live import Spread
from whale_jax.plan.plan import PlanError, largest_batch, plan
from whale_jax.plan.programs import Step, Work
from whale_jax.plan.report import table
from whale_jax.plan.sizes import SIZES, config_of
from whale_jax.qwen3_5.config import ConfigError
from whale_jax.qwen3_5.remat import Remat
from whale_jax.qwen3_5.sharding import AXES, ShardingError
from whale_jax.training.optimizer import OptimizerName


def define(values: flags.FlagValues) -> None:
    """Defines the flags of the command."""
    own = {"flag_values": values, "module_name": "whale_jax.plan"}
    flags.DEFINE_string("model", "2b", f"{', '.join(SIZES)}, or a checkpoint folder", **own)
    flags.DEFINE_string(
        "topology", "v5e:4x4", f"chip ({', '.join(CHIPS)}) and grid, or here: the devices present", **own
    )
    flags.DEFINE_enum_class("step", Step.TRAIN, Step, "which step to compile", **own)
    flags.DEFINE_integer(
        "batch", 16, "rows of the training step, or slots, on all chips together", lower_bound=1, **own
    )
    flags.DEFINE_integer("seq_len", 32_768, "positions of a row, or the room of a slot", lower_bound=1, **own)
    flags.DEFINE_integer("chunk_len", 512, "new tokens per row of an extend step", lower_bound=1, **own)
    flags.DEFINE_enum_class("remat", Remat.LAYER, Remat, "what the backward pass of training recomputes", **own)
    flags.DEFINE_enum_class("optimizer", OptimizerName.ADAMW, OptimizerName, "update rule of training", **own)
    flags.DEFINE_enum_class("live", Spread.LONG_TAIL, Spread, "how the live lengths of slots are spread", **own)
    flags.DEFINE_bool("dense", False, "give every slot pages for its whole room", **own)
    for axis in AXES:
        flags.DEFINE_integer(axis, None, f"chips along the {axis} axis; name all three or none", lower_bound=1, **own)
    flags.DEFINE_bool("fit", False, "search for the largest batch that fits, in multiples of --batch", **own)
    flags.DEFINE_bool("json", False, "print one JSON object as the last line", **own)


def run(values: flags.FlagValues) -> int:
    """Plans what the flags say and prints it. Returns the exit status."""
    sizes: list[Any] = [values[axis].value for axis in AXES]
    named = [size for size in sizes if size is not None]
    if named and len(named) < len(AXES):
        return _refuse("name all of --data, --fsdp and --tensor, or none")
    mesh = (named[0], named[1], named[2]) if named else None
    if values.topology != "here":
        jax.config.update("jax_platforms", "cpu")  # nothing runs, so no accelerator need be taken
    try:
        config = config_of(values.model)
        work = Work(
            config,
            values.step,
            values.batch,
            values.seq_len,
            values.chunk_len,
            remat=values.remat,
            optimizer=values.optimizer,
            spread=values.live,
            dense=values.dense,
        )
        where = topology(values.topology)
        if values.fit:
            found = largest_batch(work, where, mesh)
            if found is None:
                return _refuse(f"--fit: not even --batch={values.batch} fits")
            work, result = found
        else:
            result = plan(work, where, mesh)
    except (ConfigError, HloError, PlanError, ShardingError, TopologyError) as error:
        return _refuse(str(error))
    print(table(work, where, values.model, result))
    if values.json:
        print(json.dumps(result.as_json(work, where, values.model)))
    return 0


def _refuse(message: str) -> int:
    print(f"plan: {message}", file=sys.stderr)
    return 2


def main(argv: Sequence[str]) -> int:
    if len(argv) > 1:
        return _refuse(f"unexpected arguments: {' '.join(argv[1:])} (flags are written --name=value)")
    return run(flags.FLAGS)


if __name__ == "__main__":
    if run_command.asks(sys.argv):
        from whale_jax.main import use_all_cores  # the rest of a plan does without the main job

        use_all_cores()  # --topology=here: the devices that a run would have
        sys.exit(run_command.run(sys.argv))
    define(flags.FLAGS)
    app.run(main)
