"""Run as a program on eight virtual CPU devices: the training loss and its gradients on every mesh, as JSON.

One line per mesh: its shape and, for the loss, the token sums, the sampled log-probabilities and each parameter's
gradient, the largest difference from one device, relative to the largest entry. The last two lines are about gradients
of bf16 compute and about whole optimizer steps.
"""

import dataclasses
import itertools
import json
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from whale_jax.qwen3_5 import model
from whale_jax.qwen3_5.config import Qwen35Config
from whale_jax.qwen3_5.params import param_shapes
from whale_jax.qwen3_5.sharding import Placement, ShardingError, make_mesh
from whale_jax.serving.driver import Sampling
from whale_jax.training.loss import sampled_logprobs, sum_nll
from whale_jax.training.optimizer import OptimizerSettings, make_optimizer
from whale_jax.training.packing import Batch
from whale_jax.training.sharded_loss import sampled_logprobs_sharded, sum_nll_sharded
from whale_jax.training.step import TrainStep

DEVICES, ROWS, LENGTH, CHUNK = 8, 8, 12, 5
CONFIG = Qwen35Config(
    vocab_size=80,
    hidden_size=32,
    intermediate_size=48,
    num_layers=4,
    num_heads=8,
    num_kv_heads=4,
    head_dim=8,
    linear_key_heads=4,
    linear_value_heads=8,
    linear_key_dim=8,
    linear_value_dim=8,
    rope_theta=1e4,
    tie_embeddings=False,
)
KEPT = {"temperature": 0.8, "top_k": 30, "top_p": 0.9, "chunk": CHUNK}


def random_params(config):
    rng = np.random.default_rng(0)
    is_shape = lambda node: isinstance(node, tuple)  # noqa: E731
    return jax.tree.map(
        lambda shape: rng.normal(scale=0.3, size=shape).astype(np.float32), param_shapes(config), is_leaf=is_shape
    )


def random_batch():
    """Rows with different numbers of targets, one with none, padding included."""
    rng = np.random.default_rng(1)
    shape = (ROWS, LENGTH)
    segments = np.sort(rng.integers(1, 4, shape), axis=1).astype(np.int32)
    segments[1, 9:] = 0
    weights = ((rng.random(shape) < 0.6) & (segments > 0)).astype(np.float32)
    weights[3] = 0
    tokens, targets = (rng.integers(0, CONFIG.vocab_size, shape).astype(np.int32) for _ in range(2))
    return Batch(tokens, segments, targets, weights, -weights)


def loss_and_more(placement, params, batch, dtype=jnp.float32):
    """Everything the comparison looks at: (loss, (sums, log-probabilities)), gradients."""
    mesh = None if placement is None else placement.mesh
    nll_sums = sum_nll if mesh is None else partial(sum_nll_sharded, mesh=mesh)
    logprobs = sampled_logprobs if mesh is None else partial(sampled_logprobs_sharded, mesh=mesh)

    def loss(params):
        hidden = model.forward(
            CONFIG, params, batch.tokens, batch.segment_ids, remat=False, placement=placement, compute_dtype=dtype
        )
        flat = hidden.reshape(-1, CONFIG.hidden_size), params["lm_head"], batch.targets.ravel(), batch.weights.ravel()
        sums = nll_sums(*flat, chunk=CHUNK)
        return sums.nll, (sums, logprobs(*flat, **KEPT))

    return jax.value_and_grad(loss, has_aux=True)(params)


def difference(ours, theirs):
    """Largest difference over the largest entry, per leaf."""

    def one(mine, reference):
        mine, reference = np.asarray(mine, np.float64), np.asarray(reference, np.float64)
        return float(np.abs(mine - reference).max() / max(np.abs(reference).max(), 1e-3))

    flat, _ = jax.tree.flatten_with_path(jax.tree.map(one, ours, theirs))
    return {jax.tree_util.keystr(path): value for path, value in flat}


def on_every_mesh(params, batch):
    reference = jax.jit(partial(loss_and_more, None))(params, batch)
    for shape in itertools.product((1, 2, 4, 8), repeat=3):
        if np.prod(shape) != DEVICES:
            continue
        try:
            placement = Placement(CONFIG, make_mesh(*shape))
        except ShardingError as error:
            print(json.dumps({"mesh": shape, "refused": str(error)}))
            continue
        placed = jax.tree.map(jax.device_put, params, placement.params)
        ours = jax.jit(partial(loss_and_more, placement))(placed, batch)
        print(json.dumps({"mesh": shape, "difference": difference(ours, reference)}))


def in_bf16(params, batch):
    """Gradients of bf16 compute: on a mesh against one device, and there against fp32, by the norm of the difference
    over that of the gradient. The weights are a quarter as large: at full size the model amplifies any rounding."""
    place = Placement(CONFIG, make_mesh(2, 2, 2))
    params = jax.tree.map(lambda leaf: leaf / 4, params)
    grads = {
        name: jax.jit(partial(loss_and_more, placement, dtype=dtype))(placed, batch)[1]
        for name, placement, dtype, placed in [
            ("mesh", place, jnp.bfloat16, jax.tree.map(jax.device_put, params, place.params)),
            ("one", None, jnp.bfloat16, params),
            ("fp32", None, jnp.float32, params),
        ]
    }
    flat = {
        name: np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(tree)])
        for name, tree in grads.items()
    }
    size = np.linalg.norm(flat["fp32"])
    far = {name: np.linalg.norm(flat[name] - flat[other]) / size for name, other in [("mesh", "one"), ("one", "fp32")]}
    dtypes = {str(leaf.dtype) for leaf in jax.tree.leaves(grads["mesh"])}
    print(json.dumps({"mesh_to_one": far["mesh"], "one_to_fp32": far["one"], "dtypes": sorted(dtypes)}))


def whole_steps(params, batch):
    """Two AdamW steps of the tied model on a mesh and on one device: the difference, and how the state is divided."""
    results = []
    config = dataclasses.replace(CONFIG, tie_embeddings=True)
    params = {name: leaf for name, leaf in params.items() if name != "lm_head"}
    place = Placement(config, make_mesh(2, 2, 2))
    for placement in (None, place):
        step = TrainStep(
            config,
            make_optimizer(OptimizerSettings(learning_rate=1e-2, eps=1e-3)),
            sampling=Sampling(temperature=0.8, top_p=0.9, top_k=30),
            loss_chunk=CHUNK,
            placement=placement,
        )
        state = step.init(params)
        for batches in ([batch], [batch, batch]):
            state, metrics = step.update(state, batches)
        results.append((state.params, metrics))
    (reference, reference_metrics), (ours, metrics) = results
    moments = state.opt_state[1][0]
    divided = [
        jax.tree.all(
            jax.tree.map(lambda leaf, sharding: leaf.sharding.is_equivalent_to(sharding, leaf.ndim), tree, place.params)
        )
        for tree in (ours, moments.mu, moments.nu)
    ]
    print(
        json.dumps(
            {
                "difference": difference(ours, reference),
                "loss": [metrics.loss, reference_metrics.loss],
                "grad_norm": [metrics.grad_norm, reference_metrics.grad_norm],
                "mismatch": [metrics.mismatch.max, reference_metrics.mismatch.max],
                "divided": divided,
            }
        )
    )


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", DEVICES)
    if jax.device_count() != DEVICES:
        sys.exit(f"needs {DEVICES} devices, has {jax.device_count()}")
    parameters, the_batch = jax.tree.map(jnp.asarray, (random_params(CONFIG), random_batch()))
    on_every_mesh(parameters, the_batch)
    in_bf16(parameters, the_batch)
    whole_steps(parameters, jax.tree.map(np.asarray, the_batch))
