"""Two real optimizer steps on a mesh of all devices: `python -m tests.whale_jax.hosts.one_step OUT [flags]`.

Every process makes them; process 0 writes parameters, moments and metrics to OUT, an npz.
"""

import asyncio
import sys

import jax
import numpy as np
from absl import flags as absl_flags

from tests.whale_jax.small_world import MODEL, SETTINGS
from whale_jax import flags
from whale_jax.config import RunConfig
from whale_jax.hosts.company import in_company
from whale_jax.hosts.follower import Follower
from whale_jax.hosts.hosts import Hosts
from whale_jax.mesh import make_placement
from whale_jax.qwen3_5.params import param_shapes
from whale_jax.serving.driver import Sampling
from whale_jax.training.fingerprint import named_leaves
from whale_jax.training.optimizer import OptimizerSettings, make_optimizer
from whale_jax.training.packing import pack
from whale_jax.training.rsft import TrainSequence
from whale_jax.training.step import TrainStep


def steps(config: RunConfig, hosts: Hosts) -> int:
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda shape: rng.normal(scale=0.1, size=shape).astype(np.float32),
        param_shapes(MODEL),
        is_leaf=lambda node: isinstance(node, tuple),
    )
    mask = np.array([False] + [True] * 11)
    sequences = [
        TrainSequence(rng.integers(1, 40, 12).astype(np.int32), mask, np.full(12, -1.0, np.float32)) for _ in range(8)
    ]
    step = TrainStep(
        MODEL,
        make_optimizer(OptimizerSettings(learning_rate=1e-2, eps=1e-3)),
        sampling=Sampling(top_k=40),
        loss_chunk=16,
        remat=False,
        placement=make_placement(config, MODEL),
    )
    state, found = step.init(params), {}
    for number in range(2):
        batches = pack(sequences, row_len=32, rows=config.training.rows).batches
        state, metrics = step.update(state, batches)
        assert metrics is not None
        assert metrics.mismatch is not None
        found[f"metrics/{number}"] = np.array([metrics.loss, metrics.grad_norm, metrics.tokens, metrics.mismatch.max])
    found |= {name: hosts.collect(leaf) for name, leaf in named_leaves(state).items()}
    if isinstance(hosts, Follower):
        return asyncio.run(last_order(hosts))
    np.savez(sys.argv[1], **found)
    return 0


async def last_order(hosts: Follower) -> int:
    return (await hosts.orders().get()).fields["status"]


def main() -> int:
    values = absl_flags.FlagValues()
    flags.define(values)
    config = RunConfig.from_values({**SETTINGS, **flags.given(["one_step", *sys.argv[2:]], values)})
    return in_company(config, lambda hosts: steps(config, hosts))


if __name__ == "__main__":
    sys.exit(main())
