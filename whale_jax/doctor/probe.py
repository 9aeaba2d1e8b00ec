"""How large the doctor's steps are, what a step took, and what the machine could do at best."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from whale_jax.config import RunConfig
from whale_jax.plan import model_cost
from whale_jax.plan.chips import Chip, Topology, topology
from whale_jax.plan.plan import Plan
from whale_jax.plan.programs import Step
from whale_jax.qwen3_5.config import Qwen35Config

_SMALL_MODEL = 50_000_000
"""Parameters up to which a CPU takes the run's own sizes."""


class Size(StrEnum):
    """How large the steps are."""

    AUTO = "auto"
    """The run's own, but small ones where a model of many parameters meets CPUs."""
    RUN = "run"
    SMALL = "small"


@dataclass(frozen=True)
class Probe:
    """Sizes of the steps.

    Attributes:
        slots, max_len, extend_chunk, decode_steps: of the engine.
        rows, row_len: of a micro-batch.
        small: whether these are not the run's own; training then takes one device.
    """

    slots: int
    max_len: int
    extend_chunk: int
    decode_steps: int
    rows: int
    row_len: int
    small: bool

    @classmethod
    def of(cls, config: RunConfig, shape: Qwen35Config, size: Size, platform: str) -> "Probe":
        """The sizes that `size` stands for."""
        rollout, training = config.rollout, config.training
        large = platform == "cpu" and model_cost.parameter_count(shape) > _SMALL_MODEL
        if size is Size.SMALL or (size is Size.AUTO and large):
            return cls(2, 128, min(32, rollout.extend_chunk), 4, 1, 128, small=True)
        return cls(
            rollout.slots,
            rollout.max_len,
            rollout.extend_chunk,
            rollout.decode_steps,
            training.rows,
            training.row_len,
            small=False,
        )


@dataclass(frozen=True)
class Measured:
    """One step.

    Attributes:
        plan: of the same work on the same devices.
        seconds: the median of several.
        bytes: the most that it took on a device, all that lives there with it included; None where it is not known.
        told: by the device; otherwise it is what the process grew by.
    """

    plan: Plan
    seconds: float
    bytes: int | None
    told: bool = True

    @property
    def factor(self) -> float | None:
        """Over the roofline bound."""
        bound = self.plan.step_seconds_bound
        return None if bound is None else self.seconds / bound

    def as_json(self) -> dict[str, Any]:
        """What was planned and what was found."""
        return {
            "seconds": self.seconds,
            "seconds_bound": self.plan.step_seconds_bound,
            "factor": self.factor,
            "bytes": self.bytes,
            "planned_bytes": self.plan.bytes_per_chip["total"],
        }


class Memory:
    """The most bytes on a device since this was made; a device keeps its peak, so a lower one is not seen.

    CPUs do not tell: there, it is the arrays that live, and what the process grew by in a step.
    """

    def __init__(self, device: Any, beside: int = 0) -> None:
        """Args:
        beside: bytes of arrays that do not count, on CPUs.
        """
        self._device = device if device.platform != "cpu" else None
        self._peak = self._device_peak()
        self._beside = beside
        self._before = 0

    @property
    def told(self) -> bool:
        """Whether the device says it."""
        return self._device is not None

    def begin(self) -> None:
        """A step begins."""
        if self._device is None and Path("/proc/self/clear_refs").exists():
            Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
            self._before = _status("VmRSS")

    def most(self) -> int | None:
        """After it; None where the device does not tell, or had a higher peak before."""
        if self._device is not None:
            peak = self._device_peak()
            return peak if peak > self._peak else None
        return live_bytes() - self._beside + max(0, _status("VmHWM") - self._before)

    def _device_peak(self) -> int:
        return 0 if self._device is None else (self._device.memory_stats() or {}).get("peak_bytes_in_use", 0)


def live_bytes() -> int:
    """Of all arrays that JAX holds in this process."""
    return sum(array.nbytes for array in jax.live_arrays())


def free_host_bytes() -> int:
    """Memory that a process on this host could still get."""
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines())
    free = int(fields["MemAvailable"].split()[0]) * 1024
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.is_file() and (text := limit.read_text(encoding="utf-8").strip()) != "max":
        free = min(free, int(text) - int(used.read_text(encoding="utf-8")))
    return free


def here() -> Topology:
    """The devices present; where their rates are not known, as measured."""
    found = topology("here")
    return found if found.chip is not None else Topology(found.name, measured_chip(found.devices), found.devices)


def measured_chip(devices: Any) -> Chip:
    """A device whose data sheet is not known: an fp32 product and a large sum, as fast as they go."""
    device = devices[0]
    side, entries = 1024, 2**24
    with jax.default_device(device):
        square, long = jnp.ones((side, side)), jnp.ones(entries)
        product, add = jax.jit(jnp.matmul), jax.jit(lambda x: x + 1)
        flops = 2 * side**3 / _best(lambda: product(square, square))
        rate = 2 * 4 * entries / _best(lambda: add(long))
    limit = (device.memory_stats() or {}).get("bytes_limit") or free_host_bytes() / len(devices)
    return Chip(device.device_kind, flops, limit, rate, rate)


def timed(run: Callable[[], Any]) -> float:
    """Seconds until the result is there."""
    began = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - began


def _best(run: Callable[[], Any]) -> float:
    jax.block_until_ready(run())
    return min(timed(run) for _ in range(5))


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    return 0


def factors(measured: dict[Step, Measured]) -> dict[Step, float] | None:
    """The calibration factors; None unless every step was measured and has a bound."""
    found = {step: one.factor for step, one in measured.items() if one.factor is not None}
    return found if set(found) == set(Step) else None
