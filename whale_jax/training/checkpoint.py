"""Checkpoints: the whole training state and a JSON record, in one commit.

    <dir>/<step>/state/       arrays by name, written by Orbax
                 meta.json    the caller's record, and dtype, shape and SHA-256 of every array

A checkpoint is written by a thread of its own, from a copy on the host, while training goes on. It is written under a
temporary name and renamed when it is complete, so a directory named by its step is whole or not there. Bits are
verified on restore. Names that this module did not make are neither read nor removed: a copied Orbax directory, a step
without a record, or anybody's file may lie beside the checkpoints. A step may be a link to another run's checkpoint:
it is read like one's own, and where it is no longer kept the link alone goes.
"""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
import orbax.checkpoint as ocp

from whale_jax.storage.home import Home, LocalHome
from whale_jax.training.fingerprint import describe_all, named_leaves

State = TypeVar("State")
Collect = Callable[[Any], np.ndarray]
"""Array → a copy of it on this host."""

_FORMAT = 1
_INCOMPLETE = ".whale-incomplete-"
_REPLACED = f"{_INCOMPLETE}replaced-"


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written, is not there, or does not hold what was saved."""


@dataclass(frozen=True)
class Snapshot:
    """A state on the host, by name: what later updates consume is not needed any more to save it."""

    arrays: Mapping[str, Any]

    @classmethod
    def of(cls, state: Any, collect: Collect | None = None) -> "Snapshot":
        """Copies a pytree of arrays, one after the other, with `collect` where parts of them are elsewhere."""
        collect = collect or _copied
        return cls({name: collect(leaf) for name, leaf in named_leaves(state).items()})

    @cached_property
    def descriptions(self) -> dict[str, dict[str, Any]]:
        """`fingerprint.describe` of every array."""
        return describe_all(dict(self.arrays))


@dataclass(frozen=True)
class Saved:
    """What a save came to.

    Attributes:
        size: bytes of the checkpoint on disk; 0 where it was there already.
        seconds: from the snapshot's hand-over to the commit.
    """

    size: int
    seconds: float


class Checkpoints:
    """The checkpoints of one run. One process writes; any may read."""

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        keep_last: int = 2,
        keep_every: int = 0,
        collect: Collect | None = None,
        processes: set[int] | None = None,
        home: Home | None = None,
    ) -> None:
        """Looks at a directory, which need not exist yet.

        Args:
            directory: where the steps lie.
            keep_last: newest checkpoints kept, >= 1.
            keep_every: checkpoints whose step is a multiple of this are kept for ever; 0: none.
            collect: brings an array to this host; default: all of it is on this process's devices.
            processes: those of a JAX job that read and write here; default: all of them, which then must be one.
            home: of the run; default: what is in the directory counts.

        Raises:
            ValueError: a number out of range.
        """
        if keep_last < 1 or keep_every < 0:
            raise ValueError(f"checkpoints: keep_last must be >= 1 and keep_every >= 0, got {keep_last}, {keep_every}")
        self.directory = Path(directory)
        self._keep_last = keep_last
        self._keep_every = keep_every
        self._writer: ThreadPoolExecutor | None = None
        self._saving: Future[Saved] | None = None
        self._collect = collect
        self._processes = processes
        self._home = home or LocalHome(self.directory)

    def snapshot(self, state: Any) -> Snapshot:
        """A copy of a state on this host."""
        return Snapshot.of(state, self._collect)

    def steps(self) -> list[int]:
        """Committed steps, ascending."""
        if not self.directory.is_dir():
            return []
        return sorted(
            int(path.name)
            for path in self.directory.iterdir()
            if path.name.isdecimal() and path.name == str(int(path.name)) and (path / "meta.json").is_file()
        )

    def latest(self) -> int | None:
        """The newest committed step."""
        return max(self.steps(), default=None)

    def save(self, step: int, state: Any, meta: Mapping[str, Any], *, protect: Collection[int] = ()) -> Saved:
        """Commits a checkpoint, then removes those that nothing keeps; it is on disk when this returns.

        Args:
            state: pytree of arrays.
            step, meta, protect: as for `begin`, as are the errors.
        """
        saving = self.begin(step, self.snapshot(state), meta, protect=protect)
        self._saving = None
        return saving.result()

    def begin(
        self, step: int, snapshot: Snapshot, meta: Mapping[str, Any], *, protect: Collection[int] = ()
    ) -> Future[Saved]:
        """Starts to commit a checkpoint and then to remove those that nothing keeps; a save begun before is waited for.

        The same step with the same content is left as it is; with other content it is replaced (a step repeated after a
        kill). Whatever happens before the commit leaves every earlier checkpoint valid.

        Args:
            step: >= 0.
            meta: JSON-able record (sampler position, keys, …), returned by `restore`.
            protect: steps to keep in any case, for instance those a journal entry may return to.

        Returns:
            What is done when the checkpoint is committed. Its result raises CheckpointError when it could not be.

        Raises:
            CheckpointError: something else lies at its place, or the save before failed.
            TypeError, ValueError: `meta` is not JSON.
        """
        self.wait()
        record = _seal({"format": _FORMAT, "step": step, "meta": dict(meta), "arrays": snapshot.descriptions})
        target = self.directory / str(step)
        if os.path.lexists(target) and step not in self.steps():
            raise CheckpointError(f"{target} is in the way and is not a checkpoint of this run; move it elsewhere")
        if self._writer is None:
            self._writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._saving = self._writer.submit(self._write, step, snapshot.arrays, record, {step, *protect})
        return self._saving

    def wait(self) -> None:
        """Waits for the save that was begun, if there is one. Raises CheckpointError if it failed."""
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.result()

    def close(self) -> None:
        """Ends the writer after what it has begun; errors of a save are those of its future."""
        if self._writer is not None:
            self._writer.shutdown()
            self._writer = None

    def clear(self) -> None:
        """Removes all of them."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self._home.removed(self.directory)

    def _write(self, step: int, arrays: Mapping[str, Any], record: Mapping[str, Any], keep: Collection[int]) -> Saved:
        started = time.monotonic()
        target = self.directory / str(step)
        size = 0 if _is_sealed_as(target, record) else self._commit(target, arrays, record)
        self._home.publish(target)
        saved = Saved(size, time.monotonic() - started)
        try:
            self._prune(keep)
        except OSError as error:
            raise CheckpointError(
                f"step {step} is saved, but older checkpoints could not be removed: {error}"
            ) from error
        return saved

    def restore(self, step: int, like: State, part: str = "") -> tuple[State, dict[str, Any]]:
        """Reads a checkpoint, to the bit.

        Args:
            step: a committed step.
            like: pytree of arrays or `jax.ShapeDtypeStruct` with the structure, dtypes, shapes and (where given)
                shardings wanted.
            part: what the names of the arrays begin with, where `like` is a part of the state (`params/`); the others
                are not read.

        Returns:
            The state, and the record given to `save`.

        Raises:
            CheckpointError: no such step, another structure than `like` (every difference is named), or damage.
        """
        abstract = {name: _abstract(leaf) for name, leaf in named_leaves(like).items()}
        arrays, meta = self._read(step, like, part, ocp.checkpoint_utils.construct_restore_args(abstract))
        return jax.tree.unflatten(jax.tree.structure(like), list(arrays.values())), meta

    def read(self, step: int, like: Any, part: str = "") -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """As `restore`, into arrays of this host, by name."""
        how = {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in named_leaves(like)}
        return self._read(step, like, part, how)

    def _read(self, step: int, like: Any, part: str, how: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        self.wait()
        record = self._record(step)
        wanted = named_leaves(like)
        saved = {name.removeprefix(part): one for name, one in record["arrays"].items() if name.startswith(part)}
        _check_structure(f"{self.directory / str(step)}", saved, wanted)
        request = ocp.args.PyTreeRestore(
            item={part + name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for name, leaf in wanted.items()},
            restore_args={part + name: one for name, one in how.items()},
            partial_restore=bool(part),
        )
        self._home.bring(self.directory / str(step))
        path = (self.directory / str(step) / "state").absolute()
        try:
            with self._checkpointer() as checkpointer:
                arrays = checkpointer.restore(path, args=request)
        except (OSError, ValueError, KeyError) as error:
            raise CheckpointError(f"{path} is damaged: {error}. {self._others(step)}") from error
        arrays = {name: arrays[part + name] for name in wanted}
        found = describe_all(arrays)
        damaged = [name for name in wanted if found[name] != saved[name]]
        if damaged:
            raise CheckpointError(
                f"{path} is damaged: other bits than were saved in {', '.join(damaged)}. {self._others(step)}"
            )
        return arrays, record["meta"]

    def _checkpointer(self) -> ocp.Checkpointer:
        options = ocp.options.MultiprocessingOptions(active_processes=self._processes)
        handler = ocp.PyTreeCheckpointHandler(multiprocessing_options=options)
        return ocp.Checkpointer(handler, multiprocessing_options=options)

    def meta(self, step: int) -> dict[str, Any]:
        """The record given to `save`, without reading the arrays.

        Raises:
            CheckpointError: no such step, or a damaged record.
        """
        return self._record(step)["meta"]

    def _commit(self, target: Path, arrays: Mapping[str, Any], record: Mapping[str, Any]) -> int:
        partial = self.directory / f"{_INCOMPLETE}{target.name}"
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._sweep()
            partial.mkdir()
            with self._checkpointer() as checkpointer:
                checkpointer.save((partial / "state").absolute(), args=ocp.args.PyTreeSave(dict(arrays)))
            (partial / "meta.json").write_text(json.dumps(record, indent=1, sort_keys=True), encoding="utf-8")
            size = _flush(partial)
            if os.path.lexists(target):
                os.rename(target, self.directory / f"{_REPLACED}{target.name}")
            os.rename(partial, target)
            _flush_directory(self.directory)
        except (OSError, ValueError) as error:  # tensorstore reports a full disk as a ValueError
            shutil.rmtree(partial, ignore_errors=True)
            raise CheckpointError(
                f"step {target.name} could not be saved under {self.directory}: {error}. Earlier checkpoints are "
                "untouched; check free space and permissions"
            ) from error
        return size

    def _record(self, step: int) -> dict[str, Any]:
        path = self.directory / str(step) / "meta.json"
        if step not in self.steps():
            raise CheckpointError(f"{self.directory} has no checkpoint of step {step}; it has {self.steps() or 'none'}")
        record = _read_sealed(path)
        if record is None:
            raise CheckpointError(f"{path} is damaged. {self._others(step)}")
        if record["format"] != _FORMAT or record["step"] != step:
            raise CheckpointError(
                f"{path} is of format {record['format']} and step {record['step']}; expected {_FORMAT} and {step}"
            )
        return record

    def _others(self, step: int) -> str:
        return f"Other steps here: {[other for other in self.steps() if other != step] or 'none'}"

    def _prune(self, protect: Collection[int]) -> None:
        steps = self.steps()
        keep = {*steps[-self._keep_last :], *protect}
        if self._keep_every:
            keep |= {step for step in steps if step % self._keep_every == 0}
        for step in steps:
            if step not in keep:
                os.rename(self.directory / str(step), self.directory / f"{_INCOMPLETE}old-{step}")
                self._home.removed(self.directory / str(step))
        self._sweep()

    def _sweep(self) -> None:
        """Removes what an interrupted save or removal of ours left behind; a step whose replacement never came to its
        place is put back."""
        for path in self.directory.glob(f"{_REPLACED}*"):
            target = self.directory / path.name.removeprefix(_REPLACED)
            if not os.path.lexists(target):
                os.rename(path, target)
        for path in self.directory.glob(f"{_INCOMPLETE}*"):
            if path.is_symlink():
                path.unlink()
            else:
                shutil.rmtree(path)


def _copied(leaf: Any) -> np.ndarray:
    return np.array(jax.device_get(leaf), copy=True)


def _abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    sharding = getattr(leaf, "sharding", None) or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _check_structure(where: str, saved: Mapping[str, Mapping[str, Any]], wanted: Mapping[str, Any]) -> None:
    problems = [f"{name} is missing" for name in wanted if name not in saved]
    problems += [f"{name} is not expected" for name in saved if name not in wanted]
    for name in wanted:
        if name in saved:
            have = (saved[name]["dtype"], tuple(saved[name]["shape"]))
            want = (str(wanted[name].dtype), tuple(wanted[name].shape))
            if have != want:
                problems.append(f"{name} is {have[0]}{list(have[1])}, expected {want[0]}{list(want[1])}")
    if problems:
        raise CheckpointError(f"{where} holds another state: " + "; ".join(problems))


def _canonical(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, sort_keys=True, allow_nan=False).encode()


def _seal(record: dict[str, Any]) -> dict[str, Any]:
    return {**record, "sha256": hashlib.sha256(_canonical(record)).hexdigest()}


def _read_sealed(path: Path) -> dict[str, Any] | None:
    """A record whose seal is right; None if there is none, or it is damaged."""
    try:
        record = json.loads(path.read_bytes())
        seal = record.pop("sha256")
        return record if seal == hashlib.sha256(_canonical(record)).hexdigest() else None
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return None


def _is_sealed_as(directory: Path, record: Mapping[str, Any]) -> bool:
    old = _read_sealed(directory / "meta.json")
    return old is not None and _seal(old)["sha256"] == record["sha256"]


def _flush(directory: Path) -> int:
    """Puts a tree on the disk, so that a machine that stops after the rename finds it whole. Returns its bytes."""
    size = 0
    for root, _, files in os.walk(directory):
        for name in files:
            with open(os.path.join(root, name), "rb") as file:
                os.fsync(file.fileno())
                size += os.fstat(file.fileno()).st_size
        _flush_directory(Path(root))
    return size


def _flush_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
