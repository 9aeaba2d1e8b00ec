"""Rollout throughput on random weights of the demo's shape: `python -m whale_jax.serving.bench_rollout --slots=64`.

Prints one JSON line, with rates by the wall and by processor time: other work on the machine slows the first alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence

import jax
import numpy as np

from whale_jax.qwen3_5 import model
from whale_jax.qwen3_5.config import Qwen35Config
from whale_jax.serving.driver import Driver, Sampling, make_driver
from whale_jax.serving.engine import Engine

DEMO_SHAPE = Qwen35Config(
    vocab_size=1536,
    hidden_size=128,
    intermediate_size=384,
    num_layers=4,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    linear_key_heads=4,
    linear_value_heads=4,
    linear_key_dim=32,
    linear_value_dim=32,
    rope_theta=10_000.0,
)


async def run_sessions(driver: Driver, *, sessions: int, turns: int, seed: int) -> None:
    """All sessions at once: 150-300 new ids in the first turn, 60-120 in later ones, 20-60 sampled in each."""
    rng = np.random.default_rng(seed)

    async def one(index: int, lengths: np.ndarray) -> None:
        session = driver.open()
        for turn, (first, later, sampled) in enumerate(lengths.tolist()):
            ids = np.random.default_rng((seed, index, turn)).integers(0, 1_000, first if turn == 0 else later).tolist()
            await driver.generate(session, ids, max_tokens=sampled, sampling=Sampling(), key=(index, turn))
        driver.close(session)

    shape = (sessions, turns)
    lengths = np.stack([rng.integers(150, 301, shape), rng.integers(60, 121, shape), rng.integers(20, 61, shape)], -1)
    await asyncio.gather(*(one(index, lengths[index]) for index in range(sessions)))


def main(argv: Sequence[str] | None = None) -> None:
    """Measures single-turn and two-turn sessions, twice as many as slots, after one warm-up round."""
    parser = argparse.ArgumentParser(description="Rollout throughput on random weights of the demo's shape.")
    parser.add_argument("--driver", choices=("scheduler", "jetstream"), default="scheduler")
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--max_len", type=int, default=768)
    parser.add_argument("--extend_rows", type=int, default=16)
    parser.add_argument("--extend_chunk", type=int, default=32)
    parser.add_argument("--decode_steps", type=int, default=8)
    args = parser.parse_args(argv)
    engine = Engine(
        DEMO_SHAPE,
        model.init_params(DEMO_SHAPE, jax.random.key(0)),
        slots=args.slots,
        max_len=args.max_len,
        stop_ids=(1535,),
        extend_rows=args.extend_rows,
        extend_chunk=args.extend_chunk,
        decode_steps=args.decode_steps,
    )
    report: dict[str, object] = dict(vars(args))
    with make_driver(args.driver, engine) as driver:
        asyncio.run(run_sessions(driver, sessions=8, turns=1, seed=0))
        for turns in (1, 2):
            before, wall, processor = driver.stats(), time.perf_counter(), time.process_time()
            asyncio.run(run_sessions(driver, sessions=2 * args.slots, turns=turns, seed=turns))
            wall, processor = time.perf_counter() - wall, time.process_time() - processor
            done = {name: value - before[name] for name, value in driver.stats().items()}
            report[f"turns_{turns}"] = {
                "sampled_per_second": round(done["sampled_tokens"] / wall, 1),
                "sampled_per_processor_second": round(done["sampled_tokens"] / processor, 1),
                "computed_per_processor_second": round(done["computed_tokens"] / processor, 1),
                "wall_seconds": round(wall, 2),
                "processor_seconds": round(processor, 2),
                **{name: value for name, value in done.items() if value},
            }
    json.dump(report, sys.stdout)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
