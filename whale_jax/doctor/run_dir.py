"""The run directory: fresh, or that of a run which goes on with these settings and inputs."""

from pathlib import Path
from typing import Any

from whale_jax.assemble import read_harness
from whale_jax.config import ConfigError, RunConfig
from whale_jax.doctor.page import Verdict, fail, ok
from whale_jax.domains.domain import Domain
from whale_jax.qwen3_5.chat import ChatCodec
from whale_jax.rundir import Inputs, is_begun, look, refuse_inside
from whale_jax.training.fingerprint import fingerprint


def run_dir(config: RunConfig, checkpoint: Path, domain: Domain, codec: ChatCodec, params: Any) -> Verdict:
    """What the main job would say to `--run_dir` and `--harness`; nothing is written."""
    try:
        source = read_harness(config.model.harness) if config.model.harness else domain.h0
    except ConfigError as error:
        return fail("harness", str(error), "mend it; WORKSPACE.md is the contract")
    if config.run.run_dir is None:
        return ok("run_dir", "a fresh numbered folder under runs/")
    directory = Path(config.run.run_dir)
    inputs = Inputs.of(
        data=domain.data_hash,
        harness=source,
        weights=fingerprint(params),
        checkpoint=checkpoint,
        template=codec.template_sha256,
    )
    try:
        refuse_inside(directory, checkpoint)
        look(directory, config, inputs)
    except ConfigError as error:
        return fail("run_dir", str(error), "the settings and inputs that it was started with, or another --run_dir")
    return ok("run_dir", f"{directory}: {'a run that goes on' if is_begun(directory) else 'fresh'}")
