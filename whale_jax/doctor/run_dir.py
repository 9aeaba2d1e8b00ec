"""The run directory: fresh, or that of a run which goes on with these settings and inputs."""

from pathlib import Path
from typing import Any

from whale_jax.assemble import read_harness
from whale_jax.config import ConfigError, RunConfig
from whale_jax.doctor.page import Verdict, fail, ok
from whale_jax.domains.domain import Domain
from whale_jax.qwen3_5.chat import ChatCodec
from whale_jax.rundir import Inputs, is_begun, look, refuse_inside
from whale_jax.storage.bucket import BucketError
from whale_jax.storage.opening import run_to_look_at, try_writing
from whale_jax.training.fingerprint import fingerprint


def run_dir(config: RunConfig, checkpoint: Path, domain: Domain, codec: ChatCodec, params: Any) -> Verdict:
    """What the main job would say to `--run_dir` and `--harness`; nothing is left there."""
    try:
        source = read_harness(config.model.harness, config.run.work_dir) if config.model.harness else domain.h0
    except ConfigError as error:
        return fail("harness", str(error), "mend it; WORKSPACE.md is the contract")
    if config.run.run_dir is None:
        return ok("run_dir", "a fresh numbered folder under runs/")
    inputs = Inputs.of(
        data=domain.data_hash,
        harness=source,
        weights=fingerprint(params),
        checkpoint=checkpoint,
        template=codec.template_sha256,
    )
    try:
        with run_to_look_at(config.run.run_dir) as directory:
            refuse_inside(directory, checkpoint)
            look(directory, config, inputs)
            begun = is_begun(directory)
        try_writing(config.run.run_dir)
    except BucketError as error:
        return fail("run_dir", str(error), "what it says, or another --run_dir")
    except ConfigError as error:
        return fail("run_dir", str(error), "the settings and inputs that it was started with, or another --run_dir")
    return ok("run_dir", f"{config.run.run_dir}: {'a run that goes on' if begun else 'fresh'}")
