"""The order of tasks: whole epochs, no copies in a batch, and a position that survives anything."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whale_jax.training.sampler import TaskSampler


def ids(count):
    return [f"task-{n}" for n in range(count)]


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 30), st.integers(0, 9), st.data())
def test_epochs_are_permutations_and_batches_hold_no_task_twice(tasks, seed, data):
    sampler = TaskSampler(ids(tasks), seed=seed)
    drawn = []
    for count in data.draw(st.lists(st.integers(1, tasks), min_size=1, max_size=12)):
        batch = sampler.next(count)
        assert len(batch) == len(set(batch)) == count
        drawn += batch
        assert sampler.epochs * tasks == pytest.approx(len(drawn))
    for start in range(0, len(drawn) - tasks + 1, tasks):
        assert sorted(drawn[start : start + tasks]) == sorted(ids(tasks))
    tail = drawn[len(drawn) // tasks * tasks :]
    assert len(tail) == len(set(tail))


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 30), st.lists(st.integers(1, 2), min_size=2, max_size=60), st.data())
def test_a_restored_position_continues_the_same_order(tasks, counts, data):
    """Case G179: a kill in any epoch, that of a wrapping batch included."""
    cut = data.draw(st.integers(0, len(counts)))
    whole = TaskSampler(ids(tasks), seed=3)
    expected = [whole.next(count) for count in counts]
    first = TaskSampler(ids(tasks), seed=3)
    got = [first.next(count) for count in counts[:cut]]
    saved = json.loads(json.dumps(first.state_dict()))
    second = TaskSampler(list(reversed(ids(tasks))), seed=3)
    second.load_state(saved)
    got += [second.next(count) for count in counts[cut:]]
    assert got == expected
    assert second.state_dict() == whole.state_dict()


def test_order_depends_on_seed_and_epoch():
    orders = [TaskSampler(ids(20), seed=seed).next(20) for seed in (0, 1)]
    sampler = TaskSampler(ids(20), seed=0)
    orders += [sampler.next(20), sampler.next(20)]
    assert orders[0] == orders[2]
    assert len({tuple(order) for order in orders}) == 3


def test_the_order_is_the_one_of_every_release():
    assert TaskSampler(ids(6), seed=7).next(6) == ["task-3", "task-2", "task-4", "task-0", "task-5", "task-1"]


def test_position_in_other_tasks_starts_anew_with_a_warning():
    """Case G181."""
    old = TaskSampler(ids(5), seed=0)
    old.next(3)
    new = TaskSampler(ids(6), seed=0)
    with pytest.warns(UserWarning, match="starting at epoch 0"):
        new.load_state(old.state_dict())
    assert new.next(6) == TaskSampler(ids(6), seed=0).next(6)


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="no tasks"):
        TaskSampler([], seed=0)
    with pytest.raises(ValueError, match="'a'"):
        TaskSampler(["a", "b", "a"], seed=0)
    sampler = TaskSampler(ids(3), seed=0)
    for count in (0, 4):
        with pytest.raises(ValueError, match=f"asked for {count}"):
            sampler.next(count)
    with pytest.raises(ValueError, match="seed 1"):
        sampler.load_state(TaskSampler(ids(3), seed=1).state_dict())
    with pytest.raises(ValueError, match="no such position"):
        sampler.load_state(sampler.state_dict() | {"position": 3})
