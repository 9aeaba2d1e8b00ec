"""How a run lies on a topology: replicas, hosts, and the work of its steps."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from whale_jax.config import RunConfig
from whale_jax.mesh import mesh_flags
from whale_jax.plan import model_cost
from whale_jax.plan.chips import Topology
from whale_jax.plan.live import Spread
from whale_jax.plan.plan import PlanError
from whale_jax.plan.programs import Step, Work
from whale_jax.qwen3_5.cache import PAGE
from whale_jax.qwen3_5.config import LINEAR_PER_GROUP, Qwen35Config
from whale_jax.qwen3_5.remat import Remat
from whale_jax.training.optimizer import OptimizerName

EXTEND_ROWS = 16
"""Rows of an extend step, as the engine's default."""

PREFIX_BYTES = 64 * 2**20
"""Of the pool, for states at common beginnings, as the engine's default."""

_WEIGHTS_SHARE = 0.7
"""A replica is spread over more chips where its weights and the trainer's state leave less than the rest of a chip."""


@dataclass(frozen=True)
class Fleet:
    """A run on a topology.

    Attributes:
        chips: in all.
        host_chips: of one host.
        tensor: chips of a replica.
        slots: of a replica.
        busy_slots: of those, what the episodes in flight on a host (`--concurrency`) can fill.
        rows: of a micro-batch, on all chips: `--rows`, made a multiple of the chips that divide rows.
    """

    config: RunConfig
    shape: Qwen35Config
    chips: int
    host_chips: int
    tensor: int
    slots: int
    rows: int

    @classmethod
    def of(cls, config: RunConfig, shape: Qwen35Config, topology: Topology) -> "Fleet":
        """As a run with these settings would use the topology.

        Raises:
            PlanError: not even all chips that may share a replica hold its weights, or the mesh of the settings has
                another number of chips.
        """
        chips = len(topology.devices)
        single_host = topology.chip is None or (topology.chip.name in ("v5e", "v6e") and chips <= 8)
        sizes = _train_mesh(config, chips)
        if math.prod(sizes) != chips:
            raise PlanError(f"{mesh_flags(sizes)}: their product must be the number of chips of the topology, {chips}")
        shards = sizes[0] * sizes[1]
        rows = -(-config.training.rows // shards) * shards
        fleet = cls(config, shape, chips, chips if single_host else min(4, chips), 1, config.rollout.slots, rows)
        limit = None if topology.chip is None else topology.chip.hbm_bytes
        return fleet if limit is None else fleet._spread(limit)

    def _spread(self, limit: float) -> "Fleet":
        count = model_cost.parameter_count(self.shape)
        trainer = (4 + OptimizerName(self.config.training.optimizer).state_bytes) * count / self.chips
        heads = self.shape.num_kv_heads
        splits = [split for split in range(1, heads + 1) if heads % split == 0 and self.chips % split == 0]
        for split in splits:
            if trainer + self.entry_bytes * count / split <= _WEIGHTS_SHARE * limit:
                return dataclasses.replace(self, tensor=split)
        raise PlanError(
            f"a replica of {count:,} parameters does not fit beside the training state, not even over {splits[-1]} "
            "chips; choose a larger topology"
        )

    def on_one_host(self) -> "Fleet":
        """The same run's rollouts on one host of these chips."""
        return dataclasses.replace(self, chips=self.host_chips)

    def with_slots(self, slots: int) -> "Fleet":
        """The same with so many slots in a replica."""
        return dataclasses.replace(self, slots=slots)

    @property
    def replicas(self) -> int:
        return self.chips // self.tensor

    @property
    def hosts(self) -> int:
        return self.chips // self.host_chips

    @property
    def entry_bytes(self) -> int:
        """Of a serving weight and of a key or value."""
        return self.work(Step.DECODE).entry_bytes

    @property
    def busy_slots(self) -> int:
        of_a_host = max(1, self.host_chips // self.tensor)
        return max(1, min(self.slots, self.config.rollout.concurrency // of_a_host))

    def work(self, step: Step, spread: Spread = Spread.LONG_TAIL) -> Work:
        """One step of the run on all chips."""
        rollout, replicas = self.config.rollout, self.chips // self.tensor
        common: dict[str, Any] = {
            "remat": Remat.of(self.config.model.remat),
            "compute_dtype": self.config.model.compute_dtype,
        }
        if step is Step.TRAIN:
            optimizer = OptimizerName(self.config.training.optimizer)
            return Work(self.shape, step, self.rows, self.config.training.row_len, optimizer=optimizer, **common)
        slots = self.slots if step is Step.DECODE else min(EXTEND_ROWS, self.slots)
        return Work(
            self.shape, step, slots * replicas, rollout.max_len, rollout.extend_chunk, spread, dense=True, **common
        )

    def mesh(self, step: Step) -> tuple[int, int, int]:
        """Training has the mesh of the settings, or divides everything over all chips; serving has replicas."""
        if step is not Step.TRAIN:
            return self.replicas, 1, self.tensor
        return _train_mesh(self.config, self.chips)

    @property
    def row_shards(self) -> int:
        """Parts that the rows of a micro-batch are divided into."""
        data, fsdp, _ = _train_mesh(self.config, self.chips)
        return data * fsdp

    @property
    def slot_bytes(self) -> float:
        """One slot on a chip of its replica: pages for `--max_len` positions, conv windows and recurrent state."""
        shape, length = self.shape, self.config.rollout.max_len
        page = min(PAGE, length)
        positions = -(-length // page) * page
        pages = 2 * shape.num_groups * shape.num_kv_heads * shape.head_dim * self.entry_bytes * positions
        layers = shape.num_groups * LINEAR_PER_GROUP
        state = layers * shape.linear_value_heads * shape.linear_key_dim * shape.linear_value_dim * 4
        window = layers * shape.conv_window * shape.conv_channels * self.entry_bytes
        return (pages + state + window) / self.tensor


def _train_mesh(config: RunConfig, chips: int) -> tuple[int, int, int]:
    return config.mesh.sizes or (1, chips, 1)
