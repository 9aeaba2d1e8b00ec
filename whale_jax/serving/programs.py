"""What the engine compiles: its extend and decode steps, as functions of the model's cache.

A step has rows for R slots, distinct, those with something to do first. They are computed a *lot* of L rows at a time,
as many lots as that takes, one after the other in one program. Every lot runs the same code on its own rows' data, so
a row's result depends on nothing else. Where a lot is all slots, the step works on the cache in place.

Shape letters: R rows of a step, L rows of a lot, C extend chunk, K decode steps, D hidden size.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import jax
import jax.numpy as jnp
from jax import Array

from whale_jax.qwen3_5 import model
from whale_jax.qwen3_5.config import Qwen35Config
from whale_jax.serving.rows import rows_of, update_rows
from whale_jax.serving.sampling import Controls, is_stop, sample, uniform


class Settings(NamedTuple):
    """What the programs are compiled for."""

    config: Qwen35Config
    compute_dtype: Any
    max_top_k: int


class Compiled:
    """The programs of engines, as JAX compiles them: once for each device and each set of shapes."""

    def __init__(self, settings: Settings, extend_lot: int, decode_lot: int) -> None:
        """Compiles nothing yet."""
        self.extend = jax.jit(partial(extend_step, settings, lot=extend_lot), donate_argnums=1)
        self.decode = jax.jit(partial(decode_step, settings, lot=decode_lot), donate_argnums=1)
        self.first = jax.jit(partial(first_step, settings))


_compiled: WeakValueDictionary[tuple[Settings, int, int], Compiled] = WeakValueDictionary()
_lock = threading.Lock()


def compiled(settings: Settings, extend_lot: int, decode_lot: int) -> Compiled:
    """The programs for some settings; those that engines have already, if any engine of these settings is left."""
    key = (settings, extend_lot, decode_lot)
    with _lock:
        if (found := _compiled.get(key)) is None:
            found = _compiled[key] = Compiled(*key)
        return found


class DecodeInput(NamedTuple):
    """What the rows of a decode step start from; leading axis R."""

    last_R: Any
    """int32, each row's last sampled id, which its state has not seen."""
    budget_R: Any
    """int32, how many ids it may sample; 0 for a row that stays as it is."""
    forced_RxK: Any
    """int32 ids to take in place of sampled ones; -1 where one is sampled."""
    controls: Controls


class DecodeOutput(NamedTuple):
    """What the rows of a decode step sampled; those without a budget mean nothing."""

    count_R: Array
    ids_RxK: Array
    logprobs_RxK: Array
    model_logprobs_RxK: Array


def extend_step(
    settings: Settings,
    params: model.Params,
    cache: model.Cache,
    slot_R: Array,
    tokens_RxC: Array,
    count_R: Array,
    fresh_R: Array,
    *,
    lot: int,
) -> tuple[model.Cache, Array, Array]:
    """The cache, and at each row's last new position the hidden state [R, D] and how many positions it has now.

    Args:
        slot_R: distinct within every lot.
        count_R: new ids of each row; rows without any come last.
        fresh_R: rows that start empty.
        lot: L, divides R.
    """

    def one(number: Array, carry: tuple[model.Cache, Array]) -> tuple[model.Cache, Array]:
        cache, hidden_RxD = carry
        slot_L, tokens_LxC, count_L, fresh_L = _lot((slot_R, tokens_RxC, count_R, fresh_R), number, lot)
        rows = rows_of(cache, slot_L, fresh_L, by_layer=model.is_by_layer(params))
        hidden_LxCxD, rows = model.extend(
            settings.config, params, tokens_LxC, count_L, rows, compute_dtype=settings.compute_dtype
        )
        last_L = jnp.maximum(count_L - 1, 0)
        hidden_LxD = jnp.take_along_axis(hidden_LxCxD, last_L[:, None, None], axis=1)[:, 0]
        return update_rows(cache, slot_L, rows), _put_lot(hidden_RxD, hidden_LxD, number, lot)

    hidden_RxD = jnp.zeros((len(slot_R), settings.config.hidden_size), settings.compute_dtype)
    cache, hidden_RxD = _over_lots(one, count_R > 0, (cache, hidden_RxD), lot)
    return cache, hidden_RxD, cache.length[slot_R]


def decode_step(
    settings: Settings, params: model.Params, cache: model.Cache, slot_R: Array, given: DecodeInput, *, lot: int
) -> tuple[model.Cache, DecodeOutput]:
    """Up to K ids for every row, and the cache. A lot ends early when none of its rows goes on.

    Args:
        slot_R: distinct within every lot; all slots in order where a lot is all slots.
        given: rows without a budget come last, unless a lot is all slots.
        lot: L, divides R.
    """
    steps, slots = given.forced_RxK.shape[1], cache.length.shape[0]
    by_layer = model.is_by_layer(params)
    if lot == slots:
        rows, out = _decode_rows(settings, params, cache.by_layer() if by_layer else cache, given)
        return rows.stacked() if by_layer else rows, out

    def one(number: Array, carry: tuple[model.Cache, DecodeOutput]) -> tuple[model.Cache, DecodeOutput]:
        cache, out = carry
        slot_L, given_L = _lot((slot_R, given), number, lot)
        rows = rows_of(cache, slot_L, jnp.zeros_like(slot_L, dtype=bool), by_layer=by_layer)
        rows, out_L = _decode_rows(settings, params, rows, given_L)
        put = [_put_lot(whole, part, number, lot) for whole, part in zip(out, out_L, strict=True)]
        return update_rows(cache, slot_L, rows), DecodeOutput(*put)

    return _over_lots(one, given.budget_R > 0, (cache, _no_output(len(slot_R), steps)), lot)


def first_step(
    settings: Settings, params: model.Params, hidden_RxD: Array, length_R: Array, controls: Controls
) -> tuple[Array, ...]:
    """The token that follows each row's last position, and its log-probabilities: see `sampling.Sampled`."""
    logits_RxV = model.unembed(settings.config, params, hidden_RxD)
    return tuple(sample(logits_RxV, length_R, controls, max_top_k=settings.max_top_k))


def _decode_rows(
    settings: Settings, params: model.Params, rows: model.Cache, given: DecodeInput
) -> tuple[model.Cache, DecodeOutput]:
    count, steps = given.forced_RxK.shape
    # The random numbers of all steps at once: an active row's next id is at its length before the step, plus 1.
    position_KxR = rows.length + 1 + jnp.arange(steps)[:, None]
    uniform_KxR = jax.vmap(partial(uniform, given.controls.key_Bx2))(position_KxR)

    def any_active(carry: tuple[Any, ...]) -> Array:
        step, _, _, active_R, *_ = carry
        return (step < steps) & jnp.any(active_R)

    def one(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        step, rows, token_R, active_R, out = carry
        hidden_RxD, rows = model.decode(
            settings.config, params, token_R, active_R, rows, compute_dtype=settings.compute_dtype
        )
        logits_RxV = model.unembed(settings.config, params, hidden_RxD)
        uniform_R = jax.lax.dynamic_index_in_dim(uniform_KxR, step, keepdims=False)
        new = sample(logits_RxV, rows.length, given.controls, max_top_k=settings.max_top_k, uniform_B=uniform_R)
        forced_R = jax.lax.dynamic_index_in_dim(given.forced_RxK, step, axis=1, keepdims=False)
        token_R = jnp.where(forced_R >= 0, forced_R, new.token_B)
        count_R = out.count_R + active_R
        out = DecodeOutput(
            count_R,
            out.ids_RxK.at[:, step].set(token_R),
            out.logprobs_RxK.at[:, step].set(new.logprob_B),
            out.model_logprobs_RxK.at[:, step].set(new.model_logprob_B),
        )
        stopped_R = is_stop(token_R, given.controls) & (forced_R < 0) | (count_R >= given.budget_R)
        return step + 1, rows, token_R, active_R & ~stopped_R, out

    carry = (jnp.int32(0), rows, given.last_R, given.budget_R > 0, _no_output(count, steps))
    _, rows, _, _, out = jax.lax.while_loop(any_active, one, carry)
    return rows, out


def _no_output(rows: int, steps: int) -> DecodeOutput:
    grid = (rows, steps)
    return DecodeOutput(jnp.zeros(rows, jnp.int32), jnp.zeros(grid, jnp.int32), jnp.zeros(grid), jnp.zeros(grid))


def _over_lots(one: Callable[[Array, Any], Any], busy_R: Array, carry: Any, lot: int) -> Any:
    """`one` for the number of every lot that holds a busy row; the busy rows come first."""
    if lot == len(busy_R):
        return one(jnp.int32(0), carry)
    return jax.lax.fori_loop(0, -(-jnp.sum(busy_R) // lot), one, carry)


def _lot(arrays: Any, number: Array, lot: int) -> Any:
    return jax.tree.map(lambda array: jax.lax.dynamic_slice_in_dim(array, number * lot, lot), arrays)


def _put_lot(whole: Array, part: Array, number: Array, lot: int) -> Array:
    return jax.lax.dynamic_update_slice_in_dim(whole, part.astype(whole.dtype), number * lot, 0)
