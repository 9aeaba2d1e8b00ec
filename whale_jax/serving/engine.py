"""The engine: two compiled, fixed-shape steps over a fixed number of slots, and a pool of pages behind them.

*extend*: R rows take up to C tokens each (prefill, and every later turn); where a row's extension ends, the token that
follows is sampled. *decode*: every active slot samples up to k tokens, with one host round trip, ending early when no
slot is active. It is one program over all slots where reading the weights is what costs, on accelerators; on a CPU,
where each row costs, one over fewer rows that runs as often as the active slots need.

Shapes never depend on load, and each row is computed from its own data alone, so a row's result is the same in any slot
and beside any neighbours. Keys and values lie in pages that slots take from a pool as they grow. The cache is donated
from step to step. One thread calls an engine.

Shape letters: B slots, R rows of a step, C extend chunk, K decode steps, G layer groups, V vocabulary, D hidden size, n
pages that a slot has places for, M pages moved together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from whale_jax.qwen3_5 import model
from whale_jax.qwen3_5.cache import PAGE
from whale_jax.qwen3_5.config import Qwen35Config
from whale_jax.serving.driver import Sampling
from whale_jax.serving.memory import SlotMemory
from whale_jax.serving.rows import rows_of, update_rows
from whale_jax.serving.sampling import MAX_STOP_IDS, Controls, is_stop, sample
from whale_jax.serving.steps import DecodeRow, ExtendResult, ExtendRow, SampledIds
from whale_jax.serving.weights import Served, WeightSwap

CPU_DECODE_ROWS = 16
"""Rows of a decode step on a CPU: fewer cost more each, more are computed in vain when few requests are left."""

__all__ = ["DecodeRow", "Engine", "ExtendResult", "ExtendRow", "SampledIds"]


class Engine(SlotMemory):
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
        decode_rows: int | None = None,
        max_top_k: int = 20,
        compute_dtype: Any = jnp.float32,
        version: int = 0,
        device: Any = None,
        prefix_bytes: int = 64 * 2**20,
        host_bytes: int = 2**30,
        page_size: int = PAGE,
        pages: int | None = None,
        token_bytes: Sequence[bytes] | None = None,
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
          decode_rows: rows of one run of the decode program; default: all slots, on a CPU `CPU_DECODE_ROWS` at most.
          max_top_k: the largest `Sampling.top_k` a request may ask for.
          compute_dtype: of activations and of the KV cache.
          version: version of `params`.
          device: the `jax.Device` where the engine lives; default: the first local one.
          prefix_bytes: device memory for states at common beginnings (`prefixes.PrefixStore`); less than one slot's
            state: none are kept.
          host_bytes: host memory for states that left the device (`host_states.HostStates`).
          page_size: positions of a page of keys and values.
          pages: pages of the pool; at least one slot's. Default: enough for all slots and `prefix_bytes`.
          token_bytes: the bytes that each id stands for; needed for stop strings alone.

        Raises:
          ValueError: a size that makes no sense, or too many stop ids.
        """
        device = device or jax.local_devices()[0]
        if decode_rows is None:
            decode_rows = CPU_DECODE_ROWS if device.platform == "cpu" else slots
        sizes = {
            "slots": slots,
            "extend_rows": extend_rows,
            "decode_steps": decode_steps,
            "decode_rows": decode_rows,
        }
        for name, value in sizes.items():
            if value < 1:
                raise ValueError(f"Engine: {name} must be >= 1, got {value}")
        if not 1 <= extend_chunk <= max_len:
            raise ValueError(f"Engine: extend_chunk must be in 1..max_len ({max_len}), got {extend_chunk}")
        if len(stop_ids) > MAX_STOP_IDS:
            raise ValueError(f"Engine: at most {MAX_STOP_IDS} stop ids, got {len(stop_ids)}")
        self.counters = {
            "sampled_tokens": 0,
            "computed_tokens": 0,
            "extended_tokens": 0,
            "extend_steps": 0,
            "decode_steps": 0,
            "compilations": 0,
            "late_compilations": 0,
        }
        self._warm = False
        super().__init__(
            config,
            slots=slots,
            max_len=max_len,
            dtype=compute_dtype,
            page_size=page_size,
            pages=pages,
            extra_bytes=prefix_bytes,
            device=device,
        )
        self.extend_rows = min(extend_rows, slots)
        self.decode_rows = min(decode_rows, slots)
        self.extend_chunk = extend_chunk
        self.decode_steps = decode_steps
        self.max_top_k = max_top_k
        self.stop_ids = tuple(stop_ids)
        self.compute_dtype = compute_dtype
        self.version = version
        self.prefix_bytes = prefix_bytes
        self.host_bytes = host_bytes
        self.token_bytes = token_bytes
        self._swap = WeightSwap([self._device], self._traced)
        self._params = self._swap(params)[0].params
        self._no_hidden = np.zeros(config.hidden_size, jnp.dtype(compute_dtype))
        self._key_Bx2 = np.zeros((slots, 2), np.uint32)
        self._temperature_B = np.zeros(slots, np.float32)
        self._top_p_B = np.ones(slots, np.float32)
        self._top_k_B = np.ones(slots, np.int32)
        self._stop_BxM = np.full((slots, MAX_STOP_IDS), -1, np.int32)
        self._stop_from_B = np.zeros(slots, np.int32)
        self._extend_step = jax.jit(self._extend, donate_argnums=1)
        self._decode_step = jax.jit(self._decode, donate_argnums=1)
        self._first_step = jax.jit(self._first)
        self._stack_step = jax.jit(self._stack)
        self._pick_step = jax.jit(self._pick)

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    def warm_up(self) -> None:
        """Compiles all programs, on slots whose content does not matter yet. Later calls do nothing."""
        if self._warm:
            return
        if self.suspended:
            self.resume()
        self.clear(0)
        self.grow(0, 2)
        begun = self.extend([ExtendRow(0, [0], True)])
        self.first([(0, begun.hidden(0), 1)])
        self.decode([DecodeRow(0, 0, 1)])
        self.exercise()
        self.set_weights(self._params, self.version)
        self.counters.update(sampled_tokens=0, computed_tokens=0, extended_tokens=0, extend_steps=0, decode_steps=0)
        self._warm = True

    def set_weights(self, params: Any, version: int) -> None:
        """Replaces the weights by a copy of `params`, in the dtypes being served; nothing is recompiled.

        The old ones are given up when the new ones are there, so one copy more exists until then. `Served` parameters
        are taken as they are.

        Raises:
          ValueError: another structure or shape.
        """
        given = params.params if isinstance(params, Served) else params
        shapes, dtypes = (
            [jax.tree.map(lambda leaf, name=name: getattr(leaf, name), tree) for tree in (given, self._params)]
            for name in ("shape", "dtype")
        )
        if shapes[0] != shapes[1]:
            raise ValueError("Engine.set_weights: structure or shapes differ from the weights being served")
        if not isinstance(params, Served) or dtypes[0] != dtypes[1]:
            given = self._swap(given, dtypes[1])[0].params
        self._params = given
        self.version = version

    def configure(self, slot: int, sampling: Sampling, key: tuple[int, int], *, stop_from: int = 0) -> None:
        """Sets how `slot` samples from now on; before position `stop_from` no stop id is sampled."""
        self._key_Bx2[slot] = key
        self._temperature_B[slot] = sampling.temperature
        self._top_p_B[slot] = sampling.top_p
        self._top_k_B[slot] = sampling.top_k
        stop_ids = (*self.stop_ids, *sampling.stop_ids)
        self._stop_BxM[slot] = (*stop_ids, *(-1,) * (MAX_STOP_IDS - len(stop_ids)))
        self._stop_from_B[slot] = stop_from

    def extend(self, rows: Sequence[ExtendRow]) -> ExtendResult:
        """Runs one extend step on at most R rows of distinct slots, which have pages for what they take.

        Returns:
          A handle to what the step left at each row's last position, and to the token that follows where it was asked
          for. Reading that waits for the step.
        """
        tokens_RxC = np.zeros((self.extend_rows, self.extend_chunk), np.int32)
        count_R = np.zeros(self.extend_rows, np.int32)
        fresh_R = np.zeros(self.extend_rows, np.bool_)
        slot_R = self._rows_and_fillers([row.slot for row in rows], self.extend_rows)
        for index, row in enumerate(rows):
            tokens_RxC[index, : len(row.ids)] = row.ids
            count_R[index] = len(row.ids)
            fresh_R[index] = row.fresh
        self._cache, hidden_RxD, length_R = self._extend_step(
            self._params, self.paged_cache, slot_R, tokens_RxC, count_R, fresh_R
        )
        self.counters["computed_tokens"] += int(count_R.sum())
        self.counters["extended_tokens"] += int(count_R.sum())
        self.counters["extend_steps"] += 1
        sampled = None
        if any(row.last for row in rows):
            sampled = self._first_step(self._params, hidden_RxD, length_R, self._controls(slot_R))
        return ExtendResult((sampled, hidden_RxD, self._pick_step))

    def first(self, rows: Sequence[tuple[int, Any, int]]) -> list[SampledIds]:
        """The token that follows for each (slot, hidden state at its last position, length): at most R of them.

        The same program as after an extend step, so the same bits.
        """
        hiddens = [hidden for _, hidden, _ in rows] + [self._no_hidden] * (self.extend_rows - len(rows))
        length_R = np.zeros(self.extend_rows, np.int32)
        length_R[: len(rows)] = [length for *_, length in rows]
        slot_R = self._rows_and_fillers([slot for slot, *_ in rows], self.extend_rows)
        # From the device or from host memory: all are put the same way, so that one program stacks them.
        hidden_RxD = self._stack_step(tuple(jax.device_put(hidden, self._device) for hidden in hiddens))
        result = ExtendResult(
            (self._first_step(self._params, hidden_RxD, length_R, self._controls(slot_R)), hidden_RxD, self._pick_step)
        )
        return [result.row(index) for index in range(len(rows))]

    def decode(self, rows: Sequence[DecodeRow]) -> list[SampledIds]:
        """Samples up to k ids for each row; a row stops at a stop id or when its budget is spent.

        Rows have pages for what they take.
        """
        # Rows of about the same length together: a program's attention goes on to its longest one.
        ordered = sorted(range(len(rows)), key=lambda index: self.held_pages(rows[index].slot))
        groups = [ordered[at : at + self.decode_rows] for at in range(0, len(rows), self.decode_rows)]
        started = [self._start_decode([rows[index] for index in group]) for group in groups]
        sampled: list[SampledIds] = [SampledIds([], [], [])] * len(rows)
        for group, (place, out) in zip(groups, started, strict=True):
            count_R, ids_KxR, logprobs_KxR, model_logprobs_KxR = jax.device_get(out)
            for index in group:
                row, count = place[rows[index].slot], count_R[place[rows[index].slot]]
                columns = (array[:count, row].tolist() for array in (ids_KxR, logprobs_KxR, model_logprobs_KxR))
                sampled[index] = SampledIds(*columns)
            self.counters["computed_tokens"] += int(count_R.sum())
            self.counters["sampled_tokens"] += int(count_R.sum()) - sum(len(rows[index].forced) for index in group)
        self.counters["decode_steps"] += 1
        return sampled

    def _start_decode(self, rows: Sequence[DecodeRow]) -> tuple[dict[int, int], tuple[jax.Array, ...]]:
        """Starts the decode program on at most `decode_rows` rows; gives each slot's row in it, and its result."""
        count = self.decode_rows
        slot_R = np.arange(count, dtype=np.int32)
        if count < self.slots:
            slot_R = self._rows_and_fillers([row.slot for row in rows], count)
        place = {int(slot): index for index, slot in enumerate(slot_R)}
        last_R, budget_R = np.zeros(count, np.int32), np.zeros(count, np.int32)
        forced_KxR = np.full((self.decode_steps, count), -1, np.int32)
        for row in rows:
            index = place[row.slot]
            last_R[index] = row.last_id
            budget_R[index] = row.budget
            forced_KxR[: len(row.forced), index] = row.forced
        self._cache, out = self._decode_step(
            self._params, self.paged_cache, slot_R, last_R, budget_R, forced_KxR, self._controls(slot_R)
        )
        return place, out

    def _rows_and_fillers(self, slots: Sequence[int], count: int) -> np.ndarray:
        """`count` slots: a step has R rows whatever the load; the others take no token of some slot and leave it."""
        used = set(slots)
        fillers = (slot for slot in range(self.slots) if slot not in used)
        return np.array([*slots, *(next(fillers) for _ in range(count - len(slots)))], np.int32)

    def _controls(self, slot_R: np.ndarray) -> Controls:
        return Controls(
            self._key_Bx2[slot_R],
            self._temperature_B[slot_R],
            self._top_p_B[slot_R],
            self._top_k_B[slot_R],
            self._stop_BxM[slot_R],
            self._stop_from_B[slot_R],
        )

    def _traced(self) -> None:
        super()._traced()
        self.counters["late_compilations"] += self._warm

    # The functions below are traced once each; the counter counts traces, and so compilations.

    def _extend(
        self,
        params: Any,
        cache: model.Cache,
        slot_R: jax.Array,
        tokens_RxC: jax.Array,
        count_R: jax.Array,
        fresh_R: jax.Array,
    ) -> tuple[model.Cache, jax.Array, jax.Array]:
        """The cache, and at each row's last position the hidden state and how many positions it has now."""
        self._traced()
        rows = rows_of(cache, slot_R, fresh_R)
        hidden_RxCxD, rows = model.extend(
            self.config, params, tokens_RxC, count_R, rows, compute_dtype=self.compute_dtype
        )
        last_R = jnp.maximum(count_R - 1, 0)
        hidden_RxD = jnp.take_along_axis(hidden_RxCxD, last_R[:, None, None], axis=1)[:, 0]
        return update_rows(cache, slot_R, rows), hidden_RxD, rows.length

    def _first(
        self, params: Any, hidden_RxD: jax.Array, length_R: jax.Array, controls: Controls
    ) -> tuple[jax.Array, ...]:
        self._traced()
        logits_RxV = model.unembed(self.config, params, hidden_RxD)
        return tuple(sample(logits_RxV, length_R, controls, max_top_k=self.max_top_k))

    def _stack(self, hiddens: tuple[jax.Array, ...]) -> jax.Array:
        self._traced()
        return jnp.stack(hiddens)

    def _pick(self, hidden_RxD: jax.Array, row: jax.Array) -> jax.Array:
        self._traced()
        return jax.lax.dynamic_index_in_dim(hidden_RxD, row, keepdims=False)

    def _decode(
        self,
        params: Any,
        cache: model.Cache,
        slot_R: jax.Array,
        last_R: jax.Array,
        budget_R: jax.Array,
        forced_KxR: jax.Array,
        controls: Controls,
    ) -> tuple[model.Cache, tuple[jax.Array, ...]]:
        self._traced()
        whole, rows = cache, cache
        if self.decode_rows < self.slots:
            rows = rows_of(whole, slot_R, jnp.zeros_like(slot_R, dtype=bool))
        grid = (self.decode_steps, self.decode_rows)

        def any_active(carry: tuple[Any, ...]) -> jax.Array:
            step, _, _, active_R, *_ = carry
            return (step < self.decode_steps) & jnp.any(active_R)

        def one(carry: tuple[Any, ...]) -> tuple[Any, ...]:
            step, rows, token_R, active_R, count_R, ids, logprobs, model_logprobs = carry
            hidden_RxD, rows = model.decode(
                self.config, params, token_R, active_R, rows, compute_dtype=self.compute_dtype
            )
            logits_RxV = model.unembed(self.config, params, hidden_RxD)
            out = sample(logits_RxV, rows.length, controls, max_top_k=self.max_top_k)
            forced_R = jax.lax.dynamic_index_in_dim(forced_KxR, step, keepdims=False)
            token_R = jnp.where(forced_R >= 0, forced_R, out.token_B)
            ids = ids.at[step].set(token_R)
            logprobs = logprobs.at[step].set(out.logprob_B)
            model_logprobs = model_logprobs.at[step].set(out.model_logprob_B)
            count_R = count_R + active_R
            stopped_R = is_stop(token_R, controls) & (forced_R < 0) | (count_R >= budget_R)
            return step + 1, rows, token_R, active_R & ~stopped_R, count_R, ids, logprobs, model_logprobs

        carry = (
            jnp.int32(0),
            rows,
            last_R,
            budget_R > 0,
            jnp.zeros(self.decode_rows, jnp.int32),
            jnp.zeros(grid, jnp.int32),
            jnp.zeros(grid, jnp.float32),
            jnp.zeros(grid, jnp.float32),
        )
        _, rows, _, _, count_R, ids, logprobs, model_logprobs = jax.lax.while_loop(any_active, one, carry)
        if self.decode_rows < self.slots:
            rows = update_rows(whole, slot_R, rows)
        return rows, (count_R, ids, logprobs, model_logprobs)
