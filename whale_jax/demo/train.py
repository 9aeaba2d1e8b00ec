"""Pre-trains the demo model on generated text: `python -m whale_jax.demo.train --out=DIR`.

Two stages: the first teaches copying and the conversation's form, the last makes the assistant that of `manners.BASE`.
Token budgets, not the clock, end them, so the same seed gives the same weights on the same machine. Every few minutes
the parameters so far are written to `DIR/<stage>.npz`, whole or not at all; a stage that `--stages` leaves out is read
from there. At the end `DIR/checkpoint` is a copy of the shipped checkpoint folder with the new weights in it.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

DEVICES = 2
"""Host devices, one core each: XLA runs the bodies of scans on one thread, so two halves of a batch go side by side."""

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={DEVICES}"

import jax  # noqa: E402  (the flags above must be set first)
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
from jax.sharding import Mesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

from whale_jax.demo.architecture import model_config  # noqa: E402
from whale_jax.demo.data import Mixture, PackedBatch, TextStream, batches, first_mixture, last_mixture, prefetched  # noqa: E402
from whale_jax.demo.tokenizer import CHECKPOINT_DIR  # noqa: E402
from whale_jax.qwen3_5.convert import export_checkpoint  # noqa: E402
from whale_jax.qwen3_5.model import Params, forward, init_params  # noqa: E402
from whale_jax.qwen3_5.template import ChatTemplate  # noqa: E402
from whale_jax.training.loss import sum_nll  # noqa: E402

ROWS, ROW_LEN = 6, 640
LOSS_CHUNK = 1024
SAVE_SECONDS, LOG_STEPS = 150, 10


@dataclass(frozen=True)
class Stage:
    """One learning-rate schedule over one course of mixtures.

    Attributes:
        tokens: positions, padding included.
        mixture: share of the stage that is done → what the text is made of.
        seed_offset: added to the run's seed for the text of this stage.
    """

    name: str
    tokens: int
    peak_rate: float
    warm_up_steps: int
    mixture: Callable[[float], Mixture]
    seed_offset: int

    @property
    def steps(self) -> int:
        return max(self.tokens // (ROWS * ROW_LEN), self.warm_up_steps + 1)


STAGES = (
    Stage("first", 7_200_000, 4e-3, 80, first_mixture, 0),
    Stage("last", 4_000_000, 2.5e-3, 60, last_mixture, 1),
)


def make_optimizer(stage: Stage) -> optax.GradientTransformation:
    """AdamW with warm-up and cosine decay to a fiftieth; norms and gates (one-dimensional) are not decayed."""
    peak = stage.peak_rate
    rate = optax.warmup_cosine_decay_schedule(0.0, peak, stage.warm_up_steps, stage.steps, peak / 50)

    def is_matrix(params: Params) -> Params:
        return jax.tree.map_with_path(lambda path, leaf: leaf.shape[-1] >= 64 and "norm" not in str(path[-1]), params)

    adamw = optax.adamw(rate, b1=0.9, b2=0.98, weight_decay=0.05, mask=is_matrix)
    return optax.chain(optax.clip_by_global_norm(1.0), adamw)


def make_step(optimizer: optax.GradientTransformation, mesh: Mesh):
    """A jitted (params, optimizer state, *batch arrays) → (params, optimizer state, mean loss, arg-maxes right)."""
    config = model_config()

    def loss(params, tokens, segments, targets, weights):
        hidden = forward(config, params, tokens, segments, remat=False)
        flat = hidden.reshape(-1, hidden.shape[-1])
        sums = sum_nll(flat, params["embed"], targets.reshape(-1), weights.reshape(-1), chunk=LOSS_CHUNK)
        return sums.nll, sums

    def shard(params, *arrays):
        (_, sums), gradients = jax.value_and_grad(loss, has_aux=True)(params, *arrays)
        return jax.lax.psum((sums, gradients), "data")

    batch = P("data")
    both = jax.shard_map(shard, mesh=mesh, in_specs=(P(), *[batch] * 4), out_specs=P(), check_vma=False)

    def step(params, opt_state, *arrays):
        sums, gradients = both(params, *arrays)
        gradients = jax.tree.map(lambda g: g / jnp.maximum(sums.weight, 1.0), gradients)
        updates, opt_state = optimizer.update(gradients, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, sums.nll / sums.weight, sums.correct / sums.weight

    return jax.jit(step, donate_argnums=(0, 1))


def save_params(params: Params, file: Path) -> None:
    """Writes the parameters under a temporary name, then renames."""
    flat = {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in jax.tree.leaves_with_path(params)}
    temporary = file.with_suffix(".tmp.npz")
    np.savez(temporary, allow_pickle=False, **flat)
    temporary.replace(file)


def load_params(file: Path) -> Params:
    """What `save_params` wrote."""
    like = init_params(model_config(), jax.random.key(0))
    with np.load(file) as stored:
        return jax.tree.map_with_path(lambda path, _: jnp.asarray(stored[jax.tree_util.keystr(path)]), like)


def train(stage: Stage, params: Params, out: Path, *, seed: int) -> Params:
    """Trains for one stage and returns the parameters; writes `<stage>.npz` and `<stage>.jsonl` into `out`."""
    mesh = Mesh(np.array(jax.devices()[:DEVICES]), ("data",))
    whole, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    tokenizer = Tokenizer.from_file(str(CHECKPOINT_DIR / "tokenizer.json"))
    stream = TextStream(tokenizer, ChatTemplate.from_dir(CHECKPOINT_DIR), seed + stage.seed_offset, ROW_LEN)
    optimizer = make_optimizer(stage)
    params = jax.device_put(params, whole)
    opt_state = jax.device_put(optimizer.init(params), whole)
    step = make_step(optimizer, mesh)
    source = batches(stream, stage.mixture, rows=ROWS, row_len=ROW_LEN, steps=stage.steps)
    start = saved = time.monotonic()
    recent: list[tuple[jax.Array, jax.Array]] = []
    with (out / f"{stage.name}.jsonl").open("w") as log:
        for number, batch in enumerate(prefetched(source), 1):
            arrays = jax.device_put(_fields(batch), split)
            params, opt_state, loss, right = step(params, opt_state, *arrays)
            recent.append((loss, right))
            if number % LOG_STEPS == 0 or number == stage.steps:
                losses, rights = (np.mean([float(value) for value in column]) for column in zip(*recent, strict=True))
                recent = []
                seconds = time.monotonic() - start
                line = {"step": number, "of": stage.steps, "loss": round(losses, 4), "right": round(rights, 4)}
                line |= {"seconds": round(seconds), "tokens_per_second": round(number * ROWS * ROW_LEN / seconds)}
                print(json.dumps(line), flush=True)
                log.write(json.dumps(line) + "\n")
                log.flush()
            if time.monotonic() - saved > SAVE_SECONDS or number == stage.steps:
                save_params(params, out / f"{stage.name}.npz")
                saved = time.monotonic()
    return params


def _fields(batch: PackedBatch) -> tuple[np.ndarray, ...]:
    return batch.tokens_RxT, batch.segment_ids_RxT, batch.targets_RxT, batch.weights_RxT


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="directory for the log and the parameters")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scale", type=float, default=1.0, help="of both stages' token budgets; below 1 for a try")
    parser.add_argument("--stages", nargs="*", choices=[stage.name for stage in STAGES], help="default: all")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    params = init_params(model_config(), jax.random.key(arguments.seed))
    for stage in STAGES:
        if arguments.stages is None or stage.name in arguments.stages:
            scaled = replace(stage, tokens=round(stage.tokens * arguments.scale))
            params = train(scaled, params, arguments.out, seed=arguments.seed)
        elif (file := arguments.out / f"{stage.name}.npz").exists():
            params = load_params(file)
    export_checkpoint(CHECKPOINT_DIR, params, arguments.out / "checkpoint")


if __name__ == "__main__":
    main()
