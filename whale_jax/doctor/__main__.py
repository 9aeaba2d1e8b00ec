"""Will a run work on this machine? One page of verdicts: `python -m whale_jax.doctor --checkpoint=… [--run_dir=…]`.

Takes every flag of the main job (`--flagfile=configs/searchqa_2b.flags` and the rest), so what is checked is that run:
devices, versions, sandbox, disk, data, the real weights, tokenizer and template, logits against `transformers`, an
export, and one extend, decode, weight swap and training step beside their plans. `--calibration_out` keeps how far
steps stay behind their bounds, for `whale_jax.plan --calibration`.

Exit status: 0 go, 1 no-go, 2 bad settings.
"""

import gc
import json
import logging
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
from absl import flags as absl_flags

from whale_jax import flags
from whale_jax.assemble import checkpoint_directory
from whale_jax.config import ConfigError, RunConfig
from whale_jax.doctor import checkpoint, machine, steps
from whale_jax.doctor.data import data
from whale_jax.doctor.page import Verdict, as_json, conclusion, fail, goes
from whale_jax.doctor.probe import Measured, Probe, Size, factors, here
from whale_jax.doctor.run_dir import run_dir
from whale_jax.domains.domain import Domain
from whale_jax.main import print_errors, use_all_cores
from whale_jax.mesh import on_the_host
from whale_jax.plan import model_cost
from whale_jax.plan.calibration import Calibration
from whale_jax.plan.hlo import HloError
from whale_jax.plan.programs import Step
from whale_jax.qwen3_5.chat import ChatCodec
from whale_jax.qwen3_5.config import ConfigError as CheckpointConfigError
from whale_jax.qwen3_5.config import Qwen35Config
from whale_jax.qwen3_5.convert import CheckpointError, load_checkpoint
from whale_jax.qwen3_5.sharding import ShardingError
from whale_jax.storage.bucket import BucketError
from whale_jax.storage.opening import on_this_disk


class Doctor:
    """One examination. `verdicts` are those so far, `measured` the steps that were run."""

    def __init__(self, config: RunConfig, size: Size) -> None:
        """Raises ConfigError: there is no checkpoint."""
        self._config, self._size = config, size
        self.verdicts: list[Verdict] = []
        self.measured: dict[Step, Measured] = {}
        self._directory = checkpoint_directory(config.model.checkpoint, config.run.work_dir, config.run.domain)
        self.topology = here()

    def examine(self) -> Iterator[Verdict]:
        """All verdicts, as they come; what rests on something that failed is left out."""
        for verdict in self._all():
            self.verdicts.append(verdict)
            yield verdict

    def _all(self) -> Iterator[Verdict]:
        config, directory = self._config, self._directory
        yield machine.devices(config)
        yield machine.versions(jax.default_backend())
        yield machine.sandbox(config.rollout.sandbox)
        verdict, shape = checkpoint.fields(directory)
        yield verdict
        try:
            codec = ChatCodec.from_dir(directory)
        except CheckpointConfigError as error:
            yield fail(
                "tokens", str(error), "take tokenizer.json and the template that were published with the weights"
            )
            codec = None
        if codec is not None and shape is not None:
            yield checkpoint.tokens(codec, shape)
            yield checkpoint.template(codec, directory)
        verdicts, domain = data(config, None if codec is None else codec.count_tokens)
        yield from verdicts
        if shape is not None:
            yield from self._with_weights(directory, shape, codec, domain)

    def _with_weights(
        self, directory: Path, shape: Qwen35Config, codec: ChatCodec | None, domain: Domain | None
    ) -> Iterator[Verdict]:
        config, files = self._config, sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
        yield from machine.room(config, model_cost.parameter_count(shape), files)
        began = time.perf_counter()
        try:
            _, loaded = load_checkpoint(directory, shardings=on_the_host(shape))
        except CheckpointError as error:
            yield fail("weights", str(error), "download the files that it names again")
            return
        params = [jax.block_until_ready(loaded)]
        del loaded
        yield checkpoint.weights(shape, params[0], time.perf_counter() - began)
        if codec is not None:
            if domain is not None:
                yield run_dir(config, directory, domain, codec, params[0])
            prompts = checkpoint.prompt_ids(codec)
            yield from checkpoint.against_transformers(directory, prompts, checkpoint.logits(shape, params[0], prompts))
        yield steps.export(directory, params[0], on_this_disk(config.run))
        yield from self._steps(shape, params)

    def _steps(self, shape: Qwen35Config, params: list[Any]) -> Iterator[Verdict]:
        """Serving first, then training, which takes the parameters over: there are never more copies than needed."""
        probe = Probe.of(self._config, shape, self._size, jax.default_backend())
        try:
            serving = steps.Serving(self._config, shape, params[0], probe, self.topology)
            yield serving.extend()
            yield serving.decode()
            yield serving.swap()
            self.measured |= serving.measured
            del serving
            gc.collect()  # jitted methods hold the engine in a circle
            for found in steps.training(self._config, shape, params, probe, self.topology):
                if isinstance(found, Measured):
                    self.measured[Step.TRAIN] = found
                else:
                    yield found
        except (HloError, ShardingError, ValueError) as error:
            yield fail("steps", str(error), "settings that these devices can divide: --rows, --slots, --max_len")
        except jax.errors.JaxRuntimeError as error:
            first = str(error).strip().splitlines()[0]
            yield fail("steps", first, "fewer --slots, shorter --max_len or --row_len, --remat=group, or more chips")

    def calibration(self) -> Calibration | None:
        """The factors, if every step was measured."""
        found = factors(self.measured)
        if found is None or self.topology.chip is None:
            return None
        measured = {step.value: one.as_json() for step, one in self.measured.items()}
        return Calibration(found, self.topology.chip, "measured", measured)


def main(argv: Sequence[str]) -> int:
    """Prints the page; returns the exit status."""
    values = absl_flags.FlagValues()
    flags.define(values)
    module = {"flag_values": values, "module_name": "the doctor"}
    out = absl_flags.DEFINE_string("calibration_out", None, "file for the measured factors", **module)
    size = absl_flags.DEFINE_enum_class(
        "probe", Size.AUTO, Size, "sizes of the steps: run: the run's own; small; auto: small for large models on CPUs",
        **module,
    )  # fmt: skip
    as_object = absl_flags.DEFINE_bool("json", False, "print one JSON object as the last line", **module)
    show_help = absl_flags.DEFINE_bool("help", False, "print all flags and stop", short_name="h", **module)
    try:
        config = flags.parse(argv, values)
        if show_help.value:
            print(f"{__doc__}\n{values.get_help()}")
            return 0
        doctor = Doctor(config, size.value or Size.AUTO)
        for verdict in doctor.examine():
            print(verdict, flush=True)
    except (BucketError, ConfigError) as error:
        print_errors(error)
        return 2
    status = _write_calibration(doctor, out.value)
    print(conclusion(doctor.verdicts))
    if as_object.value:
        measured = {step.value: one.as_json() for step, one in doctor.measured.items()}
        print(json.dumps(as_json(doctor.verdicts, measured=measured)))
    return status or (0 if goes(doctor.verdicts) else 1)


def _write_calibration(doctor: Doctor, out: str | None) -> int:
    if out is None:
        return 0
    calibration = doctor.calibration()
    if calibration is None:
        print(f"error: --calibration_out={out}: not written, since not every step was measured", file=sys.stderr)
        return 1
    try:
        calibration.write(Path(out))
    except OSError as error:
        print(f"error: --calibration_out={out}: {error.strerror}", file=sys.stderr)
        return 2
    print(f"calibration in {out}: {', '.join(f'{step} {factor:.1f}' for step, factor in calibration.factors.items())}")
    return 0


if __name__ == "__main__":
    use_all_cores()
    logging.basicConfig(level=logging.WARNING)
    with tempfile.TemporaryDirectory() as compiled:  # a step is planned and then run: it is compiled once
        jax.config.update("jax_compilation_cache_dir", compiled)
        sys.exit(main(sys.argv))
