"""The weights side of a run: training state, task order and their checkpoints, moved together."""

import contextlib
import dataclasses
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import jax
import numpy as np

from whale_jax.hosts.channel import HostsError
from whale_jax.hosts.hosts import Alone, Hosts
from whale_jax.qwen3_5.config import Qwen35Config
from whale_jax.rollout.trace import Trace
from whale_jax.settings import TrainingSettings
from whale_jax.training.ahead import Ahead
from whale_jax.training.checkpoint import CheckpointError, Checkpoints, Saved, Snapshot
from whale_jax.training.fingerprint import combine, named_leaves
from whale_jax.training.packing import Shape, ladder
from whale_jax.training.rsft import AcceptRule, accept
from whale_jax.training.sampler import TaskSampler
from whale_jax.training.step import TrainState, TrainStep
from whale_jax.training.weight_step import StepReport, train_on

_log = logging.getLogger(__name__)

_PARAMS = "params/"
"""What the names of the weights in a training state begin with."""


@dataclasses.dataclass(frozen=True)
class Initial:
    """The policy that a run starts from.

    Attributes:
      directory: its Hugging Face folder.
      config: its shape.
      params: fp32 master weights, on the host.
      weights: SHA-256 over them.
    """

    directory: Path
    config: Qwen35Config
    params: Any
    weights: str


class Policy:
    """Training state, position in D_weight, and checkpoints.

    `step` counts training steps (also those that accepted nothing), `version` counts optimizer steps.
    """

    def __init__(
        self,
        initial: Initial,
        train_step: TrainStep,
        sampler: TaskSampler,
        checkpoints: Checkpoints,
        unfinished: Checkpoints,
        settings: TrainingSettings,
        hosts: Hosts | None = None,
        number: int = 0,
    ):
        """Args:
        checkpoints: of the run's commits.
        unfinished: where work since the last commit is put when a job has to end; nothing rests on it.
        hosts: the processes that the state is divided over, each with a policy of this number; default: this one alone.
        """
        self._hosts = hosts or Alone()
        self._number = number
        self._initial = initial
        self._train_step = train_step
        self._checkpoints = checkpoints
        self._unfinished = unfinished
        self._warm = False
        self._ahead: Ahead | None = None
        self._settings = settings
        self._start = sampler.state_dict()
        self._state: TrainState | None = None
        self._committed: dict[int, str] = {}
        self._kept: Mapping[str, Any] = {}
        self._kept_structure: Any = None
        self.sampler = sampler
        self.step = 0

    @property
    def version(self) -> int:
        """Optimizer steps so far."""
        return 0 if self._state is None else int(self._state.step)

    def committed(self, step: int, weights: str) -> None:
        """Tells which weights (SHA-256) the journal has for a step: a checkpoint of others is then refused."""
        self._committed[step] = weights

    def move_to(self, step: int) -> None:
        """Puts state, task order and step where they were after training step `step`.

        Raises:
          CheckpointError: that step has no intact checkpoint, or it is not the one that was committed.
        """
        if self._state is not None and self.step == step:
            return
        self.order("move_to", step=step)
        fresh = self._train_step.init(self._initial.params)
        if step == 0:
            self._state = fresh
            self.sampler.load_state(self._start)
        else:
            self._state, meta = self._restore(step, fresh)
            self.sampler.load_state(meta["sampler"])
        self.step = step

    def train(self, traces: Sequence[Trace]) -> StepReport:
        """One training step on the rollouts of one step: accept, pack, update.

        A step with nothing accepted changes no weight and still counts.

        Raises:
          TrainingDiverged: loss or gradient is not finite.
          PackingError: a chat does not fit a row.
        """
        settings = self._settings
        rule = AcceptRule(settings.accept)
        self.order("train", traces=accept(traces, rule))
        if self._ahead is not None:
            self._ahead.wait_for_update()
        self._state, report = train_on(
            traces,
            self._held(),
            self._train_step,
            rule=rule,
            minibatch=settings.minibatch,
            row_len=settings.row_len,
            rows=settings.rows,
            shapes=settings.pack_shapes,
        )
        self.step += 1
        return report

    def compile_ahead(self) -> None:
        """Begins to compile the training step beside whatever comes; `warm_up` and `train` wait for what they need."""
        self.order("compile_ahead")
        self._ahead = Ahead(self._train_step, self._shapes())

    def warm_up(self) -> None:
        """Runs the largest batch that a step may have, once, so that a run that would not fit fails before its
        rollouts; also compiles the shapes of all others."""
        if not self._warm:
            self.order("warm_up")
            if self._ahead is not None:
                self._ahead.wait_for_warm_up()
            self._train_step.warm_up(self._held(), self._shapes())
            self._warm = True

    def _shapes(self) -> Sequence[Shape]:
        """Of a step's micro-batches."""
        settings = self._settings
        return ladder(settings.rows, settings.row_len, settings.pack_shapes, self._train_step.row_multiple)

    def begin_save(self, protect: Sequence[int] = ()) -> tuple[str, Future[Saved]]:
        """Starts to commit a checkpoint of `step`, which training does not wait for.

        Args:
          protect: steps whose checkpoints must stay.

        Returns:
          The weights' SHA-256, and what is done when the checkpoint is on disk.

        Raises:
          CheckpointError: the save before it failed, or something is in its way.
        """
        snapshot = self.snapshot()
        weights = _weights(snapshot)
        meta = {"sampler": self.sampler.state_dict(), "weights": weights, "version": self.version}
        # The journal stands at the last commit until it has the one that this is for.
        last = [max(self._committed)] if self._committed else []
        return weights, self._checkpoints.begin(self.step, snapshot, meta, protect=[*protect, *last])

    def snapshot(self) -> Snapshot:
        """A copy of the training state on the host of process 0, for which every process brings its parts."""
        self.order("snapshot")
        return self._checkpoints.snapshot(self._held())

    def save_unfinished(self, where: Mapping[str, Any], steps: Sequence[Any], sampler: Mapping[str, Any]) -> None:
        """Keeps the state of `step`, which no journal entry has, for the job that goes on from the commit `where`.

        Args:
          where: names the commit that the steps follow.
          steps: the records of the steps since.
          sampler: position in D_weight after the last of them.

        Raises:
          CheckpointError: it could not be written.
        """
        meta = {"where": dict(where), "steps": list(steps), "sampler": dict(sampler)}
        self._unfinished.begin(self.step, self.snapshot(), meta)
        self._unfinished.wait()

    def take_unfinished(self, where: Mapping[str, Any]) -> list[Any]:
        """Moves on to the state that a job left unfinished after the commit `where`, if one did.

        It is no evidence: one that is damaged or belongs elsewhere is passed over, and its steps are made again.

        Returns:
          The records of its steps; none if there is nothing.
        """
        step = self._unfinished.latest()
        if step is None:
            return []
        try:
            meta = self._unfinished.meta(step)
            if meta["where"] != dict(where):
                return []
            self.restore_unfinished(step)
        except CheckpointError as error:
            _log.warning("what a job left unfinished is not used: %s", error)
            return []
        self.sampler.load_state(meta["sampler"])
        return meta["steps"]

    def restore_unfinished(self, step: int) -> None:
        """Takes the training state of a step that no commit has. Raises CheckpointError: the state is as it was."""
        self.order("restore_unfinished", step=step)
        self._state, _ = self._unfinished.restore(step, self._held())
        self.step = step

    def drop_unfinished(self) -> None:
        """Removes what a job left unfinished."""
        self._unfinished.clear()

    def close(self) -> None:
        """Ends the writers of checkpoints and what is compiled ahead, and gives the training state up."""
        with contextlib.suppress(HostsError):  # who is gone holds none
            self.order("close")
        if self._ahead is not None:
            self._ahead.close()
        self._state, self._kept = None, {}
        self._checkpoints.close()
        self._unfinished.close()

    def weights_at(self, step: int) -> tuple[Any, int]:
        """The fp32 master weights after training step `step`, and their version.

        The training state in memory is left alone.
        """
        if self._state is not None and self.step == step:
            return self._state.params, self.version
        if step == 0:
            return self._train_step.place(self._initial.params), 0
        shapes = self._train_step.shapes(self._initial.params).params
        params, meta = self._restore(step, shapes, _PARAMS)
        return params, int(meta["version"])

    def tensors_at(self, step: int) -> Any:
        """The weights after training step `step` in a tree of the same structure, for an export.

        A leaf has a shape and gives `leaf[index]` as a host array: only that much comes to this host, from wherever it
        is. Meanwhile the policy is to be used for nothing else.
        """
        self.order("hold", step=step)
        leaves = [Tensor(self, name, leaf.shape) for name, leaf in self.hold(step).items()]
        return jax.tree.unflatten(self._kept_structure, leaves)

    def hold(self, step: int) -> Mapping[str, Any]:
        """Keeps the weights after training step `step` for `bring`; gives them by name."""
        params, _ = self.weights_at(step)
        self._kept, self._kept_structure = named_leaves(params), jax.tree.structure(params)
        return self._kept

    def bring(self, name: str, index: Sequence[int]) -> np.ndarray:
        """`leaf[index]` of the weights kept, on the host of process 0."""
        return self._hosts.collect(self._kept[name], tuple(index))

    def order(self, verb: str, **fields: Any) -> None:
        """Before a step that every process makes with its policy of this number; see `Hosts.order`."""
        self._hosts.order(verb, policy=self._number, **fields)

    def _restore(self, step: int, like: Any, part: str = "") -> tuple[Any, dict[str, Any]]:
        state, meta = self._checkpoints.restore(step, like, part)
        expected = self._committed.get(step)
        if expected is not None and meta["weights"] != expected:
            raise CheckpointError(
                f"{self._checkpoints.directory / str(step)} is another run's: it holds weights "
                f"{meta['weights'][:12]}, the journal has {expected[:12]} for this step; restore it from a copy"
            )
        return state, meta

    def _held(self) -> TrainState:
        if self._state is None:
            raise RuntimeError("the policy holds no training state yet; call move_to first")
        return self._state


class Tensor:
    """A parameter that comes to this host piece by piece, when it is asked for."""

    def __init__(self, policy: Policy, name: str, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self._policy, self._name = policy, name

    def __getitem__(self, index: tuple[int, ...]) -> np.ndarray:
        self._policy.order("bring", name=self._name, index=list(index))
        return self._policy.bring(self._name, index)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        whole = self[()]
        return whole if dtype is None else whole.astype(dtype)


def _weights(snapshot: Snapshot) -> str:
    """The SHA-256 over the parameters of a training state: `fingerprint` of them alone."""
    prefix = _PARAMS
    return combine(
        {name.removeprefix(prefix): one for name, one in snapshot.descriptions.items() if name.startswith(prefix)}
    )
