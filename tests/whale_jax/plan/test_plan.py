"""The command: what it prints, what it refuses, and one compilation for a TPU."""

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest
from absl import flags
from jax.sharding import AbstractMesh

from tests.whale_jax.small_world import MODEL, tasks
from whale_jax.assemble import make_policy
from whale_jax.config import RunConfig
from whale_jax.domains.task import Split
from whale_jax.plan import plan as planning
from whale_jax.plan import programs
from whale_jax.plan.__main__ import define, run
from whale_jax.plan.chips import CHIPS, Topology, TopologyError, topology
from whale_jax.plan.plan import Plan, largest_batch
from whale_jax.plan.programs import Step, Work, default_mesh
from whale_jax.plan.report import table
from whale_jax.plan.sizes import SIZES
from whale_jax.policy import Initial
from whale_jax.qwen3_5.remat import Remat
from whale_jax.qwen3_5.sharding import AXES, ShardingError
from whale_jax.report.busy import BusyClock
from whale_jax.training.optimizer import OptimizerName, OptimizerSettings
from whale_jax.training.step import TrainStep

ROOT = Path(__file__).parents[3]
DEMO = str(ROOT / "whale_jax" / "demo" / "checkpoint")
KEYS = {
    "model", "topology", "chips", "step", "batch", "seq_len", "remat", "optimizer", "mesh", "fits", "spare_bytes",
    "bytes_limit", "bytes_per_chip", "model_flops", "executed_flops", "mxu_flops", "hbm_bytes", "floor_hbm_bytes",
    "collectives", "collective_bytes", "step_seconds_bound", "mfu_bound", "bound_by", "compile_seconds",
}  # fmt: skip


def command(*arguments):
    values = flags.FlagValues()
    define(values)
    values(["plan", *arguments])
    return run(values)


@pytest.mark.parametrize(
    ("arguments", "kinds"),
    [
        (("--step=decode", "--batch=2", "--seq_len=64"), {"parameters", "cache", "activations", "total"}),
        (
            ("--step=extend", "--batch=2", "--seq_len=64", "--chunk_len=32"),
            {"parameters", "cache", "activations", "total"},
        ),
    ],
)
def test_devices_present(capsys, arguments, kinds):
    assert (
        command(f"--model={DEMO}", "--topology=here", "--json", "--data=2", "--fsdp=1", "--tensor=1", *arguments) == 0
    )
    *lines, last = capsys.readouterr().out.splitlines()
    found = json.loads(last)
    assert found.keys() == KEYS
    assert found["bytes_per_chip"].keys() == kinds
    assert found["bytes_per_chip"]["total"] == sum(v for k, v in found["bytes_per_chip"].items() if k != "total")
    assert found["executed_flops"] >= 0.9 * found["model_flops"]
    assert found["hbm_bytes"] > found["bytes_per_chip"]["parameters"], "every weight is read"
    assert (found["floor_hbm_bytes"] is not None) == ("--step=decode" in arguments)
    assert lines[0].startswith(f"{DEMO} {found['step']}, batch 2 x 64, 2 chips (here: data 2 x fsdp 1 x tensor 1)")


@pytest.mark.slow
def test_training_step_on_the_devices_present(capsys):
    assert command(f"--model={DEMO}", "--topology=here", "--json", "--batch=2", "--seq_len=64") == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    sizes = found["bytes_per_chip"]
    assert sizes["gradients"] == sizes["parameters"]
    assert 0 < sizes["optimizer"] - 2 * sizes["parameters"] < 64, "two moments, and how many steps there were"
    assert sizes["total"] > 4 * sizes["parameters"]
    assert 1.0 < found["executed_flops"] / found["model_flops"] < 3.0
    assert found["remat"] == "layer"
    assert command(f"--model={DEMO}", "--topology=here", "--json", "--batch=2", "--seq_len=64", "--remat=none") == 0
    keeping = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert keeping["remat"] == "none"
    assert keeping["executed_flops"] < found["executed_flops"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model=7b"], "--model=7b: no such size"),
        (["--topology=v5e"], "--topology=v5e: say chip and grid such as v5e:4x4"),
        (["--topology=v9:2x2"], "chips: v4, v5e, v5p, v6e"),
        (["--fsdp=4"], "name all of --data, --fsdp and --tensor, or none"),
        (["--topology=here", "--data=1", "--fsdp=1", "--tensor=3"], "needs 3 devices"),
        (["--topology=here", "--data=7", "--fsdp=3", "--tensor=1"], "needs 21 devices"),
        (["--topology=here", "--fit", f"--model={DEMO}", "--step=decode", "--batch=2", "--seq_len=32"], "not known"),
    ],
)
def test_refusals(capsys, arguments, message):
    assert command(*arguments) == 2
    assert message in capsys.readouterr().err


def work(batch, step=Step.TRAIN, size="2b", seq_len=32_768):
    return Work(SIZES[size], step, batch, seq_len)


@pytest.mark.parametrize(
    ("batch", "step", "chips", "mesh"),
    [
        (16, Step.TRAIN, 16, (1, 16, 1)),
        (8, Step.TRAIN, 16, (1, 8, 2)),
        (64, Step.DECODE, 16, (16, 1, 1)),
        (8, Step.DECODE, 16, (8, 1, 2)),
    ],
)
def test_default_mesh(batch, step, chips, mesh):
    assert default_mesh(work(batch, step), chips, CHIPS["v5e"].hbm_bytes) == mesh


def test_default_mesh_divides_replicas_that_do_not_fit():
    """The 9B's weights alone are 18 GB in bf16."""
    assert default_mesh(work(64, Step.DECODE, "9b"), 16, CHIPS["v5e"].hbm_bytes) == (8, 1, 2)


def test_default_mesh_refuses_what_cannot_be_divided():
    with pytest.raises(ShardingError, match="--batch=3 cannot be divided over 16 chips"):
        default_mesh(work(3), 16, None)


@pytest.mark.parametrize(("optimizer", "per_parameter"), [("adamw", 8), ("lion", 2), ("adafactor", 0)])
def test_the_optimizer_decides_what_its_state_takes(monkeypatch, optimizer, per_parameter):
    monkeypatch.setattr(TrainStep, "lower", lambda *_: {})
    asked = dataclasses.replace(work(2), optimizer=OptimizerName(optimizer))
    sizes = programs.programs(asked, (1, 2, 1), jax.devices()[:2]).state_bytes
    assert sizes["optimizer"] / sizes["parameters"] * 4 == pytest.approx(per_parameter, abs=0.05)


@pytest.mark.parametrize("optimizer", ["adamw", "adafactor"])
def test_the_planned_step_is_the_runs(tmp_path, optimizer):
    """Text for text: what is compiled for a plan is what a run with these settings trains with."""
    values = {"mesh_fsdp": 2, "rows": 2, "remat": "group", "compute_dtype": "bfloat16", "optimizer": optimizer}
    config = RunConfig.from_values({**values, "learning_rate": OptimizerSettings().learning_rate})
    parts: Any = SimpleNamespace(initial=Initial(tmp_path, MODEL, None, ""), splits={Split.WEIGHT: tasks(Split.WEIGHT)})
    run = make_policy(config, parts, tmp_path, BusyClock())._train_step.lower(2, 16)
    asked = Work(MODEL, Step.TRAIN, 2, 16, remat=Remat.GROUP, optimizer=OptimizerName(optimizer))
    planned = programs.programs(asked, (1, 2, 1), jax.devices()[:2]).lowered
    assert {name: one.as_text() for name, one in run.items()} == {name: one.as_text() for name, one in planned.items()}


def test_overflow_is_read_from_the_compiler():
    message = "RESOURCE_EXHAUSTED: Ran out of memory. Used 21.30G of 15.75G hbm. Exceeded hbm capacity by 5.55G."
    needed, limit = planning._overflow(jax.errors.JaxRuntimeError(message))
    assert (needed, limit) == (21.3 * 2**30, 15.75 * 2**30)
    message = (
        "RESOURCE_EXHAUSTED: the total memory required for HLO temporaries (18.09G) exceeds available HBM (15.75G)."
    )
    assert planning._overflow(jax.errors.JaxRuntimeError(message)) == (18.09 * 2**30, 15.75 * 2**30)
    with pytest.raises(jax.errors.JaxRuntimeError, match="something else"):
        planning._overflow(jax.errors.JaxRuntimeError("something else"))


@pytest.mark.parametrize("largest", [0, 1, 2, 5, 6])
def test_largest_batch(monkeypatch, largest):
    """Finds it, compiling no batch twice."""
    tried = []

    def fake(work, topology, mesh):
        tried.append(work.batch)
        total = 1 if work.batch <= 16 * largest else 3
        return dataclasses.replace(EMPTY, bytes_limit=2, bytes_per_chip={"total": total})

    monkeypatch.setattr(planning, "plan", fake)
    found = largest_batch(work(16), Topology("v5e:4x4", CHIPS["v5e"], [None] * 16))
    assert (found[0].batch if found else 0) == 16 * largest
    assert len(set(tried)) == len(tried)


EMPTY = Plan(
    mesh=(1, 16, 1),
    bytes_limit=None,
    bytes_per_chip={"total": 0},
    model_flops=1.0,
    floor_hbm_bytes=None,
    compile_seconds=0.0,
)


def test_a_program_that_does_not_fit(monkeypatch):
    """The optimizer's moments are not the program's, and there all the same."""

    class Refused:
        def compile(self):
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Used 17.0G of 15.75G hbm.")

    planned = programs.Planned(
        lowered={"accumulate": Refused()},
        state_bytes={"parameters": 2**30, "optimizer": 2 * 2**30},
        argument_kinds={"accumulate": ("parameters",)},
        unknown_trips=1,
        floor_bytes=None,
    )
    monkeypatch.setattr(planning, "programs", lambda *_: planned)
    found = planning.plan(work(16), Topology("v5e:4x4", CHIPS["v5e"], [None] * 16))
    assert found.fits is False
    assert found.bytes_per_chip == {name: size * 2**30 for name, size in PARTS.items()}
    assert found.spare_bytes == -3.25 * 2**30
    assert found.executed_flops is None
    assert "DOES NOT FIT, missing: 3.25 of 15.75 GiB" in table(work(16), Topology("v5e:4x4", None, []), "2b", found)


PARTS = {"parameters": 1, "optimizer": 2, "activations": 16, "total": 19}


def test_serving_keeps_whole_replicas(monkeypatch):
    monkeypatch.setattr(programs, "make_mesh", lambda *shape, devices: AbstractMesh(shape, AXES))
    with pytest.raises(ShardingError, match="--fsdp=8: serving keeps whole replicas"):
        programs.programs(work(64, Step.DECODE), (1, 8, 1), [None] * 8)


def test_topology_error_names_the_package(monkeypatch):
    def refuse(**_):
        raise RuntimeError("no TPU compiler\nmore")

    monkeypatch.setattr("whale_jax.plan.chips.topologies.get_topology_desc", refuse)
    with pytest.raises(TopologyError, match=r"--topology=v5e:4x4: .*\(no TPU compiler\)\. It is in the package libtpu"):
        topology("v5e:4x4")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="the TPU compiler (libtpu) is not installed")
@pytest.mark.parametrize(
    ("changes", "mesh"),
    [
        ({}, {"data": 4, "fsdp": 1, "tensor": 1}),
        # heads of the real sizes, on which the kernels work, divided over chips
        (
            {"head_dim": 128, "linear_key_head_dim": 128, "linear_value_head_dim": 128},
            {"data": 2, "fsdp": 1, "tensor": 2},
        ),
    ],
)
def test_a_tpu_topology_compiles(tmp_path, changes, mesh):
    """In a process of its own: the compiler stays loaded, and logs before it is told not to."""
    shape = json.loads((Path(DEMO) / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps({**shape, **changes}), encoding="utf-8")
    arguments = ["--topology=v5e:2x2", "--step=decode", "--batch=32", "--seq_len=256", f"--model={tmp_path}", "--json"]
    arguments += [f"--{axis}={size}" for axis, size in mesh.items()]
    env = os.environ | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-m", "whale_jax.plan", *arguments],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["fits"] is True
    assert found["mesh"] == mesh
    assert found["executed_flops"] >= 0.9 * found["model_flops"]
    assert 0 < found["floor_hbm_bytes"] <= found["hbm_bytes"]
    assert 0 < found["mfu_bound"] < 1
