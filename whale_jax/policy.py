"""The weights side of a run: training state, task order and their checkpoints, moved together."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from whale_jax.config import TrainingSettings
from whale_jax.qwen3_5.config import Qwen35Config
from whale_jax.rollout.trace import Trace
from whale_jax.training.checkpoint import CheckpointError, Checkpoints
from whale_jax.training.fingerprint import fingerprint
from whale_jax.training.rsft import AcceptRule
from whale_jax.training.sampler import TaskSampler
from whale_jax.training.step import TrainState, TrainStep
from whale_jax.training.weight_step import StepReport, train_on


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
        settings: TrainingSettings,
    ):
        self._initial = initial
        self._train_step = train_step
        self._checkpoints = checkpoints
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
        )
        self.step += 1
        return report

    def save(self, protect: Sequence[int] = ()) -> str:
        """Commits a checkpoint of `step`; returns the weights' SHA-256.

        Args:
          protect: steps whose checkpoints must stay.
        """
        state = self._held()
        weights = fingerprint(state.params)
        meta = {"sampler": self.sampler.state_dict(), "weights": weights, "version": self.version}
        self._checkpoints.save(self.step, state, meta, protect=protect)
        return weights

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
