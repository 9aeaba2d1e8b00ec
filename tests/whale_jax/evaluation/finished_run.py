"""A run directory of two cycles as the main job leaves it, made without a model: journal, archives, checkpoints."""

import hashlib
import json
from pathlib import Path

import jax
import jax.numpy as jnp

from whale_jax.assemble import Parts
from whale_jax.config import RunConfig
from whale_jax.domains.task import Split
from whale_jax.journal import Journal, canonical
from whale_jax.rundir import open_config
from whale_jax.training.checkpoint import Checkpoints
from whale_jax.training.fingerprint import fingerprint
from whale_jax.training.optimizer import OptimizerSettings, make_optimizer
from whale_jax.training.sampler import TaskSampler
from whale_jax.training.step import TrainState

BETTER = "async def run(task, model, env):\n    return await model.chat(system='Better.').reply()\n"
KEPT, DROPPED = 4, 2
"""Steps at the ends of the two weight phases; the first one's checkpoint is not kept."""


def make_run(directory: Path, parts: Parts, config: RunConfig) -> Path:
    """Cycle 1 trains to step 2 and keeps h0; cycle 2 trains to step 4 and accepts `BETTER`, which is returned."""
    directory.mkdir()
    open_config(directory, config, parts.inputs)
    journal = Journal(directory / "journal")
    trained = jax.tree.map(lambda leaf: jnp.asarray(leaf) * 1.01, parts.initial.params)
    kept = fingerprint(trained)
    _weight(journal, 0, 1, weights="a" * 64, stop=False)
    _weight(journal, 0, DROPPED, weights="b" * 64, stop=True)
    _search(journal, directory, 0, parts.harness, "go_on")
    _search(journal, directory, 0, parts.harness, "stop")
    _weight(journal, 1, KEPT, weights=kept, stop=True)
    _search(journal, directory, 1, BETTER, "stop")
    optimizer = make_optimizer(OptimizerSettings())
    state = TrainState(trained, optimizer.init(trained), jnp.int32(KEPT))
    sampler = TaskSampler([task.id for task in parts.splits[Split.WEIGHT]], seed=config.run.seed)
    meta = {"weights": kept, "version": KEPT, "sampler": sampler.state_dict()}
    Checkpoints(directory / "checkpoints").save(KEPT, state, meta)
    returned = {"step": KEPT, "harness": hashlib.sha256(BETTER.encode()).hexdigest()}
    (directory / "summary.json").write_text(json.dumps({"returned": returned}))
    return directory


def _weight(journal: Journal, cycle: int, step: int, *, weights: str, stop: bool) -> None:
    decision = {"stop": stop, "reason": "", "signals": {}}
    journal.append("weight", {"cycle": cycle, "step": step, "weights": weights, "decision": decision})


def _search(journal: Journal, directory: Path, cycle: int, harness: str, decision: str) -> None:
    candidate = directory / f"cycle_{cycle:03d}" / "search" / "candidates" / "000"
    candidate.mkdir(parents=True, exist_ok=True)
    (candidate / "harness.py").write_text(harness)
    verdict = canonical({"files": {"harness.py": hashlib.sha256(harness.encode()).hexdigest()}})
    (candidate / "verdict.json").write_bytes(verdict)
    fields = {"incumbent": "000", "incumbent_hash": hashlib.sha256(verdict).hexdigest(), "decision": decision}
    journal.append("search", {"cycle": cycle, **fields})


def files(directory: Path) -> dict[str, bytes]:
    """Every file below a directory."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}
