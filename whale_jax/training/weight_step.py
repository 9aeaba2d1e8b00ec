"""What a step of the weight phase does with its rollouts (PAPER section 3)."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from whale_jax.rollout.trace import Trace
from whale_jax.training.packing import pack
from whale_jax.training.rsft import AcceptRule, accept, sequences
from whale_jax.training.step import TrainState, TrainStep
from whale_jax.training.step_metrics import Mismatch, StepMetrics


@dataclass(frozen=True)
class StepReport:
    """One training step: a single pass over the accepted trajectories.

    Attributes:
        accepted: trajectories trained on.
        updates: metrics of each optimizer step, in order; empty when nothing was accepted.
        packed_tokens: input positions in use.
        packed_positions: input positions computed, padding included.
        dropped: chats of accepted trajectories that hold no token to train on.
        pack_seconds: wall time of choosing and packing them.
    """

    accepted: int
    updates: tuple[StepMetrics, ...]
    packed_tokens: int
    packed_positions: int
    dropped: int
    pack_seconds: float = 0.0

    @property
    def tokens(self) -> int:
        """Sampled tokens trained on."""
        return sum(update.tokens for update in self.updates)

    @property
    def loss(self) -> float | None:
        """Mean negative log-likelihood per sampled token in nats; None when nothing was accepted."""
        return sum(update.loss * update.tokens for update in self.updates) / self.tokens if self.updates else None

    @property
    def grad_norm(self) -> float | None:
        """Largest gradient norm of the step; None when nothing was accepted."""
        return max((update.grad_norm for update in self.updates), default=None)

    @property
    def mismatch(self) -> Mismatch | None:
        """Trainer against sampler at the weights that sampled, which are those of the first mini-batch."""
        return self.updates[0].mismatch if self.updates else None

    @property
    def fill_rate(self) -> float | None:
        """Share of computed positions in use; None when nothing was accepted."""
        return self.packed_tokens / self.packed_positions if self.packed_positions else None


def train_on(
    traces: Sequence[Trace],
    state: TrainState,
    train_step: TrainStep,
    *,
    rule: AcceptRule,
    minibatch: int,
    row_len: int,
    rows: int,
    shapes: int = 1,
) -> tuple[TrainState, StepReport]:
    """Trains once on the accepted traces of a step, in mini-batches of trajectories.

    Args:
        traces: all traces of the step, in the order of their requests: the result depends on it.
        state: consumed (see `TrainStep.update`); returned as it is when nothing is accepted.
        train_step: the compiled step.
        rule: which traces are trained on.
        minibatch: trajectories per optimizer step; the last mini-batch may have fewer (PAPER: 64).
        row_len: positions of a packed row.
        rows: rows of a micro-batch.
        shapes: shapes that a micro-batch may have (`packing.ladder`).

    Raises:
        PackingError: a chat does not fit into a row. Raised before anything is trained.
        TrainingDiverged: loss or gradient of a mini-batch is not finite.
    """
    started = time.monotonic()
    accepted = accept(traces, rule)
    packs = [
        pack(
            [sequence for trace in accepted[start : start + minibatch] for sequence in sequences(trace)],
            row_len=row_len,
            rows=rows,
            shapes=shapes,
            multiple=train_step.row_multiple,
        )
        for start in range(0, len(accepted), minibatch)
    ]
    pack_seconds = time.monotonic() - started
    updates = []
    for packed in packs:
        state, metrics = train_step.update(state, packed.batches)
        if metrics is not None:
            updates.append(metrics)
    return state, StepReport(
        accepted=len(accepted),
        updates=tuple(updates),
        packed_tokens=sum(packed.tokens for packed in packs),
        packed_positions=sum(packed.positions for packed in packs),
        dropped=sum(packed.dropped for packed in packs),
        pack_seconds=pack_seconds,
    )
