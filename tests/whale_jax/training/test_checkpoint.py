"""Checkpoints come back to the bit, or not at all."""

import gc
import json
import os
import shutil
import threading
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from whale_jax.training.checkpoint import CheckpointError, Checkpoints, Snapshot
from whale_jax.training.fingerprint import fingerprint


class Moments(NamedTuple):
    count: jax.Array
    mu: dict[str, jax.Array]
    nothing: tuple[()] = ()


def state(seed=0):
    rng = np.random.default_rng(seed)
    odd = np.array([np.nan, -0.0, np.inf, 1e-45], np.float32)
    return {
        "params": {"w": jnp.asarray(rng.normal(size=(3, 4)), jnp.float32), "odd": jnp.asarray(odd)},
        "opt": (Moments(jnp.int32(seed), {"w": jnp.asarray(rng.normal(size=(3, 4)), jnp.bfloat16)}),),
        "key": jnp.asarray([1, 2**32 - 1], jnp.uint32),
    }


def assert_same_bits(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype
        assert x.shape == y.shape
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


META = {"sampler": {"epoch": 1, "position": 7, "deferred": ["é"]}, "keys": [1, 2], "note": None}


def test_round_trip_is_bit_exact(tmp_path):
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints")
    checkpoints.save(3, state(), META)
    restored, meta = Checkpoints(tmp_path / "run" / "checkpoints").restore(3, state(seed=9))
    assert_same_bits(restored, state())
    assert meta == META == checkpoints.meta(3)
    shapes = jax.eval_shape(state)
    assert_same_bits(checkpoints.restore(3, shapes)[0], state())


def test_keep_last_keep_every_and_protected(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep_last=2, keep_every=4)
    for step in range(8):
        checkpoints.save(step, {"x": jnp.zeros(1)}, {}, protect={3} if step == 5 else {1, 3})
    assert checkpoints.steps() == [0, 3, 4, 6, 7]
    assert checkpoints.latest() == 7


def test_no_directory_means_no_steps(tmp_path):
    assert Checkpoints(tmp_path / "none").steps() == []
    assert Checkpoints(tmp_path / "none").latest() is None


def test_what_is_not_a_committed_step_is_neither_listed_nor_restored_nor_removed(tmp_path):
    """Case G174."""
    checkpoints = Checkpoints(tmp_path, keep_last=1)
    foreign = ["0.orbax-checkpoint-tmp-1700000000", "7", "notes", "05", "-1", "²"]
    for name in foreign:
        (tmp_path / name / "state").mkdir(parents=True)
        (tmp_path / name / "state" / "mine.txt").write_text(name)
    (tmp_path / "05" / "meta.json").write_text("{}")
    checkpoints.save(8, state(), META)
    checkpoints.save(9, state(), META)
    assert checkpoints.steps() == [9]
    for name in foreign:
        assert (tmp_path / name / "state" / "mine.txt").read_text() == name
    with pytest.raises(CheckpointError, match=r"no checkpoint of step 7; it has \[9\]"):
        checkpoints.restore(7, state())
    with pytest.raises(CheckpointError, match="in the way"):
        checkpoints.save(7, state(), META)


def test_a_copied_checkpoint_is_as_good_as_the_original(tmp_path):
    """Case G174: nothing about a commit lives outside its directory."""
    Checkpoints(tmp_path / "a").save(2, state(), META)
    shutil.copytree(tmp_path / "a" / "2", tmp_path / "b" / "2")
    assert_same_bits(Checkpoints(tmp_path / "b").restore(2, state(1))[0], state())


def test_same_step_again(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, state(), META)
    before = (tmp_path / "1" / "meta.json").stat()
    checkpoints.save(1, state(), META)
    assert (tmp_path / "1" / "meta.json").stat().st_ino == before.st_ino
    checkpoints.save(1, state(5), {"other": True})
    restored, meta = checkpoints.restore(1, state())
    assert_same_bits(restored, state(5))
    assert meta == {"other": True}
    assert os.listdir(tmp_path) == ["1"]


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path, monkeypatch):
    """The writer is held; what it saves is what the state was, though its arrays are gone by then."""
    go_on = threading.Event()
    original = ocp.Checkpointer.save
    monkeypatch.setattr(ocp.Checkpointer, "save", lambda *args, **kw: (go_on.wait(), original(*args, **kw)))
    checkpoints = Checkpoints(tmp_path)
    before = state(3)
    saving = checkpoints.begin(3, Snapshot.of(before), META)
    for leaf in jax.tree.leaves(before):
        leaf.delete()
    assert not saving.done()
    assert checkpoints.steps() == []
    go_on.set()
    saved = saving.result()
    assert saved.size == sum(path.stat().st_size for path in (tmp_path / "3").rglob("*") if path.is_file())
    assert saved.seconds > 0
    assert_same_bits(checkpoints.restore(3, state())[0], state(3))
    checkpoints.close()


def test_a_save_that_failed_is_told_to_whoever_waits_and_to_the_next(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    (tmp_path / ".whale-incomplete-4").write_text("a file where a folder must be")
    with pytest.raises(CheckpointError, match="step 4 could not be saved"):
        checkpoints.begin(4, Snapshot.of(state()), META).result()
    with pytest.raises(CheckpointError, match="step 4 could not be saved"):
        checkpoints.begin(5, Snapshot.of(state()), META)
    (tmp_path / ".whale-incomplete-4").unlink()
    checkpoints.save(5, state(), META)
    assert checkpoints.steps() == [5]


def test_a_folder_that_may_not_be_written_is_one_clear_error(tmp_path, monkeypatch):
    def refused(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, state(1), META)
    monkeypatch.setattr(Path, "mkdir", refused)
    with pytest.raises(CheckpointError, match=r"Permission denied.*Earlier checkpoints are untouched.*permissions"):
        checkpoints.save(2, state(2), META)
    monkeypatch.undo()
    assert_same_bits(checkpoints.restore(1, state())[0], state(1))


def test_a_step_whose_replacement_never_came_is_put_back(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, state(1), META)
    os.rename(tmp_path / "1", tmp_path / ".whale-incomplete-replaced-1")
    checkpoints.save(2, state(2), META)
    assert checkpoints.steps() == [1, 2]
    assert_same_bits(checkpoints.restore(1, state())[0], state(1))


def test_a_link_to_another_runs_step_is_read_and_only_the_link_is_removed(tmp_path):
    Checkpoints(tmp_path / "parent").save(1, state(1), META)
    (tmp_path / "fork").mkdir()
    (tmp_path / "fork" / "1").symlink_to(tmp_path / "parent" / "1", target_is_directory=True)
    fork = Checkpoints(tmp_path / "fork", keep_last=1)
    assert_same_bits(fork.restore(1, state())[0], state(1))
    fork.save(2, state(2), META)
    assert sorted(os.listdir(tmp_path / "fork")) == ["2"]
    assert_same_bits(Checkpoints(tmp_path / "parent").restore(1, state())[0], state(1))


class Killed(BaseException):
    """Stands for SIGKILL: no handler of ordinary errors sees it."""


def kill_at(monkeypatch, event, error=Killed):
    """Makes the n-th touch of the disk fail (flushes in a row count as one)."""
    touched = []

    def guard(owner, name, before):
        original = getattr(owner, name)

        def guarded(*args, **kwargs):
            again = name == "fsync" and touched[-1:] == ["fsync"]
            if not again:
                touched.append(name)
            if not again and len(touched) == event + 1:
                before(*args)
                raise error(28, "No space left on device")
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, guarded)

    def partly_saved(_, path, *rest):
        Path(path).mkdir()
        (Path(path) / "manifest.ocdbt").write_bytes(b"half")

    guard(ocp.Checkpointer, "save", partly_saved)
    guard(Path, "mkdir", lambda *args: None)
    guard(Path, "write_text", lambda path, text, *args: path.write_bytes(text.encode()[:20]))
    guard(os, "rename", lambda *args: None)
    guard(os, "fsync", lambda *args: None)
    guard(shutil, "rmtree", lambda *args: None)


@pytest.mark.parametrize("repeated", [False, True], ids=["new step", "step repeated"])
def test_a_kill_at_any_write_leaves_what_was_valid(tmp_path, repeated):
    for step in (1, 2, 3) if repeated else (1, 2):
        Checkpoints(tmp_path / "before", keep_last=3).save(step, state(step), {"step": step})
    event = 0
    while True:
        directory = tmp_path / str(event)
        shutil.copytree(tmp_path / "before", directory)
        checkpoints = Checkpoints(directory, keep_last=2)
        with pytest.MonkeyPatch.context() as patch:
            kill_at(patch, event)
            try:
                checkpoints.save(3, state(33), {"step": 33})
            except Killed:
                pass
            else:
                break
        survivors = checkpoints.steps()
        assert 2 in survivors
        for step in survivors:
            restored, meta = checkpoints.restore(step, state())
            assert_same_bits(restored, state(meta["step"]))
        checkpoints.save(3, state(33), {"step": 33})
        assert checkpoints.steps() == [2, 3]
        assert checkpoints.meta(3) == {"step": 33}
        assert sorted(os.listdir(directory)) == ["2", "3"]
        event += 1
    assert event >= 8


def test_a_full_disk_is_one_clear_error_and_loses_nothing(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, state(1), {})
    for event in (2, 3, 4):
        with pytest.MonkeyPatch.context() as patch:
            kill_at(patch, event, error=OSError)
            with pytest.raises(CheckpointError, match=r"step 2 could not be saved .*No space left.*free space"):
                checkpoints.save(2, state(2), {})
        assert checkpoints.steps() == [1]
        assert_same_bits(checkpoints.restore(1, state())[0], state(1))
        assert os.listdir(tmp_path) == ["1"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_damaged_content_is_found_and_named(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2):
        checkpoints.save(step, state(step), META)
    record = json.loads((tmp_path / "2" / "meta.json").read_text())
    files = sorted((path for path in (tmp_path / "2" / "state").rglob("*") if path.parent.name == "d"), key=str)
    assert files
    for path in files:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"damaged.*Other steps here: \[1\]"):
        checkpoints.restore(2, state())
    gc.collect()  # what Orbax left of the failed read complains of a closed event loop here, not in another test
    (tmp_path / "2" / "meta.json").write_text(json.dumps(record | {"meta": {"sampler": {"epoch": 0}}}))
    with pytest.raises(CheckpointError, match=r"meta\.json is damaged"):
        checkpoints.meta(2)
    (tmp_path / "2" / "meta.json").write_text('{"format": 1')
    with pytest.raises(CheckpointError, match=r"meta\.json is damaged"):
        checkpoints.restore(2, state())


def test_arrays_other_than_the_recorded_ones_are_found(tmp_path):
    """The hash covers the values, so a state that Orbax itself reads without complaint is checked too."""
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"x": jnp.arange(3)}, {})
    checkpoints.save(2, {"x": jnp.arange(3) + 1}, {})
    shutil.rmtree(tmp_path / "2" / "state")
    shutil.copytree(tmp_path / "1" / "state", tmp_path / "2" / "state")
    with pytest.raises(CheckpointError, match="other bits than were saved in x"):
        checkpoints.restore(2, {"x": jnp.arange(3)})


def test_another_structure_names_every_difference(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"a": jnp.zeros(2), "b": jnp.zeros(3), "c": jnp.zeros(1)}, {})
    like = {"a": jnp.zeros(2, jnp.bfloat16), "b": jnp.zeros(4), "d": jnp.zeros(1)}
    with pytest.raises(CheckpointError) as caught:
        checkpoints.restore(1, like)
    for part in ("a is float32[2], expected bfloat16[2]", "b is float32[3], expected float32[4]", "c is not", "d is"):
        assert part in str(caught.value)


def test_fingerprint_sees_bits_names_and_types_alone():
    base = state()
    assert fingerprint(base) == fingerprint(jax.tree.map(np.asarray, base))
    reordered = dict(reversed(base.items()))
    assert fingerprint(base) == fingerprint(reordered)
    changed = [
        base | {"key": base["key"].at[0].set(3)},
        base | {"key": base["key"].astype(jnp.int32)},
        base | {"key": base["key"][None]},
        {**{k: v for k, v in base.items() if k != "key"}, "kez": base["key"]},
    ]
    assert len({fingerprint(base), *(fingerprint(other) for other in changed)}) == 5
    minus_zero = {"x": jnp.float32(-0.0)}
    assert fingerprint(minus_zero) != fingerprint({"x": jnp.float32(0.0)})
