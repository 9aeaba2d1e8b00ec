"""The weights side of a run goes back to what was committed, and to nothing else."""

from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import pytest

from whale_jax.config import TrainingSettings
from whale_jax.policy import Initial, Policy
from whale_jax.training.checkpoint import CheckpointError, Checkpoints
from whale_jax.training.sampler import TaskSampler


class State(NamedTuple):
    params: Any
    step: Any


class CountsNothing:
    """As much of a train step as moving and saving need."""

    def init(self, params: Any) -> State:
        return State({name: jnp.asarray(leaf) for name, leaf in params.items()}, jnp.zeros((), jnp.int32))


def policy(folder: Path, value: float = 1.0) -> Policy:
    initial = Initial(folder, None, {"w": jnp.full(3, value)}, "initial")  # pyright: ignore[reportArgumentType]
    sampler = TaskSampler(["a", "b"], seed=0)
    return Policy(initial, CountsNothing(), sampler, Checkpoints(folder), TrainingSettings())  # pyright: ignore[reportArgumentType]


def saved(folder: Path) -> str:
    """Weights (SHA-256) of a checkpoint of step 3."""
    first = policy(folder)
    first.move_to(0)
    first.step = 3
    return first.save()


def test_a_committed_step_comes_back(tmp_path):
    weights = saved(tmp_path)
    again = policy(tmp_path, value=2.0)
    again.committed(3, weights)
    assert again.weights_at(3)[0]["w"].tolist() == [1.0, 1.0, 1.0]
    again.move_to(3)
    assert again.step == 3


def test_a_checkpoint_of_other_weights_than_the_journals_is_refused(tmp_path):
    saved(tmp_path)
    again = policy(tmp_path)
    again.committed(3, "f" * 64)
    with pytest.raises(CheckpointError, match=r"3 is another run's.*the journal has ffffffffffff"):
        again.move_to(3)
    with pytest.raises(CheckpointError, match="another run's"):
        again.weights_at(3)
