"""The weights that the engines serve: those after one training step, given to every replica of this host."""

import jax
from jax.typing import DTypeLike

from whale_jax.policy import Policy
from whale_jax.qwen3_5.params import cast_params
from whale_jax.serving.driver import Driver
from whale_jax.stages import Stage, StageClock
from whale_jax.training.changed import bf16_matrices, changed_share


class Swap:
    """Moves weights from training to the engines of this host."""

    def __init__(self, policy: Policy, driver: Driver, dtype: DTypeLike, stages: StageClock) -> None:
        """Args:
        dtype: of serving; what is not part of a matrix product stays in fp32.
        """
        self._policy, self._driver, self._dtype, self._stages = policy, driver, dtype, stages
        self._step: int | None = None
        self._served: list[jax.Array] | None = None
        self._changed: float | None = None

    def serve(self, step: int) -> None:
        """Gives the engines the weights after training step `step`, if they do not have them."""
        if self._step == step:
            return
        with self._stages.of(Stage.SWAP):
            self._policy.order("serve", step=step)
            params, version = self._policy.weights_at(step)
            served = cast_params(params, self._dtype)
            matrices = bf16_matrices(served)
            if self._served is not None:
                self._changed = changed_share(self._served, matrices)
            self._served = matrices
            self._driver.set_weights(served, version)
        self._step = step

    def suspend(self) -> None:
        """Gives up the engines' memory of states, so that training can have it; see `Driver.suspend`."""
        self._driver.suspend()

    def forget(self) -> None:
        """Says that somebody else may have put other weights into the engines."""
        self._policy.order("forget")
        self._step = self._served = None

    def taken_changed_share(self) -> float | None:
        """Share of bf16 weights that the last swap changed, once; None without a swap since the last call."""
        share, self._changed = self._changed, None
        return share
