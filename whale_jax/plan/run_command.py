"""`python -m whale_jax.plan --flagfile=…`: a whole run on a topology, from the settings that the main job reads."""

import dataclasses
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
from absl import flags as absl_flags

from whale_jax import flags
from whale_jax.config import ConfigError, RunConfig
from whale_jax.plan.calibration import Calibration, CalibrationError
from whale_jax.plan.chips import CHIPS, Topology, TopologyError, topology
from whale_jax.plan.compiled import default_folder
from whale_jax.plan.hlo import HloError
from whale_jax.plan.hours import Assumptions
from whale_jax.plan.live import Spread
from whale_jax.plan.plan import PlanError
from whale_jax.plan.prices import PriceError, Prices
from whale_jax.plan.run_plan import plan_run
from whale_jax.plan.run_report import page
from whale_jax.plan.sizes import SIZES, config_of
from whale_jax.qwen3_5.config import ConfigError as CheckpointConfigError
from whale_jax.qwen3_5.sharding import ShardingError
from whale_jax.storage.bucket import BucketError

HOSTED_SECONDS = 900.0
"""A session of a hosted proposer or an agent, where nothing else is said."""


def asks(argv: Sequence[str]) -> bool:
    """Whether a command line is about a whole run."""
    return any(re.match(r"--?flagfile\b", argument) for argument in argv[1:])


def define(values: absl_flags.FlagValues) -> None:
    """The run's settings, and what a plan of it takes beside them."""
    flags.define(values)
    own = {"flag_values": values, "module_name": "whale_jax.plan, a whole run"}
    absl_flags.DEFINE_string(
        "topology", "v5e:4x4", f"chip ({', '.join(CHIPS)}) and grid, or here: the devices present", **own
    )
    absl_flags.DEFINE_string(
        "model", None, f"{', '.join(SIZES)}, or a checkpoint folder; default: --checkpoint, or the size in the "
        "flagfile's name", **own,
    )  # fmt: skip
    absl_flags.DEFINE_enum_class("live", Spread.LONG_TAIL, Spread, "how lengths are spread", **own)
    absl_flags.DEFINE_float(
        "episode_tokens", 0.0, "tokens sampled in an episode on average; 0: --live over --assistant_tokens",
        lower_bound=0, **own,
    )  # fmt: skip
    absl_flags.DEFINE_float(
        "context_tokens", 0.0, "other tokens of an episode on average; 0: --live over the rest of --max_len",
        lower_bound=0, **own,
    )  # fmt: skip
    absl_flags.DEFINE_float(
        "accepted_share", 0.5, "share of a step's episodes that are trained on", lower_bound=0, upper_bound=1, **own
    )
    absl_flags.DEFINE_float(
        "proposer_minutes", None, "of a proposer's session; default: 15 for gemini and command, 0 for the others",
        lower_bound=0, **own,
    )  # fmt: skip
    absl_flags.DEFINE_string("calibration", None, "file of `whale_jax.doctor --calibration_out`", **own)
    absl_flags.DEFINE_string("prices", None, "price file in the form of whale_jax/plan/prices.json", **own)
    absl_flags.DEFINE_string("price", "on_demand", "kind of price in that file", **own)
    absl_flags.DEFINE_string("plan_cache", None, "folder of compiled plans; default: in the user's cache", **own)
    absl_flags.DEFINE_bool("json", False, "print one JSON object as the last line", **own)


def run(argv: Sequence[str]) -> int:
    """Plans the run of a command line; returns the exit status: 0 planned, 2 refused."""
    values = absl_flags.FlagValues()
    define(values)
    if "--help" in argv or "-h" in argv:
        print(f"{__doc__}\n{values.get_help()}")
        return 0
    try:
        config = flags.parse(argv, values)
        model = _model(argv, values, config)
        shape = config_of(model)
        calibration = _calibration(values)
        prices = Prices.read(Path(values["prices"].value) if values["prices"].value else None)
        where = _where(str(values["topology"].value), calibration)
        found = plan_run(
            config,
            shape,
            where,
            assumed=_assumed(values, config),
            calibration=calibration,
            prices=prices,
            price_kind=str(values["price"].value),
            folder=Path(values["plan_cache"].value or default_folder()),
        )
    except (
        BucketError,
        CalibrationError, CheckpointConfigError, ConfigError, HloError, PlanError, PriceError, ShardingError,
        TopologyError,
    ) as error:  # fmt: skip
        return _refuse(str(error))
    except OSError as error:
        return _refuse(f"--plan_cache: {error}")
    print(page(found, model))
    if values["json"].value:
        print(json.dumps(found.as_json(model)))
    return 0


def _refuse(message: str) -> int:
    for line in message.splitlines():
        print(f"plan: {line}", file=sys.stderr)
    return 2


def _model(argv: Sequence[str], values: absl_flags.FlagValues, config: RunConfig) -> str:
    """What `--model` or `--checkpoint` names, or the size in a flagfile's name."""
    named = values["model"].value or config.model.checkpoint
    if named:
        return str(named)
    for argument in reversed(argv[1:]):
        size = re.search(rf"[_\-/=]({'|'.join(map(re.escape, SIZES))})\.flags$", argument, re.IGNORECASE)
        if size:
            return size[1].lower()
    raise PlanError(f"which model: name --model ({', '.join(SIZES)}, or a checkpoint folder) or --checkpoint")


def _calibration(values: absl_flags.FlagValues) -> Calibration:
    path = values["calibration"].value
    return Calibration.read(Path(path)) if path else Calibration.assumed()


def _where(name: str, calibration: Calibration) -> Topology:
    if name != "here":
        jax.config.update("jax_platforms", "cpu")  # nothing runs, so no accelerator need be taken
    found = topology(name)
    return dataclasses.replace(found, chip=calibration.for_chip(found.chip, name))


def _assumed(values: absl_flags.FlagValues, config: RunConfig) -> Assumptions:
    minutes: Any = values["proposer_minutes"].value
    hosted = config.search.proposer in ("gemini", "command")
    return Assumptions(
        spread=values["live"].value or Spread.LONG_TAIL,
        episode_tokens=values["episode_tokens"].value or 0.0,
        context_tokens=values["context_tokens"].value or 0.0,
        accepted_share=values["accepted_share"].value or 0.0,
        proposer_seconds=60 * minutes if minutes is not None else HOSTED_SECONDS * hosted,
    )
