"""The engine: two compiled, fixed-shape steps over a fixed number of slots, and a pool of pages behind them.

*extend*: R rows take up to C tokens each (prefill, and every later turn); where a row's extension ends, the token that
follows is sampled. *decode*: every active slot samples up to k tokens, with one host round trip, ending early when no
slot is active. Their rows are computed together where reading the weights is what costs, on accelerators; on a CPU,
where each row costs, in lots of fewer rows, as many lots as there is work for (`programs`).

Shapes never depend on load, and each row is computed from its own data alone, so a row's result is the same in any slot
and beside any neighbours. Keys and values lie in pages that slots take from a pool as they grow. The cache is donated
from step to step. One thread calls an engine.

Shape letters: B slots, R rows of a step, C extend chunk, K decode steps, G layer groups, V vocabulary, D hidden size, n
pages that a slot has places for, M pages moved together.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from whale_jax.qwen3_5.cache import PAGE
from whale_jax.qwen3_5.config import Qwen35Config
from whale_jax.serving import programs
from whale_jax.serving.driver import Sampling
from whale_jax.serving.memory import SlotMemory
from whale_jax.serving.sampling import MAX_STOP_IDS, Controls
from whale_jax.serving.steps import DecodeRow, ExtendResult, ExtendRow, SampledIds
from whale_jax.serving.weights import Served, WeightSwap

CPU_EXTEND_LOT, CPU_DECODE_LOT = 2, 16
"""Rows computed together on a CPU: fewer cost more each, more are computed in vain when few requests are left. Those of
an extend step have many positions each."""

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
        extend_lot: int | None = None,
        decode_lot: int | None = None,
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
          extend_lot, decode_lot: rows of an extend or decode step that are computed together; default: all, on a CPU
            `CPU_EXTEND_LOT` and `CPU_DECODE_LOT` at most.
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
        on_cpu = device.platform == "cpu"
        extend_lot = extend_lot if extend_lot is not None else CPU_EXTEND_LOT if on_cpu else extend_rows
        decode_lot = decode_lot if decode_lot is not None else CPU_DECODE_LOT if on_cpu else slots
        sizes = {
            "slots": slots,
            "extend_rows": extend_rows,
            "decode_steps": decode_steps,
            "extend_lot": extend_lot,
            "decode_lot": decode_lot,
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
        self.extend_lot = min(extend_lot, self.extend_rows)
        self.decode_lot = min(decode_lot, slots)
        self.extend_chunk = extend_chunk
        self.decode_steps = decode_steps
        self.max_top_k = max_top_k
        self.stop_ids = tuple(stop_ids)
        self.compute_dtype = compute_dtype
        self.version = version
        self.prefix_bytes = prefix_bytes
        self.host_bytes = host_bytes
        self.token_bytes = token_bytes
        self._swap = WeightSwap([self._device])
        self._params = self._swap(params)[0].params
        self._taken = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype), params)
        self._no_hidden = np.zeros(config.hidden_size, jnp.dtype(compute_dtype))
        self._key_Bx2 = np.zeros((slots, 2), np.uint32)
        self._temperature_B = np.zeros(slots, np.float32)
        self._top_p_B = np.ones(slots, np.float32)
        self._top_k_B = np.ones(slots, np.int32)
        self._stop_BxM = np.full((slots, MAX_STOP_IDS), -1, np.int32)
        self._stop_from_B = np.zeros(slots, np.int32)
        settings = programs.Settings(config, jnp.dtype(compute_dtype), max_top_k)
        self._programs = programs.compiled(settings, self.extend_lot, self.decode_lot)

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
        self.counters.update(sampled_tokens=0, computed_tokens=0, extended_tokens=0, extend_steps=0, decode_steps=0)
        self._warm = True

    def set_weights(self, params: Any, version: int) -> None:
        """Replaces the weights by a copy of `params`, in the dtypes being served; nothing is recompiled.

        The old ones are given up when the new ones are there, so one copy more exists until then. `Served` parameters
        are taken as they are.

        Raises:
          ValueError: another structure or shape.
        """
        if isinstance(params, Served):
            given, served = params.params, self._params
        else:
            given, served = params, self._taken
        shapes, dtypes = (
            [jax.tree.map(lambda leaf, name=name: getattr(leaf, name), tree) for tree in (given, served)]
            for name in ("shape", "dtype")
        )
        if shapes[0] != shapes[1]:
            raise ValueError("Engine.set_weights: structure or shapes differ from the weights being served")
        if isinstance(params, Served) and dtypes[0] != dtypes[1]:
            given = _cast(given, tuple(jax.tree.leaves(dtypes[1])))
        elif not isinstance(params, Served):
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
        count = self._padded_rows(self.extend_rows, self.extend_lot)
        tokens_RxC = np.zeros((count, self.extend_chunk), np.int32)
        count_R = np.zeros(count, np.int32)
        fresh_R = np.zeros(count, np.bool_)
        ordered = self._by_pages(rows)
        slot_R = self._rows_and_fillers([rows[index].slot for index in ordered], count)
        for place, index in enumerate(ordered):
            row = rows[index]
            tokens_RxC[place, : len(row.ids)] = row.ids
            count_R[place] = len(row.ids)
            fresh_R[place] = row.fresh
        self._cache, hidden_RxD, length_R = self._programs.extend(
            self._params, self.paged_cache, slot_R, tokens_RxC, count_R, fresh_R
        )
        self.counters["computed_tokens"] += int(count_R.sum())
        self.counters["extended_tokens"] += int(count_R.sum())
        self.counters["extend_steps"] += 1
        sampled = None
        if any(row.last for row in rows):
            sampled = self._programs.first(self._params, hidden_RxD, length_R, self._controls(slot_R))
        return ExtendResult((sampled, hidden_RxD, _pick), {at: place for place, at in enumerate(ordered)})

    def first(self, rows: Sequence[tuple[int, Any, int]]) -> list[SampledIds]:
        """The token that follows for each (slot, hidden state at its last position, length): at most R of them.

        The same program as after an extend step, so the same bits.
        """
        count = self._padded_rows(self.extend_rows, self.extend_lot)
        hiddens = [hidden for _, hidden, _ in rows] + [self._no_hidden] * (count - len(rows))
        length_R = np.zeros(count, np.int32)
        length_R[: len(rows)] = [length for *_, length in rows]
        slot_R = self._rows_and_fillers([slot for slot, *_ in rows], count)
        # From the device or from host memory: all are put the same way, so that one program stacks them.
        hidden_RxD = _stack(tuple(jax.device_put(hidden, self._device) for hidden in hiddens))
        result = ExtendResult(
            (self._programs.first(self._params, hidden_RxD, length_R, self._controls(slot_R)), hidden_RxD, _pick)
        )
        return [result.row(index) for index in range(len(rows))]

    def decode(self, rows: Sequence[DecodeRow]) -> list[SampledIds]:
        """Samples up to k ids for each row; a row stops at a stop id or when its budget is spent.

        Rows have pages for what they take.
        """
        ordered = self._by_pages(rows)
        count = self._padded_rows(self.slots, self.decode_lot)
        slot_R = np.arange(count, dtype=np.int32)
        if self.decode_lot < self.slots:
            slot_R = self._rows_and_fillers([rows[index].slot for index in ordered], count)
        place = {int(slot): index for index, slot in reversed([*enumerate(slot_R)])}
        last_R, budget_R = np.zeros(count, np.int32), np.zeros(count, np.int32)
        forced_RxK = np.full((count, self.decode_steps), -1, np.int32)
        for row in rows:
            index = place[row.slot]
            last_R[index] = row.last_id
            budget_R[index] = row.budget
            forced_RxK[index, : len(row.forced)] = row.forced
        given = programs.DecodeInput(last_R, budget_R, forced_RxK, self._controls(slot_R))
        self._cache, out = self._programs.decode(self._params, self.paged_cache, slot_R, given)
        count_R, *arrays = jax.device_get(out)
        self.counters["computed_tokens"] += int(count_R.sum())
        self.counters["sampled_tokens"] += int(count_R.sum()) - sum(len(row.forced) for row in rows)
        self.counters["decode_steps"] += 1
        places = [place[row.slot] for row in rows]
        return [SampledIds(*(array[at, : count_R[at]].tolist() for array in arrays)) for at in places]

    def _by_pages(self, rows: Sequence[ExtendRow] | Sequence[DecodeRow]) -> list[int]:
        """Indices of rows, those of about the same length together: a lot's attention goes on to its longest one."""
        return sorted(range(len(rows)), key=lambda index: self.held_pages(rows[index].slot))

    def _rows_and_fillers(self, slots: Sequence[int], count: int) -> np.ndarray:
        """`count` slots: a step has R rows whatever the load; the others take no token of some slot and leave it.

        Those of a lot are distinct.
        """
        used = set(slots)
        order = [*slots, *(slot for slot in range(self.slots) if slot not in used)]
        return np.resize(np.array(order, np.int32), count)

    @staticmethod
    def _padded_rows(count: int, lot: int) -> int:
        """Rows of a step on `count` slots: whole lots."""
        return -(-count // lot) * lot

    def _controls(self, slot_R: np.ndarray) -> Controls:
        return Controls(
            self._key_Bx2[slot_R],
            self._temperature_B[slot_R],
            self._top_p_B[slot_R],
            self._top_k_B[slot_R],
            self._stop_BxM[slot_R],
            self._stop_from_B[slot_R],
        )


@partial(jax.jit, static_argnums=1)
def _cast(params: Any, dtypes: tuple[Any, ...]) -> Any:
    leaves, structure = jax.tree.flatten(params)
    return jax.tree.unflatten(structure, [leaf.astype(dtype) for leaf, dtype in zip(leaves, dtypes, strict=True)])


@jax.jit
def _stack(hiddens: tuple[jax.Array, ...]) -> jax.Array:
    return jnp.stack(hiddens)


@jax.jit
def _pick(hidden_RxD: jax.Array, row: jax.Array) -> jax.Array:
    return jax.lax.dynamic_index_in_dim(hidden_RxD, row, keepdims=False)
