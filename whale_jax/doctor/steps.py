"""One extend, decode, weight swap, export and training step of the real model, beside their plans."""

import statistics
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from whale_jax.assemble import optimizer_settings
from whale_jax.config import RunConfig
from whale_jax.doctor.page import Verdict, fail, ok, warn
from whale_jax.doctor.probe import Measured, Memory, Probe, free_host_bytes, live_bytes, timed
from whale_jax.mesh import mesh_flags
from whale_jax.plan.chips import GIB, Topology
from whale_jax.plan.live import Spread, live_lengths
from whale_jax.plan.plan import Plan, plan
from whale_jax.plan.programs import LOSS_CHUNK, Step, Work, default_mesh
from whale_jax.qwen3_5.config import Qwen35Config
from whale_jax.qwen3_5.convert import CheckpointError, export_checkpoint
from whale_jax.qwen3_5.params import cast_params
from whale_jax.qwen3_5.remat import Remat
from whale_jax.qwen3_5.sharding import Placement, make_mesh
from whale_jax.serving.driver import Sampling
from whale_jax.serving.engine import DecodeRow, Engine, ExtendRow
from whale_jax.training.optimizer import OptimizerName, make_optimizer
from whale_jax.training.packing import Batch
from whale_jax.training.step import TrainingDiverged, TrainStep

_GREEDY = Sampling(temperature=0.0)
_SLOW = 8.0
"""A step that takes so many times its bound is looked at."""
_MORE, _SLACK = 1.1, GIB // 4
"""Memory over what was planned that is looked at: a share, and bytes beside it."""


def export(directory: Path, params: Any, near: Path) -> Verdict:
    """Writes the untrained weights and compares every byte with the source.

    Args:
        near: the copy is made on this folder's disk, and removed.
    """
    while not near.exists():
        near = near.parent
    try:
        with tempfile.TemporaryDirectory(dir=near, prefix=".doctor-") as folder:
            out = Path(folder) / "export"
            export_checkpoint(directory, params, out)
            names = [path.relative_to(directory) for path in sorted(directory.rglob("*")) if path.is_file()]
            size = sum((directory / name).stat().st_size for name in names)
            other = [str(name) for name in names if not _same(directory / name, out / name)]
    except (CheckpointError, OSError) as error:
        return fail("export", str(error), "more disk there, or another --run_dir")
    if other:
        return fail("export", f"{', '.join(other)} differ from the source", "an untrained export must not: report it")
    return ok("export", f"{len(names)} files, {size / GIB:.2f} GiB, bit-identical to the source")


def _same(one: Path, other: Path) -> bool:
    with one.open("rb") as first, other.open("rb") as second:
        while piece := first.read(1 << 24):
            if piece != second.read(1 << 24):
                return False
        return not second.read(1)


class Serving:
    """An engine of the run's kind on the first device, and what its steps took."""

    def __init__(self, config: RunConfig, shape: Qwen35Config, params: Any, probe: Probe, topology: Topology) -> None:
        self._device = jax.local_devices()[0]
        self._params, self._shape, self._config = params, shape, config
        self._topology = Topology(topology.name, topology.chip, [self._device])
        self._rng = np.random.default_rng(0)
        dtype = jnp.dtype(config.model.compute_dtype)
        self._served = cast_params(params, dtype)
        self._memory = Memory(self._device, beside=live_bytes())
        self._engine = Engine(
            shape,
            self._served,
            slots=probe.slots,
            max_len=probe.max_len,
            stop_ids=(-1,),  # no id ends a reply here
            extend_chunk=probe.extend_chunk,
            decode_steps=probe.decode_steps,
            max_top_k=config.rollout.top_k,
            compute_dtype=dtype,
            device=self._device,
        )
        self._engine.warm_up()
        self._lengths: list[int] = []
        self._last: list[int] = []
        self.measured: dict[Step, Measured] = {}

    def _plan(self, step: Step, batch: int) -> Plan:
        work = Work(
            self._shape, step, batch, self._engine.max_len, self._engine.extend_chunk, dense=True,
            compute_dtype=self._config.model.compute_dtype,
        )  # fmt: skip
        return plan(work, self._topology, (1, 1, 1))

    def extend(self) -> Verdict:
        """Fills the slots as far as they are filled in a run, chunk by chunk."""
        engine = self._engine
        room = engine.max_len - 4 * engine.decode_steps
        self._lengths = [
            max(1, min(room, length)) for length in live_lengths(Spread.LONG_TAIL, engine.slots, engine.max_len)
        ]
        self._last = [0] * engine.slots
        taken, seconds, finite = [0] * engine.slots, [], True
        self._memory.begin()
        while pending := [slot for slot in range(engine.slots) if taken[slot] < self._lengths[slot]]:
            rows = [self._row(slot, taken) for slot in pending[: engine.extend_rows]]
            found: list[Any] = []
            seconds.append(
                timed(lambda rows=rows, found=found: found.append(engine.extend(rows)) or found[0].row(0).ids)
            )
            for index, row in enumerate(rows):
                sampled = found[0].row(index)
                finite &= sampled.finite
                self._last[row.slot] = sampled.ids[0]
        most = self._memory.most()  # before the plan is compiled
        planned = self._plan(Step.EXTEND, engine.extend_rows)
        self.measured[Step.EXTEND] = Measured(planned, statistics.median(seconds), most, self._memory.told)
        what = f"{engine.extend_rows} x {engine.extend_chunk} tokens"
        return _verdict("extend", what, self.measured[Step.EXTEND], finite=finite)

    def _row(self, slot: int, taken: list[int]) -> ExtendRow:
        count = min(self._engine.extend_chunk, self._lengths[slot] - taken[slot])
        if not taken[slot]:
            self._engine.clear(slot)
            self._engine.configure(slot, _GREEDY, (0, slot))
        self._engine.grow(slot, taken[slot] + count)
        ids = self._rng.integers(0, self._shape.vocab_size, count).tolist()
        taken[slot] += count
        return ExtendRow(slot, ids, fresh=taken[slot] == count)

    def decode(self) -> Verdict:
        """Tokens for every slot, behind what `extend` put there."""
        engine, seconds, finite = self._engine, [], True
        self._memory.begin()
        for _ in range(3):
            for slot in range(engine.slots):
                self._lengths[slot] += engine.decode_steps
                engine.grow(slot, self._lengths[slot])
            rows = [DecodeRow(slot, self._last[slot], engine.decode_steps) for slot in range(engine.slots)]
            found: list[Any] = []
            took = timed(lambda rows=rows, found=found: found.extend(engine.decode(rows)) or 0)
            seconds.append(took / engine.decode_steps)
            finite &= all(one.finite for one in found)
            self._last = [one.ids[-1] for one in found]
        most = self._memory.most()
        planned = self._plan(Step.DECODE, engine.slots)
        self.measured[Step.DECODE] = Measured(planned, statistics.median(seconds), most, self._memory.told)
        what = f"a token for {engine.slots} slots of {engine.max_len}"
        return _verdict("decode", what, self.measured[Step.DECODE], finite=finite)

    def swap(self) -> Verdict:
        """Other weights, and the first ones again: these must give the same bits as before."""
        ids = self._rng.integers(0, self._shape.vocab_size, min(16, self._engine.extend_chunk)).tolist()
        before = self._first(ids)
        changed = {**self._served, "final_norm": self._served["final_norm"] + 1.0}
        self._engine.set_weights(changed, 1)
        other = self._first(ids)
        seconds = timed(lambda: self._engine.set_weights(self._served, 2) or 0)
        after = self._first(ids)
        seen = f"{seconds:.3f} s; version {self._engine.version}"
        if other == before or after != before:
            return fail("swap", f"{seen}; the engine did not follow its weights", "report it with this page")
        return ok("swap", f"{seen}; back to the first weights, the same bits")

    def _first(self, ids: Sequence[int]) -> tuple[int, float]:
        self._engine.clear(0)
        self._engine.grow(0, len(ids))
        self._engine.configure(0, _GREEDY, (0, 0))
        sampled = self._engine.extend([ExtendRow(0, ids, True)]).row(0)
        return sampled.ids[0], sampled.model_logprobs[0]


def training(
    config: RunConfig, shape: Qwen35Config, params: list[Any], probe: Probe, topology: Topology
) -> Iterator[Verdict | Measured]:
    """Two optimizer steps, the second one timed, on all devices: on the mesh of the settings, or without one, where a
    run would train on one chip, divided over all. The verdict, and the measurement if one was made.

    Args:
        params: holds the parameters alone, and is emptied as soon as the training state has its copy.
    """
    devices = list(topology.devices)[: 1 if probe.small else None]
    sizes = None if probe.small else config.mesh.sizes
    rows = probe.rows if sizes else -(-probe.rows // len(devices)) * len(devices)
    remat, optimizer = Remat.of(config.model.remat), OptimizerName(config.training.optimizer)
    work = Work(
        shape, Step.TRAIN, rows, probe.row_len, remat=remat, optimizer=optimizer,
        compute_dtype=config.model.compute_dtype,
    )  # fmt: skip
    limit = topology.chip.hbm_bytes if topology.chip else None
    mesh = sizes or default_mesh(work, len(devices), limit)
    planned = plan(work, Topology(topology.name, topology.chip, devices), mesh)
    if short := _shortage(planned, len(devices), devices[0].platform, live_bytes()):
        yield short
        return
    step = TrainStep(
        shape,
        make_optimizer(optimizer_settings(config.training)),
        sampling=Sampling(config.rollout.temperature, config.rollout.top_p, config.rollout.top_k),
        loss_chunk=LOSS_CHUNK,
        remat=remat,
        compute_dtype=jnp.dtype(config.model.compute_dtype),
        placement=Placement(shape, make_mesh(*mesh, devices=devices)),
    )
    memory = Memory(devices[0])
    batch = _full_batch(rows, probe.row_len, shape.vocab_size)
    try:
        seconds, losses = _two_updates(step, params, batch, memory)
    except TrainingDiverged as error:
        yield fail("train", str(error), "see docs/training.md, When training diverges")
        return
    most = memory.most()
    measured = Measured(planned, seconds, None if most is None else _per_device(most, devices), memory.told)
    yield measured
    loss = " then ".join(f"{one:.3f}" for one in losses)
    what = f"{rows} rows of {probe.row_len}, {remat} remat, {optimizer}, loss {loss}"
    if len(devices) > 1:
        what += f", {mesh_flags(mesh)} --rows={rows}"
    yield _verdict("train", what, measured, finite=bool(np.isfinite(losses).all()))


def _two_updates(step: TrainStep, params: list[Any], batch: Batch, memory: Memory) -> tuple[float, list[float]]:
    """Seconds of the second one, which compiles nothing, and the losses before each. Empties `params`."""
    state = step.init(params[0])
    params.clear()
    state, first = step.update(state, [batch])
    memory.begin()
    found: list[Any] = []
    seconds = timed(lambda: found.append(step.update(state, [batch])) or found[0][0].step)
    second = found[0][1]
    return seconds, [metrics.loss for metrics in (first, second) if metrics is not None]


def _per_device(most: int, devices: Sequence[Any]) -> int:
    """On CPUs all devices' arrays are one process's."""
    return most // len(devices) if devices[0].platform == "cpu" else most


def _shortage(planned: Plan, devices: int, platform: str, held: int) -> Verdict | None:
    """The verdict where the step would not fit, so that it is not tried.

    Args:
        held: bytes of host memory that training takes over from what is there.
    """
    needed = planned.bytes_per_chip["total"]
    change = "--remat=group, shorter --row_len, --optimizer=lion, or more chips"
    if planned.fits is False and platform != "cpu":
        missing = -(planned.spare_bytes or 0)
        return fail("train", f"needs {needed / GIB:.2f} GiB of a device, {missing / GIB:.2f} more than it has", change)
    if platform == "cpu" and needed * devices > (free := free_host_bytes() + held):
        return warn(
            "train", f"not tried: it needs {needed * devices / GIB:.1f} GiB, and {free / GIB:.1f} are free", change
        )
    return None


def _full_batch(rows: int, row_len: int, vocab: int) -> Batch:
    """Rows full of targets."""
    rng = np.random.default_rng(0)
    tokens, targets = (rng.integers(0, vocab, (rows, row_len)).astype(np.int32) for _ in range(2))
    real = np.ones((rows, row_len), np.float32)
    return Batch(tokens, np.ones_like(tokens), targets, real, np.full_like(real, np.nan))


def _verdict(name: str, what: str, measured: Measured, *, finite: bool) -> Verdict:
    """A step's line: seconds against the bound, bytes against the plan."""
    planned = measured.plan.bytes_per_chip["total"]
    seen = f"{what}: {_seconds(measured.seconds)}"
    if measured.factor is not None:
        seen += f", {measured.factor:.1f} x its bound"
    seen += f"; memory {'not told' if measured.bytes is None else f'{measured.bytes / GIB:.2f} GiB'}"
    seen += f", planned {planned / GIB:.2f}"
    if not finite:
        return fail(name, f"{seen}; the numbers are not finite", "look at the weights and at --compute_dtype")
    if measured.bytes is not None and measured.told and measured.bytes > _MORE * planned + _SLACK:
        return warn(name, seen, "more than planned: leave room for it, with fewer --slots or a shorter --row_len")
    if measured.factor is not None and measured.factor > _SLOW:
        return warn(name, seen, "profile it (--profile_step) before a long run; give the factor to plan --calibration")
    return ok(name, seen)


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{1000 * value:.1f} ms"
