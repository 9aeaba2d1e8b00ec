"""Rollouts on the engine beside `generate` of `transformers`: same checkpoint, prompts and reply lengths, one run.

The figures: `single_turn_ratio` and `multi_turn_ratio` are generated tokens per second of the engine under the rollout
scheduler against `transformers` at the best of the batch sizes and thread counts tried, on the demo's checkpoint
(`wide_…`: on a random one of about 50 M parameters); `…_by_processor_time` the same per second of processor time, in
which other work on the machine does not show. `prefill_ratio` is computed against new prompt tokens of the multi-turn
workload, and beside it what it would be without the prefix store and without sessions. `host_overhead` is the share of
one engine's run in which no compiled program ran, `occupancy` the share of slots that its decode steps sample for.
"""

import argparse
import dataclasses
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import jax

from whale_jax.assemble import checkpoint_directory
from whale_jax.bench import engine_side, workload
from whale_jax.bench.bench import Bench, Result
from whale_jax.bench.engine_side import Speed, computed_prompt_tokens
from whale_jax.bench.torch_side import TorchModel, write_wide_checkpoint
from whale_jax.bench.workload import Workload
from whale_jax.qwen3_5.convert import load_checkpoint
from whale_jax.serving.engine import Engine

Row = dict[str, str | float | None]


@dataclass(frozen=True)
class Size:
    """How much is measured.

    Attributes:
        prompts, group: of the demo checkpoint's workloads.
        wide_prompts: of the wide one's; 0 leaves it out.
        tool_turns: of the multi-turn workload.
        longest: (single-turn, multi-turn) cut of the replies' lengths.
        batches: sizes to try with `transformers`.
        slots: of each engine.
    """

    prompts: int
    group: int
    wide_prompts: int
    tool_turns: int
    longest: tuple[int, int]
    batches: tuple[int, ...]
    slots: int


FULL = Size(64, 8, 4, 4, (192, 96), (64, 256), 96)
QUICK = Size(2, 2, 0, 1, (12, 8), (4,), 4)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="a few short rollouts of the demo's checkpoint alone")
    parser.add_argument(
        "--prompts", type=int, default=FULL.prompts, help="prompts of 8 samples, demo's checkpoint; 0: none"
    )
    parser.add_argument(
        "--wide_prompts", type=int, default=FULL.wide_prompts, help="the same for the wide one; 0: none"
    )
    parser.add_argument("--slots", type=int, default=FULL.slots, help="slots of an engine")
    parser.add_argument("--replicas", type=int, default=0, help="engines; 0: one per device")


def _run(args: argparse.Namespace) -> Result:
    if args.slots < 1 or min(args.prompts, args.wide_prompts, args.replicas) < 0:
        raise ValueError("--slots must be >= 1, --prompts, --wide_prompts and --replicas >= 0")
    if args.prompts + args.wide_prompts == 0:
        raise ValueError("--prompts and --wide_prompts: one of them must be > 0")
    given = dataclasses.replace(FULL, prompts=args.prompts, wide_prompts=args.wide_prompts, slots=args.slots)
    size = QUICK if args.quick else given
    replicas = args.replicas or len(jax.local_devices())
    demo = checkpoint_directory(None)
    measured = _Measured()
    if size.prompts:
        measured.checkpoint("demo", demo, size, size.prompts, replicas)
    if size.wide_prompts:
        with tempfile.TemporaryDirectory() as directory:
            parameters = write_wide_checkpoint(Path(directory), demo)
            measured.note(f"the wide checkpoint is random and has {parameters / 1e6:.0f} M parameters")
            measured.checkpoint("wide", Path(directory), size, size.wide_prompts, replicas)
    settings = {
        "prompts": size.prompts,
        "samples": size.group,
        "wide_prompts": size.wide_prompts,
        "tool_turns": size.tool_turns,
        "slots": size.slots,
        "replicas": replicas,
        "dtype": "float32",
    }
    return Result(settings, measured.rows, tuple(measured.notes), measured.figures)


class _Measured:
    """What is known so far; each thing is told on the error stream as soon as it is known."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.notes: list[str] = []
        self.figures: dict[str, float | None] = {}

    def note(self, text: str) -> None:
        """Something that a reader must know."""
        self.notes.append(text)
        print(text, file=sys.stderr, flush=True)

    def checkpoint(self, name: str, directory: Path, size: Size, prompts: int, replicas: int) -> None:
        """Both workloads on one checkpoint, by all who can run them."""
        config, params = load_checkpoint(directory)
        try:
            torch = TorchModel(directory)
        except ImportError as error:
            torch = None
            self.note(f"transformers is left out: {error}")
        prefix = "" if name == "demo" else f"{name}_"
        for kind, tool_turns, longest in zip(("single", "multi"), (0, size.tool_turns), size.longest, strict=True):
            work = workload.make(
                prompts=prompts,
                group=size.group,
                tool_turns=tool_turns,
                longest_reply=longest,
                vocab=config.vocab_size,
                seed=tool_turns,
            )
            engines = engine_side.make_engines(config, params, work, slots=size.slots, replicas=replicas)
            ours = engine_side.run(engines, work)
            self._add(name, kind, f"scheduler, {replicas} engines", ours, work)
            if kind == "multi":
                self._prefill(prefix, ours, work)
                self._profile(name, prefix, engines[0], work)
            orchestrated = engine_side.run(engines, work, "jetstream")
            self._add(name, kind, "JetStream's orchestrator", orchestrated, work)
            theirs = None
            if torch is not None:
                threads, batch = torch.best(work, size.batches)
                theirs = torch.run(work, threads, batch)
                self._add(name, kind, f"transformers, batch {batch}, {threads} threads", theirs, work)
            self.figures[f"{prefix}{kind}_turn_ratio"] = theirs and theirs.seconds / ours.seconds
            self.figures[f"{prefix}{kind}_turn_ratio_by_processor_time"] = (
                theirs and theirs.processor_seconds / ours.processor_seconds
            )

    def _add(self, model: str, kind: str, who: str, speed: Speed, work: Workload) -> None:
        row: Row = {
            "checkpoint": model,
            "turns": kind,
            "by": who,
            "conversations": float(len(work.conversations)),
            "tokens": float(speed.sampled),
            "seconds": speed.seconds,
            "tokens_per_s": speed.sampled / speed.seconds,
            "tokens_per_processor_s": speed.sampled / speed.processor_seconds,
        }
        self.rows.append(row)
        shown = (f"{value:.4g}" if isinstance(value, float) else str(value) for value in row.values())
        print(*shown, sep=", ", file=sys.stderr, flush=True)

    def _prefill(self, prefix: str, speed: Speed, work: Workload) -> None:
        new = work.new_prompt_tokens
        self.figures[f"{prefix}prefill_ratio"] = computed_prompt_tokens(speed, work) / new
        self.figures[f"{prefix}prefill_ratio_without_store"] = work.unshared_prompt_tokens / new
        self.figures[f"{prefix}prefill_ratio_without_sessions"] = work.repeated_prompt_tokens / new

    def _profile(self, name: str, prefix: str, engine: Engine, work: Workload) -> None:
        profile = engine_side.profile(engine, work)
        self.figures[f"{prefix}host_overhead"] = profile.host_overhead
        self.figures[f"{prefix}occupancy"] = profile.occupancy
        shares = {name: seconds / profile.seconds for name, seconds in profile.programs.items()}
        shown = ", ".join(f"{name} {share:.0%}" for name, share in sorted(shares.items(), key=lambda item: -item[1]))
        self.note(
            f"{name}: one engine's multi-turn run, {profile.seconds:.3g} s: {shown}, host {profile.host_overhead:.0%}"
        )


BENCH = Bench("rollouts on the engine, beside generate of transformers", _add_arguments, _run, all_cores=True)
