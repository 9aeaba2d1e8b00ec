"""The chips that a plan may be for, and how a topology's devices are had without the machine.

Peak rates are the vendor's per chip (cloud.google.com/tpu/docs: v4, v5e, v5p, v6e): dense bf16 FLOPs, main-memory
bandwidth, and one direction of all its inter-chip links together.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.experimental import topologies

GIB = 2**30


class TopologyError(ValueError):
    """A topology that is not known here, or that cannot be described on this machine."""


@dataclass(frozen=True)
class Chip:
    """One chip.

    Attributes:
        name: as in `--topology`.
        flops: dense bf16 FLOP/s.
        hbm_bytes: main memory that a program may use; the compiler refuses more.
        hbm_rate: bytes/s.
        link_rate: bytes/s into a chip over all its links together.
    """

    name: str
    flops: float
    hbm_bytes: float
    hbm_rate: float
    link_rate: float


CHIPS = {
    chip.name: chip
    for chip in (
        Chip("v4", 275e12, 31.25 * GIB, 1228e9, 300e9),
        Chip("v5e", 197e12, 15.75 * GIB, 819e9, 200e9),
        Chip("v5p", 459e12, 95.74 * GIB, 2765e9, 600e9),
        Chip("v6e", 918e12, 31.25 * GIB, 1640e9, 400e9),
    )
}


_COMPILER_ALONE = {
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_MIN_LOG_LEVEL": "3",
}
"""Without these the compiler asks the cloud's metadata server what machine this is, insists on being alone, and says at
length that it found no TPU. What it compiles for is named with each topology, whatever stands here."""


@dataclass(frozen=True)
class Topology:
    """The devices of a plan.

    Attributes:
        name: as asked for.
        chip: None where the kind of the devices present is not in `CHIPS`: then there are no time bounds.
        devices: described or present ones, in mesh order.
    """

    name: str
    chip: Chip | None
    devices: Sequence[Any]


def topology(name: str) -> Topology:
    """The devices that `name` stands for: `here`, or chip and grid such as `v5e:4x4`.

    Raises:
        TopologyError: another form, an unknown chip, no TPU compiler, or a grid the compiler does not know.
    """
    if name == "here":
        devices = jax.devices()
        return Topology(name, CHIPS.get(_chip_of_kind(devices[0].device_kind)), devices)
    form = re.fullmatch(r"(\w+):(\d+(?:x\d+){1,2})", name)
    if form is None or form[1] not in CHIPS:
        raise TopologyError(
            f"--topology={name}: say chip and grid such as v5e:4x4 or v5p:2x2x2 (chips: {', '.join(CHIPS)}), or here"
        )
    for variable, value in _COMPILER_ALONE.items():
        os.environ.setdefault(variable, value)
    try:
        described = topologies.get_topology_desc(platform="tpu", topology_name=name)
    except (jax.errors.JaxRuntimeError, RuntimeError, NotImplementedError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise TopologyError(
            f"--topology={name}: the TPU compiler cannot describe it ({first}). It is in the package libtpu, at the "
            "version that jax[tpu] asks for"
        ) from error
    return Topology(name, CHIPS[form[1]], described.devices)


def _chip_of_kind(kind: str) -> str:
    """The chip's short name from JAX's device kind."""
    kinds = {"TPU v4": "v4", "TPU v5 lite": "v5e", "TPU v5e": "v5e", "TPU v5": "v5p", "TPU v5p": "v5p"}
    return kinds.get(kind, "v6e" if kind in ("TPU v6 lite", "TPU v6e") else "")
