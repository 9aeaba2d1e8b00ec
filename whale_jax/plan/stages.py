"""What lies on a chip together in every stage of a run.

Trainer and engine share the chips. The trainer's state and the engine's weights stay throughout, and so do keys, values
and recurrent states: a run does not call `SlotTable.suspend` yet. A copy of the serving weights, divided like the
trainer's, is kept to measure what a swap changed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from whale_jax.plan.fleet import PREFIX_BYTES, Fleet
from whale_jax.plan.plan import Plan
from whale_jax.plan.programs import Step


class Stage(StrEnum):
    """Stages that differ in what is on a chip. Evaluations and search are rollouts."""

    ROLLOUT = "rollout"
    TRAIN = "train"
    SWAP = "swap"
    CHECKPOINT = "checkpoint"


@dataclass(frozen=True)
class Occupancy:
    """Bytes on one chip in one stage."""

    trainer: float = 0.0
    gradients: float = 0.0
    engine_weights: float = 0.0
    slots: float = 0.0
    temporaries: float = 0.0

    @property
    def total(self) -> float:
        return self.trainer + self.gradients + self.engine_weights + self.slots + self.temporaries


def occupancies(fleet: Fleet, plans: Mapping[Step, Plan]) -> dict[Stage, Occupancy]:
    """By stage, from the plans of the three steps; slots as many as `fleet` has, whatever the plan was made for."""
    train, decode = plans[Step.TRAIN].bytes_per_chip, plans[Step.DECODE].bytes_per_chip
    copy = train["parameters"] * fleet.entry_bytes / 4
    trainer, weights = train["parameters"] + train["optimizer"] + copy, decode["parameters"]
    serving = max(plans[step].bytes_per_chip["activations"] for step in (Step.EXTEND, Step.DECODE))
    pool = fleet.slots * fleet.slot_bytes + PREFIX_BYTES / fleet.tensor
    return {
        Stage.ROLLOUT: Occupancy(trainer, 0, weights, pool, serving),
        Stage.TRAIN: Occupancy(trainer, train["gradients"], weights, pool, train["activations"]),
        Stage.SWAP: Occupancy(trainer + copy, 0, 2 * weights, pool),
        Stage.CHECKPOINT: Occupancy(trainer, 0, weights, pool),
    }


@dataclass(frozen=True)
class Largest:
    """What fits on a chip.

    Attributes:
        rollout_slots: of a replica, each with room for a whole window, while episodes run.
        slots: in every stage.
        rows: of a micro-batch, on all chips, if no slots were there; temporaries taken in proportion to the rows.
        row_len: positions of a row, one row to a chip, likewise; a multiple of 1,024.
    """

    rollout_slots: int
    slots: int
    rows: int
    row_len: int


def largest(fleet: Fleet, limit: float, plans: Mapping[Step, Plan]) -> Largest:
    """What fits beside the rest."""
    found = occupancies(fleet, plans)
    slots = {stage: _slots(fleet, limit, one) for stage, one in found.items()}
    train = found[Stage.TRAIN]
    room = limit - (train.total - train.temporaries - train.slots)
    share, of_a_chip = room / max(1.0, train.temporaries), fleet.rows // fleet.chips
    positions = share * of_a_chip * fleet.config.training.row_len
    return Largest(
        rollout_slots=slots[Stage.ROLLOUT],
        slots=min(slots.values()),
        rows=max(0, int(share * of_a_chip)) * fleet.chips,
        row_len=max(0, int(positions) // 1024 * 1024),
    )


def _slots(fleet: Fleet, limit: float, stage: Occupancy) -> int:
    others = stage.total - fleet.slots * fleet.slot_bytes
    return max(0, int((limit - others) // fleet.slot_bytes))


def slots_to_begin_with(fleet: Fleet, limit: float, trainer_bytes: float, weights_bytes: float) -> int:
    """A first guess of the slots that fit, before anything is compiled: a tenth of the chip for temporaries."""
    room = 0.9 * limit - trainer_bytes - weights_bytes - PREFIX_BYTES / fleet.tensor
    return max(1, int(room // fleet.slot_bytes))
