"""A plan as a table for people."""

from whale_jax.plan.chips import GIB, Topology
from whale_jax.plan.plan import Plan
from whale_jax.plan.programs import Step, Work
from whale_jax.qwen3_5.sharding import AXES


def table(work: Work, topology: Topology, model: str, plan: Plan) -> str:
    """Several lines: what was asked, whether it fits, memory by kind, work, movement, bounds."""
    mesh = " x ".join(f"{axis} {size}" for axis, size in zip(AXES, plan.mesh, strict=True))
    chips = len(topology.devices)
    lines = [
        f"{model} {work.step.value}, batch {work.batch} x {work.seq_len}, {chips} chips ({topology.name}: {mesh})"
        + (f", remat {work.remat.value}, {work.optimizer.value}" if work.step is Step.TRAIN else ""),
        _verdict(plan),
        "",
        "memory per chip (GiB)",
        *(_row(kind, f"{size / GIB:.2f}") for kind, size in plan.bytes_per_chip.items()),
    ]
    if plan.executed_flops is not None:
        ratio = plan.executed_flops / plan.model_flops
        lines += [
            "",
            "work of the step, all chips",
            _row("model FLOPs", f"{plan.model_flops:.3e}"),
            _row("executed FLOPs", f"{plan.executed_flops:.3e}  ({ratio:.2f} x model)"),
            _row("matrix-unit FLOPs", f"{plan.mxu_flops:.3e}"),
            "",
            "movement per chip (GiB)",
            _row("main memory", f"{(plan.hbm_bytes or 0) / GIB:.2f}"),
        ]
        if plan.floor_hbm_bytes is not None:
            lines.append(_row("  its floor", f"{plan.floor_hbm_bytes / GIB:.2f}"))
        for kind, entry in plan.collectives.items():
            lines.append(_row(kind, f"{entry['bytes'] / GIB:.3f}  ({entry['count']:.0f} times)"))
    if plan.step_seconds_bound is not None:
        lines += [
            "",
            _row("step takes at least", f"{plan.step_seconds_bound:.3f} s, bound by {plan.bound_by}"),
            _row("MFU at most", f"{plan.mfu_bound:.0%}" if plan.mfu_bound is not None else "unknown"),
        ]
    return "\n".join([*lines, "", _row("compiled in", f"{plan.compile_seconds:.0f} s")])


def _verdict(plan: Plan) -> str:
    if plan.fits is None or plan.spare_bytes is None or plan.bytes_limit is None:
        return "whether it fits is not known: these devices do not tell their memory"
    what = "fits, to spare:" if plan.fits else "DOES NOT FIT, missing:"
    return f"{what} {abs(plan.spare_bytes) / GIB:.2f} of {plan.bytes_limit / GIB:.2f} GiB per chip"


def _row(name: str, value: str) -> str:
    return f"  {name:<22}{value}"
