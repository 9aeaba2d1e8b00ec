"""One optimizer step on a mini-batch of any number of micro-batches of one shape.

The loss is a sum over the sampled tokens of the mini-batch divided by their global count, so its value and gradient do
not depend on how the tokens are split into micro-batches, rows or devices.

Letters: R rows of a micro-batch, T positions of a row, N = R x T, D hidden size.
"""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec, SingleDeviceSharding
from jax.typing import DTypeLike

from whale_jax.qwen3_5 import model
from whale_jax.qwen3_5.config import Qwen35Config
from whale_jax.qwen3_5.params import Params, abstract_params
from whale_jax.qwen3_5.remat import Remat
from whale_jax.qwen3_5.sharding import ROWS, Placement, check, put
from whale_jax.serving.driver import Sampling
from whale_jax.training.loss import TokenSums, sampled_logprobs, sum_nll
from whale_jax.training.optimizer import like_params, state_sharding
from whale_jax.training.packing import Batch, Shape
from whale_jax.training.sharded_loss import sampled_logprobs_sharded, sum_nll_sharded
from whale_jax.training.step_metrics import StepMetrics, diagnosis, mismatch

LANES = 4
"""Sums that the micro-batches of a mini-batch are dealt to, whatever the number of workers."""


class TrainingDiverged(RuntimeError):
    """The loss or the gradient of a mini-batch is not finite, or too large. The state given to the step is intact."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """What a training step carries on; all of it goes into a checkpoint.

    Attributes:
        params: fp32 master weights.
        opt_state: the optimizer's state, carried across cycles.
        step: int32 scalar, optimizer steps made: the version of the weights.
    """

    params: Params
    opt_state: optax.OptState
    step: jax.Array


class _Totals(NamedTuple):
    """Sums over the micro-batches so far: d nll / d params (fp32, like params), and the token sums."""

    grads: Params
    sums: TokenSums


class TrainStep:
    """The jitted pieces of a training step; shapes never change, so each is compiled once."""

    def __init__(
        self,
        config: Qwen35Config,
        optimizer: optax.GradientTransformation,
        *,
        sampling: Sampling,
        loss_chunk: int = 256,
        remat: Remat | bool = True,
        compute_dtype: DTypeLike = jnp.float32,
        workers: int = 0,
        placement: Placement | None = None,
        max_grad_norm: float = 0.0,
    ) -> None:
        """Prepares the step; nothing is compiled yet.

        Args:
            config: the policy.
            optimizer: from `make_optimizer`.
            sampling: how the rollouts are sampled, for the comparison with the sampler's log-probabilities.
            loss_chunk: tokens whose logits exist at once.
            remat: what the backward pass recomputes (`Remat`); True is each layer.
            compute_dtype: dtype of activations; parameters, gradients and sums are fp32.
            workers: micro-batches that are computed at the same time, on the one device where the state is. For a CPU,
                where the loops of a program run on one core, and programs of several threads on several. Micro-batch i
                belongs to lane i mod `LANES`, and lanes are added in their order, so the result has the same bits for
                any number of workers. Default: one lane, and no thread. Workers know JAX's settings of the process,
                none that the caller has set as a context.
            placement: the mesh that state and rows are divided over, in place of `workers`. The results are those of
                one device up to rounding.
            max_grad_norm: a gradient of a larger global norm is taken for divergence; 0: none is.

        Raises:
            ValueError: both `workers` and `placement` are given.
        """
        self._config = config
        self._optimizer = optimizer
        self._sampling = sampling
        self._loss_chunk = loss_chunk
        self._remat = remat
        self._compute_dtype = compute_dtype
        if workers and placement is not None:
            raise ValueError("TrainStep: give workers or a placement, not both")
        self._workers = workers
        self._device = jax.local_devices()[0] if workers else None
        self._launch = threading.Lock()
        self._placement = placement
        self._max_grad_norm = max_grad_norm
        self._traced = 0
        self._init = jax.jit(lambda params: self._kept_opt_state(optimizer.init(params), params))
        self._zeros = jax.jit(self._trace_zeros)
        self._accumulate = jax.jit(self._trace_accumulate, donate_argnums=1)
        self._add = jax.jit(self._trace_add, donate_argnums=0)
        self._measure = jax.jit(self._trace_measure)
        self._apply = jax.jit(self._trace_apply, donate_argnums=0)
        self._spread = jax.jit(lambda array: array, out_shardings=placement and placement.on(PartitionSpec()))

    @property
    def compilations(self) -> int:
        """Programs traced so far; constant after the first update as long as shapes stay."""
        return self._traced

    @property
    def _compares(self) -> bool:
        """Whether log-probabilities are computed to be compared with the sampler's."""
        return self._sampling.temperature > 0

    @property
    def row_multiple(self) -> int:
        """The rows of a micro-batch must be a multiple of this."""
        return 1 if self._placement is None else self._placement.row_shards

    def init(self, params: Params) -> TrainState:
        """The state at step 0, on a copy of `params` (an update consumes the arrays of its state)."""
        if self._placement is not None:
            params = self._placement.put_params(params)
            step = put(np.zeros((), np.int32), self._placement.on(PartitionSpec()))
            return TrainState(params, self._init(params), step)
        params = jax.tree.map(lambda leaf: jnp.array(leaf, jnp.float32, copy=True), params)
        state = TrainState(params, self._init(params), jnp.zeros((), jnp.int32))
        return state if self._device is None else jax.device_put(state, self._device)

    def place(self, params: Params) -> Params:
        """Weights to be served alone: where `init` puts them on a mesh, otherwise where they are."""
        if self._placement is not None:
            return self._placement.put_params(params)
        return jax.tree.map(jnp.asarray, params)

    def shapes(self, params: Params) -> TrainState:
        """What `init` makes of `params`, as shapes, with their shardings where there is a mesh."""
        if self._placement is None:
            return jax.eval_shape(self.init, params)
        step: Any = jax.ShapeDtypeStruct((), jnp.int32, sharding=self._placement.on(PartitionSpec()))
        placed: Any = jax.tree.map(_placed_shape, abstract_params(self._config), self._placement.params)
        return TrainState(placed, self.opt_state_shapes(), step)

    def warm_up(self, state: TrainState, shapes: Sequence[Shape]) -> None:
        """Runs the largest batch that there can be, full of targets, beside the whole state, and then one of every
        other shape: what does not fit fails here, before any rollout, and no later update compiles a batch's shape.

        `state` stays valid and nothing of it changes.
        """
        for rows, row_len in sorted(shapes, key=lambda shape: (-shape[0] * shape[1], -shape[1])):
            tokens = np.zeros((rows, row_len), np.int32)
            real = np.ones((rows, row_len), np.float32)
            batch = Batch(tokens, np.ones_like(tokens), tokens, real, np.zeros_like(real))
            jax.block_until_ready(self._accumulate(state.params, self._no_totals(state.params), self._placed(batch)))

    def lower(self, rows: int, row_len: int) -> dict[str, jax.stages.Lowered]:
        """The step's two large programs for micro-batches [rows, row_len], from shapes alone.

        Returns:
            `accumulate` and `apply`. Between them they hold the whole state: what one of them is not given
            (`accumulate` sees no optimizer state) is there beside it all the same.

        Raises:
            ShardingError: the mesh does not divide the rows.
        """
        state, totals, batch = self._shaped(rows, row_len)
        return {
            "accumulate": self._accumulate.lower(state.params, totals, batch),
            "apply": self._apply.lower(state, totals),
        }

    def compile_warm_up(self, shapes: Sequence[Shape]) -> None:
        """Compiles what `warm_up` runs, from shapes alone; it then finds it done.

        This and `compile_update` need nothing of an accelerator: a thread of its own can do them, one after the other,
        while rollouts are sampled.
        """
        for rows, row_len in shapes:
            state, totals, batch = self._shaped(rows, row_len)
            self._accumulate.lower(state.params, totals, batch).compile()
        self._zeros.lower(state.params).compile()

    def compile_update(self, shapes: Sequence[Shape]) -> None:
        """Compiles what else `update` runs, as `compile_warm_up`."""
        state, totals, _ = self._shaped(*shapes[0])
        self._measure.lower(totals).compile()
        self._apply.lower(state, totals).compile()
        if self._workers:
            self._add.lower(totals, totals).compile()

    def _shaped(self, rows: int, row_len: int) -> tuple[TrainState, _Totals, Batch]:
        """State, sums and micro-batch [rows, row_len] as shapes, with the places where an update has them.

        Raises:
            ShardingError: the mesh does not divide the rows.
        """
        place = self._placement
        params: Any = abstract_params(self._config)
        step: Any = jax.ShapeDtypeStruct((), jnp.int32)
        state = TrainState(params, self.opt_state_shapes(), step)
        totals = jax.eval_shape(self._zeros, params)
        whole: Any = jax.ShapeDtypeStruct((rows, row_len), jnp.int32)
        real: Any = jax.ShapeDtypeStruct((rows, row_len), jnp.float32)
        batch = Batch(tokens=whole, segment_ids=whole, targets=whole, weights=real, sampler_logprobs=real)
        if place is not None:
            check(self._config, place.mesh, rows=rows)
            everywhere = place.on(PartitionSpec())
            params = jax.tree.map(_placed_shape, params, place.params)
            state = TrainState(params, state.opt_state, _placed_shape(step, everywhere))
            sums = jax.tree.map(lambda leaf: _placed_shape(leaf, everywhere), totals.sums)
            totals = _Totals(jax.tree.map(_placed_shape, totals.grads, place.params), sums)
            batch = jax.tree.map(lambda leaf: _placed_shape(leaf, place.on(PartitionSpec(ROWS))), batch)
        elif self._device is not None:
            here = SingleDeviceSharding(self._device)
            state, totals = jax.tree.map(lambda leaf: _placed_shape(leaf, here), (state, totals))
        return state, totals, batch

    def opt_state_shapes(self) -> optax.OptState:
        """The optimizer's state as shapes, with their shardings where there is a mesh."""
        params = abstract_params(self._config)
        shapes = jax.eval_shape(self._optimizer.init, params)
        if self._placement is None:
            return shapes
        return like_params(shapes, params, _placed_state, self._placement.params, self._placement.on(PartitionSpec()))

    def update(self, state: TrainState, batches: Sequence[Batch]) -> tuple[TrainState, StepMetrics | None]:
        """One optimizer step on the micro-batches of one mini-batch.

        Consumes `state`: its buffers are reused, so nothing may hold its arrays, a serving engine included, unless it
        is given the new ones before it is used again.

        Returns:
            The next state and its metrics; `state` itself and None when no token carries loss.

        Raises:
            TrainingDiverged: loss or gradient is not finite; `state` is still valid.
            ShardingError: the mesh does not divide the rows of a micro-batch.
        """
        batches = [batch for batch in batches if batch.weights.any()]
        if not batches:
            return state, None
        totals, logprobs = self._totals(state.params, batches)
        loss, accuracy, grad_norm, tokens = (float(value) for value in self._read(self._measure(totals)))
        read_logprobs = self._read(logprobs)
        finite = np.isfinite(loss) and np.isfinite(grad_norm)
        if not finite or 0 < self._max_grad_norm < grad_norm:
            raise TrainingDiverged(
                f"optimizer step {int(state.step)}: loss {loss}, gradient norm {grad_norm} over {tokens:.0f} sampled "
                f"tokens{'' if finite else ', which is not finite'}; no step was made. "
                + diagnosis(state.params, totals.grads, batches, read_logprobs if self._compares else None)
            )
        metrics = StepMetrics(loss, accuracy, grad_norm, int(tokens), mismatch(batches, read_logprobs))
        return self._apply(state, totals), metrics

    def _read(self, arrays: Sequence[jax.Array]) -> list[np.ndarray]:
        """The arrays on the host; on a mesh, parts may be another process's until every device has all of them."""
        if self._placement is not None:
            arrays = [self._spread(array) for array in arrays]
        return jax.device_get(list(arrays))

    def _totals(self, params: Params, batches: Sequence[Batch]) -> tuple[_Totals, list[jax.Array]]:
        """Sums over all micro-batches, and each one's log-probabilities of its sampled targets."""
        lanes = min(LANES, len(batches)) if self._workers else 1
        totals = [self._no_totals(params) for _ in range(lanes)]
        logprobs: dict[int, jax.Array] = {}
        failed = threading.Event()

        def add_up(lane: int) -> None:
            for index in range(lane, len(batches), lanes):
                if failed.is_set():
                    return
                with self._launch:  # of several threads, the first compiles for all
                    totals[lane], logprobs[index] = self._accumulate(params, totals[lane], self._placed(batches[index]))

        def work(lane: int) -> None:
            try:
                add_up(lane)
                jax.block_until_ready(totals[lane])
            except BaseException:
                failed.set()
                raise

        if self._workers:
            with ThreadPoolExecutor(self._workers, "adds up micro-batches") as pool:
                list(pool.map(work, range(lanes)))
        else:
            add_up(0)
        result, *others = totals
        for other in others:
            result = self._add(result, other)
        return result, [logprobs[index] for index in range(len(batches))]

    def _no_totals(self, params: Params) -> _Totals:
        """Sums of nothing, where the workers' device is; without any, wherever JAX puts them beside `params`."""
        totals = self._zeros(params)
        return totals if self._device is None else jax.device_put(totals, self._device)

    def _trace_zeros(self, params: Params) -> _Totals:
        self._traced += 1
        zero = jnp.zeros((), jnp.float32)
        return _Totals(self._kept(jax.tree.map(jnp.zeros_like, params)), TokenSums(zero, zero, zero))

    def _trace_accumulate(self, params: Params, totals: _Totals, batch: Batch) -> tuple[_Totals, jax.Array]:
        """Adds a micro-batch; also gives the log-probabilities [R, T] of its sampled targets."""
        self._traced += 1
        tokens_RxT, segment_ids_RxT = jnp.asarray(batch.tokens), jnp.asarray(batch.segment_ids)
        targets_N, weights_N = jnp.ravel(batch.targets), jnp.ravel(batch.weights)
        nll_sums, target_logprobs = sum_nll, sampled_logprobs
        if self._placement is not None:
            nll_sums = partial(sum_nll_sharded, mesh=self._placement.mesh)
            target_logprobs = partial(sampled_logprobs_sharded, mesh=self._placement.mesh)

        def nll(params: Params) -> tuple[jax.Array, tuple[TokenSums, jax.Array]]:
            hidden_RxTxD = model.forward(
                self._config,
                params,
                tokens_RxT,
                segment_ids_RxT,
                compute_dtype=self._compute_dtype,
                remat=self._remat,
                placement=self._placement,
            )
            hidden_NxD = hidden_RxTxD.reshape(-1, hidden_RxTxD.shape[-1])
            sums = nll_sums(hidden_NxD, self._unembed_weight(params), targets_N, weights_N, chunk=self._loss_chunk)
            return sums.nll, (sums, hidden_NxD)

        grads, (sums, hidden_NxD) = jax.grad(nll, has_aux=True)(params)
        added = jax.tree.map(jnp.add, totals, _Totals(self._kept(grads), sums))
        if not self._compares:  # a greedy sampler reports 0 for every token: nothing to compare with
            return added, jnp.full(batch.targets.shape, jnp.nan)
        logprobs_N = target_logprobs(
            hidden_NxD,
            self._unembed_weight(params),
            targets_N,
            weights_N,
            temperature=self._sampling.temperature,
            top_k=self._sampling.top_k,
            top_p=self._sampling.top_p,
            chunk=self._loss_chunk,
        )
        return added, logprobs_N.reshape(batch.targets.shape)

    def _unembed_weight(self, params: Params) -> jax.Array:
        """The table [V, D] that `model.unembed` multiplies by."""
        return params["embed" if self._config.tie_embeddings else "lm_head"]

    def _trace_add(self, totals: _Totals, other: _Totals) -> _Totals:
        self._traced += 1
        return jax.tree.map(jnp.add, totals, other)

    def _trace_measure(self, totals: _Totals) -> tuple[jax.Array, ...]:
        """Loss, accuracy, gradient norm, tokens."""
        self._traced += 1
        count = totals.sums.weight
        return totals.sums.nll / count, totals.sums.correct / count, optax.tree.norm(totals.grads) / count, count

    def _trace_apply(self, state: TrainState, totals: _Totals) -> TrainState:
        self._traced += 1
        grads = jax.tree.map(lambda grad: grad / totals.sums.weight, totals.grads)
        updates, opt_state = self._optimizer.update(grads, state.opt_state, state.params)
        params = jax.tree.map(jnp.add, state.params, updates)
        return TrainState(self._kept(params), self._kept_opt_state(opt_state, params), state.step + 1)

    def _kept(self, params: Params) -> Params:
        return params if self._placement is None else self._placement.keep_params(params)

    def _kept_opt_state(self, opt_state: optax.OptState, params: Params) -> optax.OptState:
        """The optimizer's state divided like the parameters; its scalars are on every chip."""
        if self._placement is None:
            return opt_state
        place = self._placement

        def keep(leaf: Any, parameter: Any, sharding: Any) -> Any:
            return jax.lax.with_sharding_constraint(leaf, state_sharding(leaf, parameter, sharding))

        return like_params(opt_state, params, keep, place.params, place.on(PartitionSpec()))

    def _placed(self, batch: Batch) -> Batch:
        """A micro-batch with its rows on their chips."""
        if self._placement is None:
            return batch
        check(self._config, self._placement.mesh, rows=batch.tokens.shape[0])
        rows = self._placement.on(PartitionSpec(ROWS))
        return jax.tree.map(lambda leaf: put(np.asarray(leaf), rows), batch)


def _placed_shape(leaf: Any, sharding: jax.sharding.Sharding) -> Any:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _placed_state(leaf: Any, parameter: Any, sharding: Any) -> Any:
    return _placed_shape(leaf, state_sharding(leaf, parameter, sharding))
