"""The weights side of a run goes back to what was committed, and to nothing else."""

import threading
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest

from whale_jax.policy import Initial, Policy
from whale_jax.settings import TrainingSettings
from whale_jax.training.checkpoint import CheckpointError, Checkpoints
from whale_jax.training.fingerprint import fingerprint
from whale_jax.training.sampler import TaskSampler


class State(NamedTuple):
    params: Any
    step: Any


class CountsNothing:
    """As much of a train step as moving and saving need."""

    def init(self, params: Any) -> State:
        return State({name: jnp.asarray(leaf) for name, leaf in params.items()}, jnp.zeros((), jnp.int32))

    def shapes(self, params: Any) -> State:
        return jax.eval_shape(self.init, params)


class Compiles(CountsNothing):
    """A train step whose programs compile until they may end."""

    row_multiple = 1

    def __init__(self) -> None:
        self.begun, self.first, self.second = (threading.Event() for _ in range(3))
        self.done: list[str] = []

    def compile_warm_up(self, shapes: Any) -> None:
        self.begun.set()
        assert self.first.wait(30)
        self.done.append("first")

    def compile_update(self, shapes: Any) -> None:
        assert self.second.wait(30)
        self.done.append("second")

    def warm_up(self, state: Any, shapes: Any) -> None:
        self.done.append("warm-up")

    def update(self, state: Any, batches: Any) -> tuple[Any, None]:
        self.done.append("update")
        return state, None


def policy(folder: Path, value: float = 1.0, train_step: Any = None) -> Policy:
    initial = Initial(folder, None, {"w": jnp.full(3, value)}, "initial")  # pyright: ignore[reportArgumentType]
    sampler = TaskSampler(["a", "b"], seed=0)
    return Policy(
        initial,
        train_step or CountsNothing(),
        sampler,
        Checkpoints(folder),
        Checkpoints(folder / "unfinished", keep_last=1),
        TrainingSettings(),
    )


def saved(folder: Path) -> str:
    """Weights (SHA-256) of a checkpoint of step 3, after three tasks."""
    first = policy(folder)
    first.move_to(0)
    for _ in range(3):
        first.sampler.next(1)
    first.step = 3
    weights, saving = first.begin_save()
    saving.result()
    assert weights == fingerprint(first.weights_at(3)[0])
    return weights


def test_a_committed_step_comes_back(tmp_path):
    weights = saved(tmp_path)
    again = policy(tmp_path, value=2.0)
    again.committed(3, weights)
    assert again.weights_at(3)[0]["w"].tolist() == [1.0, 1.0, 1.0]
    again.move_to(3)
    assert again.step == 3


def test_the_task_order_is_where_it_was_before_anything_is_drawn(tmp_path):
    """Case G182."""
    weights = saved(tmp_path)
    undisturbed = policy(tmp_path).sampler
    drawn = [undisturbed.next(1) for _ in range(8)]
    again = policy(tmp_path)
    again.committed(3, weights)
    again.move_to(3)
    assert again.sampler.epochs == 1.5
    assert [again.sampler.next(1) for _ in range(5)] == drawn[3:]


def test_a_checkpoint_of_other_weights_than_the_journals_is_refused(tmp_path):
    saved(tmp_path)
    again = policy(tmp_path)
    again.committed(3, "f" * 64)
    with pytest.raises(CheckpointError, match=r"3 is another run's.*the journal has ffffffffffff"):
        again.move_to(3)
    with pytest.raises(CheckpointError, match="another run's"):
        again.weights_at(3)


WHERE = {"journal": "abc", "cycle": 0, "first_step": 1}


def left_unfinished(folder: Path) -> None:
    """What a job saves whose step 2 follows a commit that `WHERE` names."""
    job = policy(folder)
    job.move_to(0)
    job.sampler.next(1)
    position = job.sampler.state_dict()
    job.sampler.next(1)  # of a step that was cut
    job.step = 2
    job.save_unfinished(WHERE, [{"step": 1}, {"step": 2}], position)


def test_unfinished_steps_are_taken_up_with_state_and_task_order(tmp_path):
    left_unfinished(tmp_path)
    job = policy(tmp_path, value=7.0)
    job.move_to(0)
    assert job.take_unfinished(WHERE) == [{"step": 1}, {"step": 2}]
    assert job.step == 2
    assert job.weights_at(2)[0]["w"].tolist() == [1.0] * 3
    assert job.sampler.epochs == 0.5
    job.drop_unfinished()
    assert policy_of_nothing(tmp_path) == []


def policy_of_nothing(folder: Path) -> list[Any]:
    job = policy(folder)
    job.move_to(0)
    found = job.take_unfinished(WHERE)
    assert found or (job.step, job.sampler.epochs) == (0, 0)
    return found


def test_unfinished_steps_of_another_commit_or_damaged_ones_are_made_again(tmp_path, caplog):
    left_unfinished(tmp_path)
    job = policy(tmp_path)
    job.move_to(0)
    assert job.take_unfinished({**WHERE, "journal": "abd"}) == []
    assert (job.step, caplog.text) == (0, "")
    (tmp_path / "unfinished" / "2" / "meta.json").write_text("{}")
    assert policy_of_nothing(tmp_path) == []
    assert "left unfinished is not used" in caplog.text


def test_what_is_compiled_ahead_is_waited_for_where_it_is_needed(tmp_path):
    step = Compiles()
    job = policy(tmp_path, train_step=step)
    job.compile_ahead()
    job.move_to(0)
    assert step.begun.wait(30)
    assert step.done == []
    threading.Timer(0.05, step.first.set).start()
    job.warm_up()
    assert step.done == ["first", "warm-up"]
    threading.Timer(0.05, step.second.set).start()
    job.train([])
    assert step.done == ["first", "warm-up", "second"]
    job.close()


@pytest.mark.parametrize("part", ["compile_warm_up", "compile_update"])
def test_what_a_compiler_refuses_is_said_where_it_is_needed(tmp_path, part):
    def refuse(shapes: Any) -> None:
        raise RuntimeError("RESOURCE_EXHAUSTED")

    step = Compiles()
    setattr(step, part, refuse)
    step.first.set()
    step.second.set()
    job = policy(tmp_path, train_step=step)
    job.compile_ahead()
    job.move_to(0)
    if part == "compile_update":
        job.warm_up()
    with pytest.raises(RuntimeError, match="RESOURCE_EXHAUSTED"):
        job.warm_up() if part == "compile_warm_up" else job.train([])
    assert not compiling()


def test_a_job_that_ends_early_waits_for_what_is_at_work_alone(tmp_path):
    step = Compiles()
    job = policy(tmp_path, train_step=step)
    job.compile_ahead()
    assert step.begun.wait(30)
    threading.Timer(0.05, step.first.set).start()
    job.close()
    assert step.done == ["first"]
    assert not compiling()


def compiling() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("compiles the training")]
