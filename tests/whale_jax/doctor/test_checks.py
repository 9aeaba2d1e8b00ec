"""Each check alone: what it sees, and what it tells to change."""

import dataclasses
import hashlib
import json
from collections import namedtuple
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from harness_search.sandbox.preflight import Attempt, Held, PreflightReport
from tests.whale_jax.qwen3_5.real_shape import CONTROL_IDS
from whale_jax.assemble import checkpoint_directory
from whale_jax.config import RunConfig
from whale_jax.doctor import checkpoint, data, machine, steps
from whale_jax.doctor.page import Mark, as_json, conclusion, fail, goes, ok, warn
from whale_jax.doctor.probe import Measured, Memory, Probe, Size, factors
from whale_jax.doctor.run_dir import run_dir
from whale_jax.domains.manifest import Manifest, output_file
from whale_jax.plan.plan import Plan
from whale_jax.plan.programs import Step
from whale_jax.plan.sizes import SIZES
from whale_jax.qwen3_5.chat import ChatCodec
from whale_jax.qwen3_5.config import Qwen35Config
from whale_jax.rundir import Inputs, claim, open_config
from whale_jax.training.fingerprint import fingerprint
from whale_jax.training.optimizer import OptimizerName, OptimizerSettings, make_optimizer

DEMO = checkpoint_directory(None)
CONFIG = RunConfig()
GIB = 2**30


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def settings(**values):
    return RunConfig.from_values(values)


def test_the_page():
    verdicts = [ok("disk", "much"), warn("devices", "2 x cpu", "a TPU")]
    assert goes(verdicts)
    assert conclusion(verdicts) == "GO: 2 checks, none failed, 1 to look at"
    assert str(verdicts[1]).splitlines()[1].strip() == "-> a TPU"
    failed = [*verdicts, fail("tokens", "none", "another tokenizer")]
    assert conclusion(failed).startswith("NO-GO: tokens failed, 1 to look at")
    found = json.loads(json.dumps(as_json(failed, measured={})))
    assert found["go"] is False
    assert found["verdicts"][2] == {"name": "tokens", "mark": "FAIL", "seen": "none", "change": "another tokenizer"}


def device(kind="TPU v5e", platform="tpu", coords=(0, 0, 0)):
    return SimpleNamespace(
        device_kind=kind, platform=platform, coords=coords, memory_stats=lambda: {"bytes_limit": 16 * GIB}
    )


def test_devices_and_their_grid():
    found = machine.devices(CONFIG, [device(coords=(x, y, 0)) for x in range(2) for y in range(4)])
    assert (found.mark, found.seen) == (Mark.OK, "8 x TPU v5e (tpu), 16.00 GiB each, grid 2x4x1")
    assert machine.devices(CONFIG).mark is Mark.WARN, "CPUs"
    few = machine.devices(settings(replicas=3), [device()])
    assert few.mark is Mark.FAIL
    assert "--replicas=3" in few.change


def test_versions_against_those_tested():
    tested = machine.pins()
    assert set(tested) > {"jax", "jaxlib", "optax"}
    assert machine.versions("cpu", tested | {"jax": "0.0.1"}).change.startswith("not what the tests ran with: jax 0.10")
    assert machine.versions("cpu", {}).mark is Mark.WARN


def test_a_missing_tpu_compiler_is_a_no_go(monkeypatch):
    monkeypatch.setattr(machine, "_version", lambda name: None if name == "libtpu" else "1.0")
    found = machine.versions("tpu")
    assert found.mark is Mark.FAIL
    assert "install libtpu" in found.change


@pytest.mark.parametrize(
    ("backend", "held", "mark"),
    [
        ("bubblewrap", Held.DENIED, Mark.OK),
        ("landlock", Held.CONTAINED, Mark.WARN),
        ("bubblewrap", Held.ESCAPED, Mark.FAIL),
    ],
)
def test_the_sandbox_is_judged_by_its_own_check(backend, held, mark):
    found = machine.of_report(PreflightReport(backend, (), (Attempt("read a secret", held, ""),)))
    assert found.mark is mark
    assert ("read a secret" in found.seen) == (mark is Mark.FAIL)


def test_no_sandbox():
    assert machine.sandbox("none").mark is Mark.WARN


def test_disk(monkeypatch, tmp_path):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: usage(0, 0, 10 * GIB))
    marks = [machine.disk(tmp_path / "not" / "there", size * GIB, False).mark for size in (5, 8, 11)]
    assert marks == [Mark.OK, Mark.WARN, Mark.FAIL]
    assert "--keep_every" in machine.disk(tmp_path, GIB, True).seen


def test_what_a_run_keeps(monkeypatch):
    """2B with AdamW: 12 bytes per parameter in five checkpoints, and the export."""
    monkeypatch.setattr(machine, "_memory_total", lambda: 64 * GIB)
    disk, memory = machine.room(CONFIG, 2 * GIB, 4 * GIB)
    assert f"take {5 * 24 + 4:.1f}" in disk.seen
    assert memory.mark is Mark.OK
    assert "take 32.0" in memory.seen
    monkeypatch.setattr(machine, "_memory_total", lambda: 31 * GIB)
    *_, memory = machine.room(CONFIG, 2 * GIB, 4 * GIB)
    assert memory.mark is Mark.FAIL


@pytest.mark.parametrize("name", OptimizerName)
def test_bytes_of_a_training_state(name):
    params = {"a": np.zeros((256, 512), np.float32)}
    state = make_optimizer(OptimizerSettings(name=name)).init(params)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    assert size / params["a"].size == pytest.approx(name.state_bytes, abs=0.1)


def prepared(folder, domain="searchqa"):
    (folder / "weight.jsonl").write_text("{}\n")
    Manifest(domain, 42, (), (output_file(folder, "weight.jsonl", rows=1),), {}).write(folder)


def test_prepared_data(tmp_path):
    assert data.prepared(tmp_path, "searchqa").mark is Mark.WARN
    prepared(tmp_path)
    assert data.prepared(tmp_path, "searchqa").mark is Mark.OK
    assert data.prepared(tmp_path, "math").change == "--domain=searchqa, or other data"
    (tmp_path / "weight.jsonl").write_text("{ }\n")
    changed = data.prepared(tmp_path, "searchqa")
    assert (changed.mark, changed.seen) == (Mark.FAIL, "weight.jsonl changed")
    (tmp_path / "prepared.json").write_text("[]")
    assert "cannot be read" in data.prepared(tmp_path, "searchqa").seen


def test_tasks_that_cannot_be_read(tmp_path):
    prepared(tmp_path)
    (first, second), domain = data.data(settings(task_dir=str(tmp_path)), len)
    assert (first.mark, second.mark, domain) == (Mark.OK, Mark.FAIL, None)
    verdicts, domain = data.data(CONFIG, None)
    assert ([verdict.mark for verdict in verdicts], domain) == ([Mark.WARN], None)


def test_run_directories(codec, tmp_path):
    """Fresh, a run's own, and one that belongs to another run."""
    verdicts, domain = data.data(CONFIG, codec.count_tokens)
    assert [verdict.mark for verdict in verdicts] == [Mark.OK]
    params = {"embed": np.ones(3, np.float32)}

    def look(config, params=params):
        return run_dir(config, DEMO, domain, codec, params)

    mine = settings(run_dir=str(tmp_path / "run"))
    assert look(CONFIG).mark is Mark.OK
    assert look(mine).seen.endswith("fresh")
    with claim(tmp_path / "run"):
        inputs = Inputs(
            domain.data_hash, sha256(domain.h0.encode()), fingerprint(params),
            sha256((DEMO / "tokenizer.json").read_bytes()), codec.template_sha256,
        )  # fmt: skip
        open_config(tmp_path / "run", mine, inputs)
    assert look(mine).seen.endswith("a run that goes on")
    other = look(mine, {"embed": np.zeros(3, np.float32)})
    assert other.mark is Mark.FAIL
    assert "the checkpoint changed" in other.seen
    (tmp_path / "harness.py").write_text("import os\n")
    assert look(settings(harness=str(tmp_path / "harness.py"))).name == "harness"


def test_config_fields(tmp_path):
    verdict, shape = checkpoint.fields(DEMO)
    assert (verdict.mark, shape) == (Mark.OK, Qwen35Config.from_dir(DEMO))
    fields = json.loads((DEMO / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**fields, "attention_sinks": 4}))
    verdict, shape = checkpoint.fields(tmp_path)
    assert (verdict.mark, shape) == (Mark.FAIL, None)
    assert "attention_sinks" in verdict.seen


@pytest.fixture(scope="module")
def codec():
    return ChatCodec.from_dir(DEMO)


def test_control_tokens(codec):
    own = Qwen35Config.from_dir(DEMO)
    assert checkpoint.tokens(codec, own).mark is Mark.OK
    assert checkpoint.tokens(codec, dataclasses.replace(own, vocab_size=1000)).mark is Mark.FAIL
    wrong = checkpoint.tokens(codec, SIZES["2b"])
    assert "im_end is 1529, not 248046" in wrong.seen
    texts = {"endoftext": "<|endoftext|>", "im_start": "<|im_start|>", "im_end": "<|im_end|>",
             "tool_call_open": "<tool_call>", "think_open": "<think>"}  # fmt: skip
    right = SimpleNamespace(
        special=SimpleNamespace(**{field: CONTROL_IDS[text] for field, text in texts.items()}),
        vocab_size=1000,
        control_ids=frozenset(CONTROL_IDS.values()),
    )
    assert checkpoint.tokens(right, SIZES["2b"]).mark is Mark.OK  # pyright: ignore[reportArgumentType]


def test_templates(codec, tmp_path, monkeypatch):
    assert checkpoint.template(codec, DEMO).seen.endswith("the demo's")
    monkeypatch.setattr(codec, "template_sha256", next(iter(checkpoint.TEMPLATES)))
    assert "Qwen3.5-2B" in checkpoint.template(codec, DEMO).seen
    monkeypatch.setattr(codec, "template_sha256", "0" * 64)
    unknown = checkpoint.template(codec, tmp_path)
    assert unknown.mark is Mark.WARN
    assert "0" * 64 in unknown.seen
    assert "<think>" in unknown.seen


@pytest.mark.parametrize(
    ("off", "mark"), [(0.0, Mark.OK), (0.005, Mark.WARN), (0.5, Mark.FAIL), (float("nan"), Mark.FAIL)]
)
def test_logits(off, mark):
    theirs = [np.linspace(-1, 10, 7, dtype=np.float32)]
    assert checkpoint.compared([theirs[0] + 10 * off], theirs).mark is mark


def test_without_the_peer(monkeypatch):
    monkeypatch.setattr(checkpoint.importlib.util, "find_spec", lambda name: None)
    assert [one.mark for one in checkpoint.against_transformers(DEMO, [], [])] == [Mark.WARN]


def test_sizes_of_the_steps():
    small, demo = SIZES["0.8b"], Qwen35Config.from_dir(DEMO)
    assert Probe.of(CONFIG, small, Size.AUTO, "cpu").small
    assert not Probe.of(CONFIG, small, Size.AUTO, "tpu").small
    assert not Probe.of(CONFIG, small, Size.RUN, "cpu").small
    assert Probe.of(CONFIG, demo, Size.AUTO, "cpu").max_len == CONFIG.rollout.max_len
    assert Probe.of(CONFIG, demo, Size.SMALL, "tpu").small


PLAN = Plan((1, 1, 1), 8 * GIB, {"total": 4 * GIB}, 1.0, None, 0.0, step_seconds_bound=0.5)


def test_steps_beside_their_plans():
    good = steps._verdict("decode", "a token", Measured(PLAN, 1.0, 4 * GIB), finite=True)
    assert (good.mark, good.seen) == (Mark.OK, "a token: 1.00 s, 2.0 x its bound; memory 4.00 GiB, planned 4.00")
    assert steps._verdict("decode", "", Measured(PLAN, 9.0, None), finite=True).mark is Mark.WARN
    assert steps._verdict("decode", "", Measured(PLAN, 1.0, 5 * GIB), finite=True).mark is Mark.WARN
    assert steps._verdict("decode", "", Measured(PLAN, 1.0, 5 * GIB, told=False), finite=True).mark is Mark.OK
    assert steps._verdict("decode", "", Measured(PLAN, 1.0, None), finite=False).mark is Mark.FAIL
    unbounded = dataclasses.replace(PLAN, step_seconds_bound=None)
    assert factors({step: Measured(PLAN, 1.0, None) for step in Step}) == dict.fromkeys(Step, 2.0)
    assert factors({step: Measured(unbounded, 1.0, None) for step in Step}) is None


def test_a_devices_memory_is_told_where_its_peak_is_of_this_step():
    told = {"peak_bytes_in_use": 5}
    accelerator = SimpleNamespace(platform="tpu", memory_stats=lambda: told)
    memory = Memory(accelerator)
    assert (memory.told, memory.most()) == (True, None), "the peak is an earlier one"
    told["peak_bytes_in_use"] = 7
    assert memory.most() == 7
    assert Memory(SimpleNamespace(platform="tpu", memory_stats=lambda: None)).most() is None


def test_a_step_that_does_not_fit_is_not_tried():
    over = dataclasses.replace(PLAN, bytes_per_chip={"total": 9 * GIB})
    found = steps._shortage(over, 4, "tpu", 0)
    assert found is not None
    assert found.mark is Mark.FAIL
    assert "1.00 more than it has" in found.seen
    assert steps._shortage(PLAN, 4, "tpu", 0) is None
    huge = dataclasses.replace(PLAN, bytes_per_chip={"total": 2**60})
    found = steps._shortage(huge, 1, "cpu", 0)
    assert found is not None
    assert found.mark is Mark.WARN
    assert steps._shortage(huge, 1, "cpu", 2**60) is None, "what is there is taken over"


def test_an_export_that_differs_is_a_no_go(monkeypatch, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    (source / "model.safetensors").write_bytes(b"abc")

    def export(content):
        def write(directory, params, out):
            out.mkdir()
            (out / "model.safetensors").write_bytes(content)

        monkeypatch.setattr(steps, "export_checkpoint", write)
        return steps.export(source, None, tmp_path / "not there")

    assert export(b"abc").mark is Mark.OK
    assert export(b"abd").mark is Mark.FAIL
    assert export(b"abcd").mark is Mark.FAIL
    assert [path.name for path in tmp_path.iterdir()] == ["source"], "the copy is removed"
