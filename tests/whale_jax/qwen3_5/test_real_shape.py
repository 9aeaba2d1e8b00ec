"""A random checkpoint of the 0.8B's real shape in and out: `real_shape`."""

import gc
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.whale_jax.qwen3_5.real_shape import TEXT_PARAMETERS, write_checkpoint
from whale_jax.qwen3_5 import model
from whale_jax.qwen3_5.convert import export_checkpoint, load_checkpoint

torch = pytest.importorskip("torch")

GIB = 2**30


def free_memory() -> int:
    """Bytes that this process could still get, by the kernel's estimate and by its control group's limit."""
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    free = int(fields["MemAvailable"].split()[0]) * 1024
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.is_file() and limit.read_text().strip() != "max":
        free = min(free, int(limit.read_text()) - int(used.read_text()))
    return free


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("real") / "source"
    write_checkpoint(directory)
    return directory


def memory(field: str) -> int:
    """VmRSS (now) or VmHWM (the most since it was last reset) of this process, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"/proc/self/status has no {field}")


def pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(1 << 24):
            yield piece


@pytest.mark.slow
@pytest.mark.skipif(
    free_memory() < 8 * GIB, reason="needs 8 GiB of free memory: two copies of 0.75 G parameters in fp32"
)
def test_the_0_8b_loads_within_bounds_matches_and_exports_bit_identical(source, tmp_path):
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    config, params = load_checkpoint(source)
    jax.block_until_ready(params)
    destination = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    assert destination == 4 * TEXT_PARAMETERS
    beyond = memory("VmHWM") - before - destination
    print(f"\nimport: {beyond / GIB:.2f} GiB beyond the {destination / GIB:.2f} GiB of the arrays")
    assert beyond <= params["embed"].nbytes // 2 + 10**9  # the file's largest tensor is bf16

    ids = np.random.default_rng(1).integers(0, config.vocab_size, 64).astype(np.int32)
    forward = jax.jit(lambda p, t: model.unembed(config, p, model.forward(config, p, t, t * 0 + 1, remat=False)))
    logits = np.asarray(forward(params, ids[None])[0])
    export_checkpoint(source, params, tmp_path / "out")
    del params
    gc.collect()
    names = sorted(path.name for path in source.iterdir())
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == names
    for name in names:
        for ours, theirs in zip(pieces(tmp_path / "out" / name), pieces(source / name), strict=True):
            assert ours == theirs, name

    from transformers import Qwen3_5ForConditionalGeneration

    reference = Qwen3_5ForConditionalGeneration.from_pretrained(source, dtype=torch.float32)
    with torch.no_grad():
        expected = reference(input_ids=torch.tensor(ids[None], dtype=torch.long)).logits[0].numpy()
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4 * np.abs(expected).max())
