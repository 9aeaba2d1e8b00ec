"""The training step is compiled while the first rollouts are sampled, not after them."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from whale_jax.training.packing import Shape
from whale_jax.training.step import TrainStep


class Ahead:
    """A compilation of the training step that goes on in a thread of its own from the start."""

    def __init__(self, train_step: TrainStep, shapes: Sequence[Shape]) -> None:
        self._given_up = threading.Event()
        self._pool = ThreadPoolExecutor(1, "compiles the training step")
        self._done = self._pool.submit(train_step.compile, shapes, lambda: not self._given_up.is_set())

    def wait(self) -> None:
        """Returns when all is compiled; the step may then be used. Raises what the compiler did."""
        try:
            self._done.result()
        finally:
            self.close()

    def close(self) -> None:
        """Leaves what is not begun, and returns when the program at work is done: compilers cannot be interrupted."""
        self._given_up.set()
        self._pool.shutdown()
