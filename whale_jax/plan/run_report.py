"""A run's plan as a page for people."""

import dataclasses

from whale_jax.mesh import mesh_flags
from whale_jax.plan.chips import GIB
from whale_jax.plan.hours import Hours
from whale_jax.plan.programs import Step
from whale_jax.plan.run_plan import RunPlan
from whale_jax.plan.stages import Largest, Occupancy, Stage

_COLUMNS = {
    "trainer": "trainer", "gradients": "gradients", "engine_weights": "engine", "slots": "slots",
    "temporaries": "temporary",
}  # fmt: skip


def page(plan: RunPlan, model: str) -> str:
    """Several paragraphs: what fits, what a step takes, hours, money, handing over, and what was assumed."""
    fleet = plan.fleet
    rollout, training = fleet.config.rollout, fleet.config.training
    return "\n".join(
        [
            f"{fleet.config.run.domain}, {model}, on {plan.topology}: {_many(fleet.chips, 'chip')}, "
            f"{_many(fleet.hosts, 'host')}, {_many(fleet.replicas, 'replica')} of {_many(fleet.tensor, 'chip')}",
            f"training: {mesh_flags(fleet.mesh(Step.TRAIN))} --rows={fleet.rows}, {training.row_len} tokens to a row, "
            f"remat {fleet.config.model.remat}, {training.optimizer}; serving: {fleet.slots} slots of "
            f"{rollout.max_len} to a replica, {fleet.config.model.compute_dtype}",
            "",
            *_memory(plan),
            "",
            *_time(plan),
            "",
            *_assumptions(plan),
        ]
    )


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _memory(plan: RunPlan) -> list[str]:
    header = f"  {'GiB per chip':<12}" + "".join(f"{name:>11}" for name in (*_COLUMNS.values(), "together"))
    lines = [header, *(_stage(plan, stage, one) for stage, one in plan.occupancies.items())]
    if plan.limit is None:
        return [*lines, "  whether it fits is not known: these devices do not tell their memory"]
    lines.append(f"  a chip has {plan.limit / GIB:.2f}; {_largest(plan)}")
    return [*lines, *(f"  -> {change}" for change in changes(plan))]


def _stage(plan: RunPlan, stage: Stage, one: Occupancy) -> str:
    parts = [getattr(one, name) for name in _COLUMNS]
    over = plan.limit is not None and one.total > plan.limit
    row = "".join(f"{part / GIB:>11.2f}" if part else f"{'-':>11}" for part in (*parts, one.total))
    return f"  {stage:<12}{row}{'  DOES NOT FIT' if over else ''}"


def _largest(plan: RunPlan) -> str:
    found = plan.largest
    assert found is not None
    return f"it holds {found.slots} slots to a replica in rollouts, and {found.rows} rows to a micro-batch in training"


def changes(plan: RunPlan) -> list[str]:
    """What to change so that every stage fits; nothing where it does."""
    if plan.limit is None or plan.largest is None:
        return []
    over = {stage: one for stage, one in plan.occupancies.items() if one.total > plan.limit}
    found = [f"--slots={plan.largest.slots}"] if over and plan.largest.slots else []
    train = over.get(Stage.TRAIN)
    if train is not None and train.total - train.slots > plan.limit:
        found += _for_training(plan, plan.largest)
    if over and not found:
        found.append("a larger topology: no slot fits beside the rest in every stage")
    return found


def _for_training(plan: RunPlan, largest: Largest) -> list[str]:
    """Training does not fit even without slots."""
    training, found = plan.fleet.config.training, []
    if plan.fleet.config.model.remat != "group":
        found.append("--remat=group: less is kept for the backward pass, and more computed anew")
    if largest.row_len >= plan.fleet.config.rollout.max_len:
        found.append(f"--row_len={largest.row_len} (from {training.row_len}, in proportion)")
    if training.optimizer == "adamw":
        found.append("--optimizer=lion: 2 bytes of state for a parameter in place of 8 (not the paper's)")
    return [*found, "a larger topology"]


def _time(plan: RunPlan) -> list[str]:
    counts = plan.counts
    rollouts = counts.rollouts
    lines = [
        f"{counts.steps} training steps in {counts.cycles} weight phases, {counts.searches} search phases of "
        f"{counts.iterations} iterations, {counts.evaluations} evaluations: {rollouts['train']:,} training, "
        f"{rollouts['search']:,} search and {rollouts['evaluation']:,} evaluation rollouts"
    ]
    if plan.hours is None:
        return [*lines, f"no hours: {plan.why_no_hours}"]
    if plan.planned_slots != plan.fleet.slots:
        lines.append(f"hours are for --slots={plan.planned_slots}, which fit in rollouts")
    bounds = [f"{step} {1000 * (one.step_seconds_bound or 0):,.1f} ms" for step, one in plan.plans.items()]
    lines += [f"bounds of the steps: {', '.join(bounds)}", "", *_table(plan, plan.hours)]
    if plan.full_hours is not None:
        lines.append(f"  if every episode used up its budget: {_cost(plan, plan.full_hours.total * plan.fleet.chips)}")
    return [*lines, *_hand_over(plan, plan.hours)]


def _table(plan: RunPlan, hours: Hours) -> list[str]:
    lines = [f"  {name:<24}{value:>9.2f} h{value / hours.total:>7.0%}" for name, value in hours.by_stage.items()]
    return [
        *lines,
        f"  {'together':<24}{hours.total:>9.2f} h, {_cost(plan, hours.total * plan.fleet.chips)}",
        f"  the proposer writes {hours.proposer:.2f} h, for which all chips wait {hours.proposer_wait:.2f} h "
        f"({hours.proposer_share:.0%}); while a step is rolled out its slots are {hours.slot_share:.0%} in use",
    ]


def _cost(plan: RunPlan, chip_hours: float) -> str:
    dollars = plan.dollars(chip_hours)
    money = "" if dollars is None else f", {dollars:,.0f} dollars {plan.price_kind.replace('_', ' ')}"
    return f"{chip_hours:,.0f} chip-hours{money}"


def _hand_over(plan: RunPlan, hours: Hours) -> list[str]:
    other = plan.hand_over
    if other is None:
        return []
    saved = hours.total * plan.fleet.chips - other.chip_hours
    added = other.pod_hours + other.host_hours - hours.total
    verb = "saves" if saved >= 0 else "costs"
    return [
        f"  --stop_after=weight_phase, search on one host of {other.host_chips} chips: {other.pod_hours:.2f} h on the "
        f"pod and {other.host_hours:.2f} h on the host; it {verb} {_cost(plan, abs(saved))}, and takes {added:+.2f} h"
    ]


def _assumptions(plan: RunPlan) -> list[str]:
    assumed, factors = plan.assumed, plan.calibration.factors
    shown = ", ".join(f"{step} {factor:.2f}" for step, factor in factors.items())
    values = {
        field.name: getattr(assumed, field.name) for field in dataclasses.fields(assumed) if field.name != "spread"
    }
    values = {name: value for name, value in values.items() if value or name == "proposer_seconds"}
    lines = [
        f"assumed: steps take their bounds times {shown} ({plan.calibration.source}); lengths are spread as "
        f"{assumed.spread}; {', '.join(f'{name} {value:g}' for name, value in values.items())}",
    ]
    if plan.price is not None:
        lines.append(f"price: {plan.price:g} dollars per chip-hour ({plan.prices.described})")
    return lines
