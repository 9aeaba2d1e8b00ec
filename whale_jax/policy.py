"""The weights side of a run: training state, task order and their checkpoints, moved together."""

import dataclasses
import logging
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import jax

from whale_jax.config import TrainingSettings
from whale_jax.qwen3_5.config import Qwen35Config
from whale_jax.rollout.trace import Trace
from whale_jax.training.checkpoint import CheckpointError, Checkpoints, Saved, Snapshot
from whale_jax.training.fingerprint import combine
from whale_jax.training.packing import ladder
from whale_jax.training.rsft import AcceptRule
from whale_jax.training.sampler import TaskSampler
from whale_jax.training.step import TrainState, TrainStep
from whale_jax.training.weight_step import StepReport, train_on

_log = logging.getLogger(__name__)


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
    ):
        """Args:
        checkpoints: of the run's commits.
        unfinished: where work since the last commit is put when a job has to end; nothing rests on it.
        """
        self._initial = initial
        self._train_step = train_step
        self._checkpoints = checkpoints
        self._unfinished = unfinished
        self._warm = False
        self._settings = settings
        self._start = sampler.state_dict()
        self._state: TrainState | None = None
        self._committed: dict[int, str] = {}
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
        self._state, report = train_on(
            traces,
            self._held(),
            self._train_step,
            rule=AcceptRule(settings.accept),
            minibatch=settings.minibatch,
            row_len=settings.row_len,
            rows=settings.rows,
            shapes=settings.pack_shapes,
        )
        self.step += 1
        return report

    def warm_up(self) -> None:
        """Runs the largest batch that a step may have, once, so that a run that would not fit fails before its
        rollouts; also compiles the shapes of all others."""
        if not self._warm:
            settings = self._settings
            multiple = self._train_step.row_multiple
            shapes = ladder(settings.rows, settings.row_len, settings.pack_shapes, multiple)
            self._train_step.warm_up(self._held(), shapes)
            self._warm = True

    def begin_save(self, protect: Sequence[int] = ()) -> tuple[str, Future[Saved]]:
        """Starts to commit a checkpoint of `step`, which training does not wait for.

        Args:
          protect: steps whose checkpoints must stay.

        Returns:
          The weights' SHA-256, and what is done when the checkpoint is on disk.

        Raises:
          CheckpointError: the save before it failed, or something is in its way.
        """
        snapshot = Snapshot.of(self._held())
        weights = _weights(snapshot)
        meta = {"sampler": self.sampler.state_dict(), "weights": weights, "version": self.version}
        return weights, self._checkpoints.begin(self.step, snapshot, meta, protect=protect)

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
        self._unfinished.save(self.step, self._held(), meta)

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
            self._state, _ = self._unfinished.restore(step, self._held())
        except CheckpointError as error:
            _log.warning("what a job left unfinished is not used: %s", error)
            return []
        self.sampler.load_state(meta["sampler"])
        self.step = step
        return meta["steps"]

    def drop_unfinished(self) -> None:
        """Removes what a job left unfinished."""
        shutil.rmtree(self._unfinished.directory, ignore_errors=True)

    def close(self) -> None:
        """Ends the writers of checkpoints."""
        self._checkpoints.close()
        self._unfinished.close()

    def weights_at(self, step: int) -> tuple[Any, int]:
        """The fp32 master weights after training step `step`, and their version.

        The training state in memory is left alone.
        """
        if self._state is not None and self.step == step:
            return self._state.params, self.version
        if step == 0:
            return jax.tree.map(jax.numpy.asarray, self._initial.params), 0
        like = jax.eval_shape(self._train_step.init, self._initial.params)
        state, meta = self._restore(step, like)
        return state.params, int(meta["version"])

    def _restore(self, step: int, like: TrainState) -> tuple[TrainState, dict[str, Any]]:
        state, meta = self._checkpoints.restore(step, like)
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


def _weights(snapshot: Snapshot) -> str:
    """The SHA-256 over the parameters of a training state: `fingerprint` of them alone."""
    prefix = "params/"
    return combine(
        {name.removeprefix(prefix): one for name, one in snapshot.descriptions.items() if name.startswith(prefix)}
    )
