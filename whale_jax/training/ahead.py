"""The training step is compiled while the first rollouts are sampled, not after them."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from whale_jax.training.packing import Shape
from whale_jax.training.step import TrainStep


class Ahead:
    """A compilation of the training step that goes on in a thread of its own from the start."""

    def __init__(self, train_step: TrainStep, shapes: Sequence[Shape]) -> None:
        self._pool = ThreadPoolExecutor(1, "compiles the training step")
        self._warm_up = self._pool.submit(train_step.compile_warm_up, shapes)
        self._update = self._pool.submit(train_step.compile_update, shapes)

    def wait_for_warm_up(self) -> None:
        """Returns when what `TrainStep.warm_up` runs is compiled. Raises what the compiler did."""
        self._wait(self._warm_up)

    def wait_for_update(self) -> None:
        """Returns when all is compiled. Raises what the compiler did."""
        self._wait(self._update)

    def close(self) -> None:
        """Leaves what is not begun, and returns when what is at work is done: compilers cannot be interrupted."""
        self._pool.shutdown(cancel_futures=True)

    def _wait(self, part: Future[None]) -> None:
        try:
            part.result()
        except Exception:
            self.close()
            raise
