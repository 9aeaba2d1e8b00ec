"""A whole run on a topology: every stage together, what fits, hours and money."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whale_jax.config import RunConfig
from whale_jax.plan import model_cost, stages
from whale_jax.plan.calibration import Calibration
from whale_jax.plan.chips import Topology
from whale_jax.plan.compiled import cached_plan
from whale_jax.plan.counts import Counts, count
from whale_jax.plan.fleet import Fleet
from whale_jax.plan.hours import Assumptions, Clock, HandOver, Hours, handed_over, run_hours
from whale_jax.plan.live import Spread
from whale_jax.plan.plan import Plan, PlanError
from whale_jax.plan.prices import Prices
from whale_jax.plan.programs import Step
from whale_jax.qwen3_5.config import Qwen35Config
from whale_jax.training.optimizer import OptimizerName


@dataclass(frozen=True)
class RunPlan:
    """The answer.

    Attributes:
        fleet: as the settings have it.
        planned_slots: slots that the serving steps were compiled for: the settings', or as many as fit.
        limit: bytes of a chip; None if unknown.
        occupancies: by stage.
        largest: what fits; None where the limit is unknown.
        hours: of the run; None where a step does not fit or has no bound.
        full_hours: the same if every episode samples its whole budget.
        hand_over: with the search phases on one host; None where the topology is one, or a kind of phase is missing.
        why_no_hours: what is missing then.
    """

    fleet: Fleet
    topology: str
    chip: str | None
    plans: Mapping[Step, Plan]
    planned_slots: int
    limit: float | None
    occupancies: Mapping[stages.Stage, stages.Occupancy]
    largest: stages.Largest | None
    counts: Counts
    assumed: Assumptions
    calibration: Calibration
    price: float | None
    price_kind: str
    prices: Prices
    hours: Hours | None
    full_hours: Hours | None
    hand_over: HandOver | None
    why_no_hours: str = ""

    @property
    def fits(self) -> bool | None:
        """Every stage, with the settings as they are."""
        if self.limit is None:
            return None
        return all(one.total <= self.limit for one in self.occupancies.values())

    def dollars(self, chip_hours: float) -> float | None:
        """None where the price is not known."""
        return None if self.price is None else chip_hours * self.price

    def as_json(self, model: str) -> dict[str, Any]:
        """Everything, in bytes per chip, hours, chip-hours and dollars."""
        fleet = self.fleet
        return {
            "model": model,
            "topology": self.topology,
            "chips": fleet.chips,
            "hosts": fleet.hosts,
            "replicas": fleet.replicas,
            "chips_per_replica": fleet.tensor,
            "slots": fleet.slots,
            "planned_slots": self.planned_slots,
            "rows": fleet.rows,
            "row_len": fleet.config.training.row_len,
            "fits": self.fits,
            "bytes_limit": self.limit,
            "stages": {stage.value: dataclasses.asdict(one) | {"total": one.total} for stage, one in self._by_stage()},
            "largest": None if self.largest is None else dataclasses.asdict(self.largest),
            "counts": dataclasses.asdict(self.counts) | {"rollouts": self.counts.rollouts},
            "assumptions": dataclasses.asdict(self.assumed),
            "calibration": {
                "source": self.calibration.source,
                "factors": {step.value: factor for step, factor in self.calibration.factors.items()},
            },
            "step_seconds_bound": {step.value: plan.step_seconds_bound for step, plan in self.plans.items()},
            "hours": None if self.hours is None else self._hours(self.hours),
            "hours_if_budgets_are_used_up": None if self.full_hours is None else self._hours(self.full_hours),
            "why_no_hours": self.why_no_hours,
            "price": {
                "dollars_per_chip_hour": self.price, "kind": self.price_kind, "source": self.prices.source,
                "written_down": self.prices.date, "checked": self.prices.checked,
            },
            "stop_after_weight_phase": None if self.hand_over is None else self._handed_over(self.hand_over),
        }  # fmt: skip

    def _by_stage(self) -> list[tuple[stages.Stage, stages.Occupancy]]:
        return list(self.occupancies.items())

    def _hours(self, hours: Hours) -> dict[str, Any]:
        chip_hours = hours.total * self.fleet.chips
        return {
            "total": hours.total,
            "by_stage": dict(hours.by_stage),
            "chip_hours": chip_hours,
            "dollars": self.dollars(chip_hours),
            "proposer": hours.proposer,
            "proposer_wait": hours.proposer_wait,
            "proposer_idle_share": hours.proposer_share,
            "slots_in_use": hours.slot_share,
        }

    def _handed_over(self, other: HandOver) -> dict[str, Any]:
        assert self.hours is not None
        saved = self.hours.total * self.fleet.chips - other.chip_hours
        return {
            **dataclasses.asdict(other),
            "chip_hours": other.chip_hours,
            "saved_chip_hours": saved,
            "saved_dollars": self.dollars(saved),
            "added_hours": other.pod_hours + other.host_hours - self.hours.total,
        }


def plan_run(
    config: RunConfig,
    shape: Qwen35Config,
    topology: Topology,
    *,
    assumed: Assumptions,
    calibration: Calibration,
    prices: Prices,
    price_kind: str,
    folder: Path,
) -> RunPlan:
    """Compiles what is not in `folder` yet, and puts everything together.

    Raises:
        PlanError: a replica fits nowhere, or the number of tasks is not known.
        ShardingError, HloError, OSError: as `cached_plan`.
    """
    counts = count(config)
    chip = topology.chip
    fleet = Fleet.of(config, shape, topology)
    limit = None if chip is None else chip.hbm_bytes
    train = cached_plan(fleet.work(Step.TRAIN), topology, fleet.mesh(Step.TRAIN), folder)
    slots = fleet.slots if limit is None else min(fleet.slots, _guess(fleet, limit))
    compiled = fleet.with_slots(slots)
    plans = {Step.TRAIN: train} | {
        step: cached_plan(compiled.work(step, assumed.spread), topology, compiled.mesh(step), folder)
        for step in (Step.EXTEND, Step.DECODE)
    }
    hours, full, other, why = _times(compiled, plans, topology, calibration, assumed, counts)
    return RunPlan(
        fleet=fleet,
        topology=topology.name,
        chip=chip.name if chip else None,
        plans=plans,
        planned_slots=slots,
        limit=limit,
        occupancies=stages.occupancies(fleet, plans),
        largest=None if limit is None else stages.largest(fleet, limit, plans),
        counts=counts,
        assumed=assumed,
        calibration=calibration,
        price=prices.of(chip.name, price_kind) if chip else None,
        price_kind=price_kind,
        prices=prices,
        hours=hours,
        full_hours=full,
        hand_over=other,
        why_no_hours=why,
    )


def _guess(fleet: Fleet, limit: float) -> int:
    """Slots that surely fit, so that the serving steps compile."""
    parameters = model_cost.parameter_count(fleet.shape)
    state = 4 + OptimizerName(fleet.config.training.optimizer).state_bytes + fleet.entry_bytes
    return stages.slots_to_begin_with(
        fleet, limit, state * parameters / fleet.chips, fleet.entry_bytes * parameters / fleet.tensor
    )


def _times(
    fleet: Fleet,
    plans: Mapping[Step, Plan],
    topology: Topology,
    calibration: Calibration,
    assumed: Assumptions,
    counts: Counts,
) -> tuple[Hours | None, Hours | None, HandOver | None, str]:
    if topology.chip is None:
        return (
            None,
            None,
            None,
            "the rates of these devices are not known; measure them: whale_jax.doctor --calibration_out",
        )
    every = fleet.config.training.checkpoint_every
    commits = -(-counts.steps // every) + counts.cycles
    try:
        clock = Clock(fleet, plans, topology.chip, calibration, assumed)
        budget = dataclasses.replace(assumed, spread=Spread.FULL, episode_tokens=0.0, context_tokens=clock.context)
        hours = run_hours(clock, counts, commits)
        full = run_hours(Clock(fleet, plans, topology.chip, calibration, budget), counts, commits)
        other = None
        if counts.searches and counts.cycles and fleet.hosts > 1:
            host = Clock(fleet.on_one_host(), plans, topology.chip, calibration, assumed)
            other = handed_over(hours, clock, host, counts)
    except PlanError as error:
        return None, None, None, str(error)
    return hours, full, other, ""
