"""The update rules as the settings say."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from whale_jax.qwen3_5.config import Qwen35Config
from whale_jax.qwen3_5.params import param_shapes
from whale_jax.qwen3_5.sharding import Placement, make_mesh
from whale_jax.serving.driver import Sampling
from whale_jax.training.optimizer import (
    OptimizerName,
    OptimizerSettings,
    like_params,
    make_optimizer,
    state_sharding,
)
from whale_jax.training.step import TrainStep

PARAMS = {"w": jnp.array([1.0, -2.0])}
GRADS = {"w": jnp.array([3.0, 4.0])}  # norm 5


def step(settings, grads=GRADS):
    optimizer = make_optimizer(settings)
    updates, _ = optimizer.update(grads, optimizer.init(PARAMS), PARAMS)
    return np.asarray(optax.apply_updates(PARAMS, updates)["w"])


def test_the_first_step_moves_every_weight_by_the_learning_rate():
    np.testing.assert_allclose(step(OptimizerSettings(learning_rate=0.1)), [0.9, -2.1], rtol=1e-5)


def test_weight_decay_is_decoupled_and_off_by_default():
    decayed = step(OptimizerSettings(learning_rate=0.1, weight_decay=0.5))
    np.testing.assert_allclose(decayed, [0.9 - 0.05, -2.1 + 0.1], rtol=1e-5)
    assert OptimizerSettings().weight_decay == 0


def test_clipping_scales_the_whole_gradient_and_zero_never_clips():
    settings = {"learning_rate": 0.1, "eps": 1.0}  # with a large epsilon the size of the gradient shows
    clipped = step(OptimizerSettings(**settings, clip_norm=1.0))
    np.testing.assert_allclose(clipped, [1 - 0.1 * 0.6 / 1.6, -2 - 0.1 * 0.8 / 1.8], rtol=1e-5)
    unclipped = step(OptimizerSettings(**settings, clip_norm=0.0))
    np.testing.assert_allclose(unclipped, [1 - 0.1 * 3 / 4, -2 - 0.1 * 4 / 5], rtol=1e-5)


def test_values_out_of_range_are_all_named():
    with pytest.raises(ValueError, match=r"learning_rate must be > 0, got 0; b2 must be in \[0, 1\), got 1"):
        OptimizerSettings(learning_rate=0, b2=1)


MATRICES = {"w": jnp.ones((256, 128)), "v": jnp.ones(5)}


@pytest.mark.parametrize("name", OptimizerName)
def test_every_rule_takes_the_learning_rate_and_decays_by_it(name):
    settings = OptimizerSettings(name=name, learning_rate=0.1, clip_norm=0)
    optimizer = make_optimizer(settings)
    grads = {"w": jnp.full((256, 128), 3.0), "v": jnp.full(5, -2.0)}
    updates, _ = optimizer.update(grads, optimizer.init(MATRICES), MATRICES)
    np.testing.assert_allclose(updates["w"], -0.1, rtol=1e-4)
    np.testing.assert_allclose(updates["v"], 0.1, rtol=1e-4)
    decaying = make_optimizer(dataclasses.replace(settings, weight_decay=0.5))
    decayed, _ = decaying.update(grads, decaying.init(MATRICES), MATRICES)
    np.testing.assert_allclose(decayed["w"], updates["w"] - 0.1 * 0.5 * 1.0, rtol=1e-4)


@pytest.mark.parametrize(("name", "per_parameter"), [("adamw", 8.0), ("lion", 2.0), ("adafactor", 0.1)])
def test_low_memory_rules_keep_little(name, per_parameter):
    state = make_optimizer(OptimizerSettings(name=OptimizerName(name))).init(MATRICES)
    kept = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    assert kept <= per_parameter * sum(leaf.size for leaf in jax.tree.leaves(MATRICES)) + 100


@pytest.mark.parametrize("name", OptimizerName)
def test_every_state_is_divided_like_its_parameters(name):
    """Two devices; a factored moment has the dimensions of its parameter but one."""
    mesh = Mesh(np.array(jax.devices()[:2]), ("fsdp",))
    shardings = {"w": NamedSharding(mesh, PartitionSpec(None, "fsdp")), "v": NamedSharding(mesh, PartitionSpec())}
    state = jax.eval_shape(make_optimizer(OptimizerSettings(name=name)).init, MATRICES)

    specs = {}

    def note(leaf, parameter, sharding):
        specs[leaf.shape] = state_sharding(leaf, parameter, sharding).spec

    like_params(state, MATRICES, note, shardings, NamedSharding(mesh, PartitionSpec()))
    assert specs[()] == PartitionSpec()
    if name is OptimizerName.ADAFACTOR:
        assert (specs[256,], specs[128,]) == (PartitionSpec(None), PartitionSpec("fsdp"))
    else:
        assert specs[256, 128] == PartitionSpec(None, "fsdp")


WIDE = Qwen35Config(
    vocab_size=256, hidden_size=128, intermediate_size=256, num_layers=4, num_heads=2, num_kv_heads=1, head_dim=128,
    linear_key_heads=2, linear_value_heads=2, linear_key_dim=64, linear_value_dim=64, rope_theta=1e4,
)  # fmt: skip
"""Wide enough for Adafactor to keep a row and a column in place of a matrix."""


@pytest.mark.parametrize("name", OptimizerName)
def test_on_a_mesh_a_step_begins_with_the_state_that_is_planned_half_of_it_on_each_chip(name):
    step = TrainStep(
        WIDE,
        make_optimizer(OptimizerSettings(name=name)),
        sampling=Sampling(),
        placement=Placement(WIDE, make_mesh(1, 2, 1, devices=jax.devices()[:2])),
    )
    params = jax.tree.map(np.zeros, param_shapes(WIDE), is_leaf=lambda node: isinstance(node, tuple))
    state, planned = jax.tree.leaves(step.init(params).opt_state), jax.tree.leaves(step.opt_state_shapes())
    assert [(leaf.shape, leaf.dtype) for leaf in state] == [(leaf.shape, leaf.dtype) for leaf in planned]
    assert all(
        leaf.sharding.is_equivalent_to(shape.sharding, leaf.ndim) for leaf, shape in zip(state, planned, strict=True)
    )
    parameters = sum(leaf.size for leaf in jax.tree.leaves(params))
    on_a_chip = sum(leaf.addressable_shards[0].data.nbytes for leaf in state) / parameters
    assert on_a_chip == pytest.approx(name.state_bytes / 2, abs=0.08)
