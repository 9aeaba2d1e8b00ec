"""The sharding table: the real shapes are divided, what does not divide is named, and no mesh changes the numbers."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from whale_jax.plan.sizes import SIZES
from whale_jax.qwen3_5.params import param_shapes
from whale_jax.qwen3_5.sharding import AXES, TABLE, ShardingError, check, make_mesh, param_specs

MEGABYTE = 2**20
DEVICES = 8


def abstract_mesh(data, fsdp, tensor):
    return AbstractMesh((data, fsdp, tensor), AXES, axis_types=(AxisType.Auto,) * 3)


def leaves(config):
    shapes, _ = jax.tree.flatten_with_path(param_shapes(config), is_leaf=lambda node: isinstance(node, tuple))
    specs = jax.tree.leaves(param_specs(config), is_leaf=lambda node: isinstance(node, PartitionSpec))
    return [(jax.tree_util.keystr(path), shape, spec) for (path, shape), spec in zip(shapes, specs, strict=True)]


@pytest.mark.parametrize("size", SIZES)
def test_nothing_large_is_replicated(size):
    """Over `fsdp` everything of more than 1 MB in fp32 is divided; over `tensor` every large matrix."""
    for name, shape, spec in leaves(SIZES[size]):
        axes = {axis for entry in spec if entry is not None for axis in ((entry,) if isinstance(entry, str) else entry)}
        assert len(spec) == len(shape), name
        if 4 * math.prod(shape) > MEGABYTE:
            assert axes == {"fsdp", "tensor"}, f"{name} {shape} is only divided over {axes}"


@pytest.mark.parametrize("size", SIZES)
def test_table_covers_every_parameter_and_no_other(size):
    names = {name.rsplit("['", 1)[1].rstrip("']") for name, _, _ in leaves(SIZES[size])}
    assert names <= TABLE.keys()
    assert TABLE.keys() - names <= {"lm_head"}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("mesh", [(1, 16, 1), (1, 32, 1), (2, 8, 2), (4, 64, 1), (1, 4, 2)])
def test_real_sizes_divide_over_real_meshes(size, mesh):
    check(SIZES[size], abstract_mesh(*mesh), rows=math.prod(mesh))


def test_what_does_not_divide_is_named():
    with pytest.raises(ShardingError, match=r"tensor \(4\) does not divide the key/value heads: 2"):
        check(SIZES["2b"], abstract_mesh(1, 4, 4))
    with pytest.raises(ShardingError, match=r"fsdp \(3\) does not divide a dimension of embed \(248320, 2048\): 2048"):
        check(SIZES["2b"], abstract_mesh(1, 3, 1))
    with pytest.raises(ShardingError, match=r"data \(2\) x fsdp \(8\) does not divide the rows of a batch: 12"):
        check(SIZES["2b"], abstract_mesh(2, 8, 1), rows=12)


def test_mesh_must_be_whole():
    with pytest.raises(ShardingError, match=r"fsdp 0"):
        make_mesh(1, 0, 1)
    with pytest.raises(ShardingError, match="needs 6 devices, got 1"):
        make_mesh(1, 6, 1, devices=jax.devices()[:1])


@pytest.fixture(scope="module")
def on_eight_devices():
    """What `on_eight_devices.py` prints, run with as many virtual CPU devices."""
    program = Path(__file__).with_name("on_eight_devices.py")
    root = Path(__file__).parents[3]
    env = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_backend_optimization_level=0",  # runs for milliseconds, compiles for long
        "PYTHONPATH": f"{root}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
    }
    done = subprocess.run([sys.executable, str(program)], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *meshes, in_bf16, steps = [json.loads(line) for line in done.stdout.splitlines()]
    return meshes, in_bf16, steps


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_mesh_gives_the_loss_and_gradients_of_one_device(on_eight_devices):
    meshes, _, _ = on_eight_devices
    run = {tuple(line["mesh"]): line["difference"] for line in meshes if "difference" in line}
    refused = {tuple(line["mesh"]): line["refused"] for line in meshes if "refused" in line}
    assert {math.prod(mesh) for mesh in (*run, *refused)} == {DEVICES}
    assert len(run) + len(refused) == 10
    assert list(refused) == [(1, 1, 8)]
    assert "tensor (8) does not divide the key/value heads: 4" in refused[1, 1, 8]
    for mesh, difference in run.items():
        worst = max(difference, key=lambda name: difference[name])
        assert difference[worst] < 2e-4, f"{mesh}: {worst} differs by {difference[worst]}"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_bf16_compute_on_a_mesh(on_eight_devices):
    """Sums in another order are rounded otherwise: both are within 5 % of fp32's gradient, and so no further from each
    other than twice as far as one device is from fp32."""
    _, found, _ = on_eight_devices
    assert 0 < found["one_to_fp32"] < 0.05
    assert found["mesh_to_one"] < 2 * found["one_to_fp32"]
    assert found["dtypes"] == ["float32"], "gradients are those of the fp32 master weights"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_optimizer_steps_on_a_mesh(on_eight_devices):
    _, _, steps = on_eight_devices
    assert steps["divided"] == [True, True, True], "parameters and both moments stay divided through the steps"
    assert max(steps["difference"].values()) < 1e-3
    for name in ("loss", "grad_norm", "mismatch"):
        ours, reference = steps[name]
        assert ours == pytest.approx(reference, rel=1e-4), name
