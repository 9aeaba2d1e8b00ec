"""The engine: two compiled, fixed-shape steps over a fixed number of slots.

*extend*: R rows take up to C tokens each (prefill, and every later turn) and each samples the token that follows.
*decode*: every active slot samples up to k tokens, with one host round trip, ending early when no slot is active.

Shapes never depend on load, and each row is computed from its own data alone, so a row's result is the same in any slot
and beside any neighbours. The cache is donated from step to step. One thread calls an engine.

Shape letters: B slots, R extend rows, C extend chunk, S max_len, K decode steps, G layer groups, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from whale_jax.qwen3_5 import model
from whale_jax.qwen3_5.config import Qwen35Config
from whale_jax.serving.driver import Sampling
from whale_jax.serving.rows import RowState, empty_row, padded, read_row, rows_of, trimmed, update_rows, write_row
from whale_jax.serving.sampling import Controls, sample


@dataclass(frozen=True)
class ExtendRow:
    """One row of an extend step: `ids` (1..C of them) enter the state of `slot`; `fresh` starts from nothing."""

    slot: int
    ids: Sequence[int]
    fresh: bool


@dataclass(frozen=True)
class DecodeRow:
    """One slot of a decode step: its last sampled id, which is not in the state yet, and how many ids it may sample."""

    slot: int
    last_id: int
    budget: int


@dataclass(frozen=True)
class SampledIds:
    """What a step sampled for one row. `finite` is False if the model's numbers were not: the ids are then noise."""

    ids: list[int]
    logprobs: list[float]
    model_logprobs: list[float]

    @property
    def finite(self) -> bool:
        return bool(np.isfinite(self.model_logprobs).all())


class Engine:
    """Slots of model state and the two steps on them."""

    def __init__(
        self,
        config: Qwen35Config,
        params: Any,
        *,
        slots: int,
        max_len: int,
        stop_ids: Sequence[int],
        extend_rows: int = 16,
        extend_chunk: int = 32,
        decode_steps: int = 8,
        max_top_k: int = 20,
        compute_dtype: Any = jnp.float32,
        version: int = 0,
        device: Any = None,
        prefix_bytes: int = 64 * 2**20,
    ) -> None:
        """Allocates the cache; compiles nothing yet (see `warm_up`).

        Args:
          config: the model's.
          params: copied, so the caller may donate or change its own.
          slots: B, sequences decoded together.
          max_len: S, the most ids a session may hold.
          stop_ids: sampling one of these ends a request; it stays in the ids.
          extend_rows: R, rows of one extend step; at most `slots`.
          extend_chunk: C, tokens of one row of an extend step.
          decode_steps: k, tokens per slot and decode step.
          max_top_k: the largest `Sampling.top_k` a request may ask for.
          compute_dtype: of activations and of the KV cache.
          version: version of `params`.
          device: the `jax.Device` where the engine lives; default: the first local one.
          prefix_bytes: device memory for states at common beginnings (`prefixes.PrefixStore`); less than one slot's
            state: none are kept.
        """
        for name, value in (("slots", slots), ("extend_rows", extend_rows), ("decode_steps", decode_steps)):
            if value < 1:
                raise ValueError(f"Engine: {name} must be >= 1, got {value}")
        if not 1 <= extend_chunk <= max_len:
            raise ValueError(f"Engine: extend_chunk must be in 1..max_len ({max_len}), got {extend_chunk}")
        self.config = config
        self.slots = slots
        self.max_len = max_len
        self.extend_rows = min(extend_rows, slots)
        self.extend_chunk = extend_chunk
        self.decode_steps = decode_steps
        self.max_top_k = max_top_k
        self.stop_ids = tuple(stop_ids)
        self.compute_dtype = compute_dtype
        self.version = version
        self.prefix_bytes = prefix_bytes
        self.counters = {
            "sampled_tokens": 0,
            "computed_tokens": 0,
            "extend_steps": 0,
            "decode_steps": 0,
            "compilations": 0,
        }
        self._device = device or jax.local_devices()[0]
        self._params = _copy(params, self._device)
        self._cache = jax.device_put(model.init_cache(config, slots, max_len, compute_dtype), self._device)
        self._key_Bx2 = np.zeros((slots, 2), np.uint32)
        self._temperature_B = np.zeros(slots, np.float32)
        self._top_p_B = np.ones(slots, np.float32)
        self._top_k_B = np.ones(slots, np.int32)
        self._extend_step = jax.jit(self._extend, donate_argnums=1)
        self._decode_step = jax.jit(self._decode, donate_argnums=1)
        self._read_step = jax.jit(self._read)
        self._write_step = jax.jit(self._write, donate_argnums=0)

    @property
    def slot_bytes(self) -> int:
        """Device memory of one slot's state."""
        return sum(leaf.nbytes for leaf in self._cache) // self.slots

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    def warm_up(self) -> None:
        """Compiles all steps, on slots whose content must not matter yet. Later calls cost four small steps."""
        self.extend([ExtendRow(0, [0], True)])
        self.decode([DecodeRow(0, 0, 1)])
        self.write_slot(0, self.read_slot(0))
        self.reset_slot(0)
        self.counters.update(sampled_tokens=0, computed_tokens=0, extend_steps=0, decode_steps=0)

    def set_weights(self, params: Any, version: int) -> None:
        """Replaces the weights by a copy of `params` of the same structure, shapes and dtypes; nothing is recompiled.

        Raises:
          ValueError: another structure, shape or dtype.
        """
        describe = lambda tree: jax.tree.map(lambda x: (x.shape, jnp.dtype(x.dtype)), tree)  # noqa: E731
        if describe(params) != describe(self._params):
            raise ValueError("Engine.set_weights: structure, shapes or dtypes differ from the weights being served")
        self._params = _copy(params, self._device)
        self.version = version

    def configure(self, slot: int, sampling: Sampling, key: tuple[int, int]) -> None:
        """Sets how `slot` samples from now on."""
        self._key_Bx2[slot] = key
        self._temperature_B[slot] = sampling.temperature
        self._top_p_B[slot] = sampling.top_p
        self._top_k_B[slot] = sampling.top_k

    def extend(self, rows: Sequence[ExtendRow]) -> ExtendResult:
        """Runs one extend step on at most R rows of distinct slots.

        Returns:
          A handle to the token that follows each row's ids. Reading it waits for the step; where no row has reached the
          end of its extension it need not be read.
        """
        tokens_RxC = np.zeros((self.extend_rows, self.extend_chunk), np.int32)
        count_R = np.zeros(self.extend_rows, np.int32)
        fresh_R = np.zeros(self.extend_rows, np.bool_)
        used = {row.slot for row in rows}
        # A step has R rows whatever the load: the others take no token of some other slot and leave it as it is.
        fillers = (slot for slot in range(self.slots) if slot not in used)
        slot_R = np.array(
            [row.slot for row in rows] + [next(fillers) for _ in range(self.extend_rows - len(rows))], np.int32
        )
        for index, row in enumerate(rows):
            tokens_RxC[index, : len(row.ids)] = row.ids
            count_R[index] = len(row.ids)
            fresh_R[index] = row.fresh
        self._cache, out = self._extend_step(
            self._params, self._cache, slot_R, tokens_RxC, count_R, fresh_R, self._controls(slot_R)
        )
        self.counters["computed_tokens"] += int(count_R.sum())
        self.counters["extend_steps"] += 1
        return ExtendResult(out)

    def decode(self, rows: Sequence[DecodeRow]) -> list[SampledIds]:
        """Samples up to k ids for each row; a row stops at a stop id or when its budget is spent."""
        last_B = np.zeros(self.slots, np.int32)
        budget_B = np.zeros(self.slots, np.int32)
        for row in rows:
            last_B[row.slot] = row.last_id
            budget_B[row.slot] = row.budget
        self._cache, out = self._decode_step(
            self._params, self._cache, last_B, budget_B, self._controls(np.arange(self.slots))
        )
        count_B, ids_KxB, logprobs_KxB, model_logprobs_KxB = jax.device_get(out)
        self.counters["sampled_tokens"] += int(count_B.sum())
        self.counters["computed_tokens"] += int(count_B.sum())
        self.counters["decode_steps"] += 1
        return [
            SampledIds(
                ids_KxB[: count_B[row.slot], row.slot].tolist(),
                logprobs_KxB[: count_B[row.slot], row.slot].tolist(),
                model_logprobs_KxB[: count_B[row.slot], row.slot].tolist(),
            )
            for row in rows
        ]

    def read_slot(self, slot: int) -> RowState:
        """Copies a slot's state to host memory, as long as its sequence."""
        return trimmed(jax.device_get(self.copy_slot(slot)))

    def write_slot(self, slot: int, state: RowState) -> None:
        """Puts a state from `read_slot` into a slot, bit for bit."""
        self.paste_slot(slot, jax.device_put(padded(state, self.max_len), self._device))

    def copy_slot(self, slot: int) -> RowState:
        """A copy of a slot's state that stays on the device, k and v in full length."""
        return self._read_step(self._cache, np.int32(slot))

    def paste_slot(self, slot: int, state: RowState) -> None:
        """Puts a state from `copy_slot` into a slot, bit for bit."""
        self._cache = self._write_step(self._cache, np.int32(slot), state)

    def reset_slot(self, slot: int) -> None:
        """Zeroes a slot, so that NaN cannot reach the next sequence through masked positions."""
        self.write_slot(slot, empty_row(self._cache))

    def _controls(self, slot_R: np.ndarray) -> Controls:
        return Controls(
            self._key_Bx2[slot_R], self._temperature_B[slot_R], self._top_p_B[slot_R], self._top_k_B[slot_R]
        )

    # The four functions below are traced once each; the counter counts traces, and so compilations.

    def _extend(
        self,
        params: Any,
        cache: model.Cache,
        slot_R: jax.Array,
        tokens_RxC: jax.Array,
        count_R: jax.Array,
        fresh_R: jax.Array,
        controls: Controls,
    ) -> tuple[model.Cache, tuple[jax.Array, ...]]:
        self.counters["compilations"] += 1
        rows = rows_of(cache, slot_R, fresh_R)
        start_R = rows.length
        hidden_RxCxD, rows = model.extend(
            self.config, params, tokens_RxC, count_R, rows, compute_dtype=self.compute_dtype
        )
        cache = update_rows(cache, slot_R, start_R, rows, self.extend_chunk)
        last_R = jnp.maximum(count_R - 1, 0)
        hidden_RxD = jnp.take_along_axis(hidden_RxCxD, last_R[:, None, None], axis=1)[:, 0]
        logits_RxV = model.unembed(self.config, params, hidden_RxD)
        return cache, tuple(sample(logits_RxV, rows.length, controls, max_top_k=self.max_top_k))

    def _decode(
        self, params: Any, cache: model.Cache, last_B: jax.Array, budget_B: jax.Array, controls: Controls
    ) -> tuple[model.Cache, tuple[jax.Array, ...]]:
        self.counters["compilations"] += 1
        stop_ids = jnp.asarray(self.stop_ids, jnp.int32)
        grid = (self.decode_steps, self.slots)

        def any_active(carry: tuple[Any, ...]) -> jax.Array:
            step, _, _, active_B, *_ = carry
            return (step < self.decode_steps) & jnp.any(active_B)

        def one(carry: tuple[Any, ...]) -> tuple[Any, ...]:
            step, cache, token_B, active_B, count_B, ids, logprobs, model_logprobs = carry
            hidden_BxD, cache = model.decode(
                self.config, params, token_B, active_B, cache, compute_dtype=self.compute_dtype
            )
            logits_BxV = model.unembed(self.config, params, hidden_BxD)
            out = sample(logits_BxV, cache.length, controls, max_top_k=self.max_top_k)
            ids = ids.at[step].set(out.token_B)
            logprobs = logprobs.at[step].set(out.logprob_B)
            model_logprobs = model_logprobs.at[step].set(out.model_logprob_B)
            count_B = count_B + active_B
            stopped_B = jnp.isin(out.token_B, stop_ids) | (count_B >= budget_B)
            return step + 1, cache, out.token_B, active_B & ~stopped_B, count_B, ids, logprobs, model_logprobs

        carry = (
            jnp.int32(0),
            cache,
            last_B,
            budget_B > 0,
            jnp.zeros(self.slots, jnp.int32),
            jnp.zeros(grid, jnp.int32),
            jnp.zeros(grid, jnp.float32),
            jnp.zeros(grid, jnp.float32),
        )
        _, cache, _, _, count_B, ids, logprobs, model_logprobs = jax.lax.while_loop(any_active, one, carry)
        return cache, (count_B, ids, logprobs, model_logprobs)

    def _read(self, cache: model.Cache, slot: jax.Array) -> RowState:
        self.counters["compilations"] += 1
        return read_row(cache, slot)

    def _write(self, cache: model.Cache, slot: jax.Array, state: RowState) -> model.Cache:
        self.counters["compilations"] += 1
        return write_row(cache, slot, state)


class ExtendResult:
    """The token after each row of an extend step, still on its way from the device."""

    def __init__(self, out: tuple[jax.Array, ...]) -> None:
        self._out = out
        self._host: tuple[np.ndarray, ...] | None = None

    def row(self, index: int) -> SampledIds:
        """Waits for the step and returns what row `index` sampled: one id."""
        host = self._host
        if host is None:
            host = self._host = jax.device_get(self._out)
        token_R, logprob_R, model_logprob_R = host
        return SampledIds([int(token_R[index])], [float(logprob_R[index])], [float(model_logprob_R[index])])


def _copy(params: Any, device: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.array(jax.device_put(leaf, device), copy=True), params)
