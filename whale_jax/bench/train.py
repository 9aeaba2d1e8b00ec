"""A training step: packed rows against our own padded rows, and against `transformers` and torch with padded batches.

The trajectories are as long as those that the embedded policy is right with under the demo's h0, and as much of them is
sampled; which ids they hold changes no time. All steps train the same weights on the same ids with AdamW, in fp32. A
token is real when it belongs to a trajectory: padding and what one counts otherwise is not speed.

By default rows hold two trajectories of the demo: they are then nearly full with one shape, and attention
over longer rows costs more than the fuller rows save. (The demo's own row, 768, is the longest chat that a run allows.)
"""

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from whale_jax.assemble import checkpoint_directory
from whale_jax.bench.bench import Bench, Result, seconds
from whale_jax.qwen3_5.config import Qwen35Config
from whale_jax.qwen3_5.convert import load_checkpoint
from whale_jax.qwen3_5.remat import Remat
from whale_jax.serving.driver import Sampling
from whale_jax.training.optimizer import OptimizerSettings, make_optimizer
from whale_jax.training.packing import Packed, pack
from whale_jax.training.rsft import TrainSequence
from whale_jax.training.step import TrainState, TrainStep

DEMO_LENGTHS = (
    (279, 63), (293, 75), (309, 86), (308, 77), (284, 70), (289, 72), (302, 77), (349, 100), (283, 67), (315, 86),
    (319, 91), (312, 81), (306, 75), (299, 75), (318, 85), (299, 74), (316, 79), (313, 87), (301, 77), (305, 76),
    (294, 73), (280, 62), (281, 61), (323, 88), (289, 72), (289, 77), (319, 85), (311, 79), (358, 105), (297, 68),
    (309, 83), (301, 74), (289, 73), (298, 80), (315, 83), (305, 82), (317, 88), (287, 74), (320, 83), (315, 84),
    (286, 72), (285, 68), (310, 85), (331, 82), (276, 60), (304, 75), (311, 83), (319, 88), (281, 70), (285, 70),
    (308, 77), (308, 82), (298, 78), (331, 95), (315, 82), (304, 81), (303, 78), (332, 95), (315, 89), (296, 72),
    (302, 88), (313, 92), (289, 71), (290, 70), (317, 85), (305, 76), (344, 91), (293, 64), (307, 81),
)  # fmt: skip
"""(positions, sampled tokens) of each trajectory that was right when the demo first evaluated h0 on D_harness, seeds 1
and 2."""

LEARNING_RATE = 1e-3

_TAIL = {"row_len": 32_768, "rows": 1, "shapes": 2}
"""How trajectories of a long-tailed length distribution are packed."""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--checkpoint", default=None, help="Hugging Face folder; default: the embedded demo model")
    parser.add_argument("--trajectories", type=int, default=32, help="of a mini-batch (the demo: 32)")
    parser.add_argument("--row_len", type=int, default=640, help="positions of a row (the demo: 768)")
    parser.add_argument("--rows", type=int, default=4, help="rows of a micro-batch (the demo: 4)")
    parser.add_argument("--pack_shapes", type=int, default=1, help="shapes of a packed micro-batch (the demo: 1)")
    parser.add_argument(
        "--remat", choices=list(Remat), default=Remat.LAYER.value, help="what backward passes redo (the demo: layer)"
    )
    parser.add_argument("--torch_rows", type=int, default=8, help="trajectories of a torch micro-batch")


def _run(args: argparse.Namespace) -> Result:
    if not 1 <= args.trajectories <= len(DEMO_LENGTHS):
        raise ValueError(f"--trajectories must be between 1 and {len(DEMO_LENGTHS)}, got {args.trajectories}")
    if min(args.row_len, args.rows, args.pack_shapes, args.torch_rows) < 1:
        raise ValueError("--row_len, --rows, --pack_shapes and --torch_rows must be >= 1")
    config, params = load_checkpoint(checkpoint_directory(args.checkpoint))
    sequences = trajectories(args.trajectories, config.vocab_size)
    tokens = sum(len(sequence.ids) - 1 for sequence in sequences)
    packed = pack(sequences, row_len=args.row_len, rows=args.rows, shapes=args.pack_shapes)
    unpacked = padded(sequences, rows=args.rows)
    ways: dict[str, tuple[int, Callable[[], object]]] = {
        "packed": (packed.positions, _ours(config, params, packed, args.remat)),
        "padded": (unpacked.positions, _ours(config, params, unpacked, args.remat)),
    }
    notes = []
    try:
        positions, step = _torch(args, sequences)
        ways["transformers, padded"] = (positions, step)
    except ImportError as error:
        notes.append(f"torch is left out: {error}")
    rows: list[dict[str, str | float | None]] = []
    speed: dict[str, float] = {}
    for name, (positions, step) in ways.items():
        first, median = seconds(step, args.repeats)
        speed[name] = tokens / median
        rows.append(
            {
                "step": name,
                "update_s": median,
                "real_tokens_per_s": speed[name],
                "fill_rate": tokens / positions,
                "compile_s": None if name.startswith("transformers") else max(first - median, 0.0),
            }
        )
    figures = {
        "packing_ratio": speed["packed"] / speed["padded"],
        "fill_rate": packed.fill_rate,
        "long_tail_fill_rate": long_tail_fill_rate(),
    }
    if "transformers, padded" in speed:
        figures["ratio"] = speed["packed"] / speed["transformers, padded"]
    names = ("trajectories", "row_len", "rows", "pack_shapes", "remat", "torch_rows")
    settings = {name: getattr(args, name) for name in names}
    settings |= {"tokens": tokens, "devices": jax.local_device_count(), "dtype": "float32"}
    return Result(settings, rows, tuple(notes), figures)


def trajectories(count: int, vocabulary: int) -> list[TrainSequence]:
    """Sequences of the demo's lengths: a prompt, a turn, a tool's answer, and a turn."""
    rng = np.random.default_rng(0)
    out = []
    for length, sampled in DEMO_LENGTHS[:count]:
        mask = np.zeros(length + 1, bool)
        first = sampled * 3 // 5
        start = (length + 1 - sampled) * 2 // 3
        mask[start : start + first] = True
        mask[length + 1 - (sampled - first) :] = True
        ids = rng.integers(0, vocabulary, length + 1).astype(np.int32)
        out.append(TrainSequence(ids, mask, np.full(length + 1, -1.0, np.float32)))
    return out


def padded(sequences: Sequence[TrainSequence], *, rows: int) -> Packed:
    """Every sequence in a row of its own, as long as the longest."""
    longest = max(len(sequence.ids) for sequence in sequences) - 1
    packs = [pack([sequence], row_len=longest, rows=1) for sequence in sequences]
    alone = [one.batches[0] for one in packs]
    empty = jax.tree.map(np.zeros_like, alone[0])
    groups = [alone[start : start + rows] for start in range(0, len(alone), rows)]
    batches = [
        jax.tree.map(lambda *leaves: np.concatenate(leaves), *group, *[empty] * (rows - len(group))) for group in groups
    ]
    tokens = sum(one.tokens for one in packs)
    return Packed(tuple(batches), sum(one.targets for one in packs), tokens, len(batches) * rows * longest, 0)


def long_tail_fill_rate() -> float:
    """Positions in use of 64 trajectories whose lengths are log-normal, median 2,500, at most 32,768."""
    lengths = np.random.default_rng(1).lognormal(np.log(2500), 1.0, 64)
    sequences = []
    for length in np.clip(lengths, 300, _TAIL["row_len"]).astype(int):
        mask = np.arange(length + 1) == length
        sequences.append(TrainSequence(np.ones(length + 1, np.int32), mask, np.zeros(length + 1, np.float32)))
    return pack(sequences, **_TAIL).fill_rate


def _ours(config: Qwen35Config, params: Any, packed: Packed, remat: str) -> Callable[[], object]:
    """One update after another, on all cores of a CPU."""
    step = TrainStep(
        config,
        make_optimizer(OptimizerSettings(learning_rate=LEARNING_RATE)),
        sampling=Sampling(1.0, 1.0, 20),
        workers=jax.local_device_count() if jax.default_backend() == "cpu" else 0,
        remat=Remat.of(remat),
    )
    held: list[TrainState] = [step.init(params)]

    def update() -> object:
        state, _ = step.update(held.pop(), packed.batches)
        held.append(jax.block_until_ready(state))
        return state

    return update


def _torch(args: argparse.Namespace, sequences: Sequence[TrainSequence]) -> tuple[int, Callable[[], object]]:
    """The positions of a step and the step: gradients summed over micro-batches padded to their longest trajectory.

    Raises:
        ImportError: torch or transformers is not there.
    """
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(checkpoint_directory(args.checkpoint), dtype=torch.float32).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0)
    by_length = sorted(sequences, key=lambda sequence: len(sequence.ids))
    targets = sum(sequence.targets for sequence in sequences)
    batches = []
    for start in range(0, len(by_length), args.torch_rows):
        group = by_length[start : start + args.torch_rows]
        shape = (len(group), max(len(sequence.ids) for sequence in group))
        ids, labels, there = np.zeros(shape, np.int64), np.full(shape, -100, np.int64), np.zeros(shape, np.int64)
        for row, sequence in enumerate(group):
            here = (row, slice(len(sequence.ids)))
            ids[here], there[here] = sequence.ids, 1
            labels[here] = np.where(sequence.target_mask, sequence.ids, -100)
        batches.append({"input_ids": ids, "labels": labels, "attention_mask": there})
    tensors = [{name: torch.from_numpy(array) for name, array in batch.items()} for batch in batches]

    def update() -> None:
        optimizer.zero_grad()
        for batch in tensors:
            model(**batch, num_items_in_batch=targets, use_cache=False).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return sum(batch["input_ids"].size for batch in batches), update


BENCH = Bench("a training step: packed, padded, and transformers with torch", _add_arguments, _run, all_cores=True)
