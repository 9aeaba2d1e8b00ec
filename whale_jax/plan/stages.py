"""What lies on a chip together in every stage of a run.

Trainer and engine share the chips. The trainer's state and the engine's weights stay throughout. Keys, values and
recurrent states are given up before a training step (`Driver.suspend`), and taken again by the first rollout after the
swap. A copy of the serving weights, divided like the trainer's, is kept to measure what a swap changed.
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
        Stage.SWAP: Occupancy(trainer + copy, 0, 2 * weights, 0),
        Stage.CHECKPOINT: Occupancy(trainer, 0, weights, pool),
    }


@dataclass(frozen=True)
class Largest:
    """What fits on a chip.

    Attributes:
        slots: of a replica, each with room for a whole window; 0 where a stage without slots does not fit.
        rows: of a micro-batch, on all chips; temporaries taken in proportion to the rows.
        row_len: positions of a row, one row to a chip, likewise; a multiple of 1,024.
    """

    slots: int
    rows: int
    row_len: int


def largest(fleet: Fleet, limit: float, plans: Mapping[Step, Plan]) -> Largest:
    """What fits beside the rest."""
    found = occupancies(fleet, plans)
    with_slots = [_slots(fleet, limit, one) for one in found.values() if one.slots]
    fits = all(one.total <= limit for one in found.values() if not one.slots)
    train = found[Stage.TRAIN]
    room = limit - (train.total - train.temporaries)
    shards = fleet.row_shards
    share, of_a_chip = room / max(1.0, train.temporaries), fleet.rows // shards
    positions = share * of_a_chip * fleet.config.training.row_len
    return Largest(
        slots=min(with_slots) if fits else 0,
        rows=max(0, int(share * of_a_chip)) * shards,
        row_len=max(0, int(positions) // 1024 * 1024),
    )


def _slots(fleet: Fleet, limit: float, stage: Occupancy) -> int:
    others = stage.total - fleet.slots * fleet.slot_bytes
    return max(0, int((limit - others) // fleet.slot_bytes))


def slots_to_begin_with(fleet: Fleet, limit: float, trainer_bytes: float, weights_bytes: float) -> int:
    """A first guess of the slots that fit, before anything is compiled: a tenth of the chip for temporaries."""
    room = 0.9 * limit - trainer_bytes - weights_bytes - PREFIX_BYTES / fleet.tensor
    return max(1, int(room // fleet.slot_bytes))
