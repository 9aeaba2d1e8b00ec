"""What lies on a chip together in every stage of a run.

Trainer and engine share the chips. The trainer's state and the engine's weights stay throughout; keys, values and
recurrent states are freed before training and taken again after the weight swap. A copy of the serving weights, divided
like the trainer's, is kept to measure what a swap changed.
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
        Stage.TRAIN: Occupancy(trainer, train["gradients"], weights, 0, train["activations"]),
        Stage.SWAP: Occupancy(trainer + copy, 0, 2 * weights),
        Stage.CHECKPOINT: Occupancy(trainer, 0, weights),
    }


def largest_slots(fleet: Fleet, limit: float, plans: Mapping[Step, Plan]) -> int:
    """Slots of a replica that fit beside the rest of a rollout, each with room for a whole window."""
    found = occupancies(fleet, plans)[Stage.ROLLOUT]
    return max(0, int((limit - (found.total - fleet.slots * fleet.slot_bytes)) // fleet.slot_bytes))


def largest_rows(fleet: Fleet, limit: float, plans: Mapping[Step, Plan]) -> int:
    """Rows of a micro-batch on all chips: temporaries grow in proportion to the rows of a chip."""
    found = occupancies(fleet, plans)[Stage.TRAIN]
    of_a_chip = fleet.rows // fleet.chips
    room = limit - (found.total - found.temporaries)
    return max(0, int(room * of_a_chip // max(1.0, found.temporaries))) * fleet.chips


def largest_row_len(fleet: Fleet, limit: float, plans: Mapping[Step, Plan]) -> int:
    """Positions of a row, one row to a chip, in proportion too; a multiple of 1,024."""
    found = occupancies(fleet, plans)[Stage.TRAIN]
    room = limit - (found.total - found.temporaries)
    of_a_chip = fleet.rows // fleet.chips * fleet.config.training.row_len
    return max(0, int(room * of_a_chip / max(1.0, found.temporaries)) // 1024 * 1024)


def slots_beside_training(fleet: Fleet, limit: float, trainer_bytes: float, weights_bytes: float) -> int:
    """A first guess of the slots that fit, before anything is compiled: a tenth of the chip for temporaries."""
    room = 0.9 * limit - trainer_bytes - weights_bytes - PREFIX_BYTES / fleet.tensor
    return max(1, int(room // fleet.slot_bytes))
