"""google-jetstream's `engine_api.Engine` on the project's engine.

What the interface leaves open is settled here:

- its prompt buckets must contain `max_prefill_length`: the next bucket is given, and true lengths are checked;
- it drops stop ids, and whole steps that pass a length limit: the tokenizer declares no stop ids and no limit is ever
  passed, the slot table ends requests, and "not valid" tells the orchestrator so;
- its steps come back whole or end the request, so a long prompt cannot be spread over several of them: all that was
  inserted is computed before the next ids are sampled. The rollout scheduler takes turns instead.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from whale_jax.serving.admission import attach
from whale_jax.serving.compilations import CompilationMeter
from whale_jax.serving.driver import Sampling, ServingError, Session
from whale_jax.serving.engine import Engine
from whale_jax.serving.jetstream_package import TokenizerParameters, engine_api, tokenizer_api
from whale_jax.serving.slots import Request, SlotTable


class _Ids(tokenizer_api.Tokenizer):
    """Ids in, ids out. It names no stop ids, because the orchestrator would drop them from the result."""

    def encode(self, s: str, **kwargs: Any) -> tuple[np.ndarray, int]:
        raise ServingError("text prompts need a tokenizer: send ids")

    def decode(self, token_ids: list[int], **kwargs: Any) -> str:
        raise ServingError("text results need a tokenizer: ask for ids")

    @property
    def pad_id(self) -> int:
        return 0

    @property
    def eos_id(self) -> int:
        return -1

    @property
    def bos_id(self) -> int:
        return 0

    @property
    def stop_tokens(self) -> set[int]:
        return set()


@dataclass(frozen=True)
class Prefix:
    """The package's result of a prefill: what `insert` is to put into a slot.

    Its tokens enter the model when `generate` next runs, in the fixed-shape extend steps of the rollout scheduler,
    together with the other new slots: so one thread owns the device, and both drivers sample the same tokens.
    """

    extensions: tuple[tuple[int, ...], ...]
    request: Request | None = None


@dataclass
class _Live:
    """A request in a slot of the orchestrator and how many of its ids were reported."""

    request: Request
    reported: int = 0


class JetStreamEngine(engine_api.Engine):
    """`engine_api.Engine` on the project's engine.

    `params` and `decode_state` are handles: weights and cache stay in the engine, which donates its cache from step to
    step and whose weights may be replaced while the orchestrator's threads hold the handle.
    """

    def __init__(self, engine: Engine) -> None:
        self.table = SlotTable(engine)
        self.lock = threading.Lock()  # the orchestrator's thread against set_weights
        self.compilations = CompilationMeter()
        self._engine = engine
        self._live: dict[int, _Live] = {}

    def load_params(self, *args: Any, **kwargs: Any) -> Engine:
        return self._engine

    def init_decode_state(self, *args: Any, **kwargs: Any) -> SlotTable:
        return self.table

    def prefill(
        self, *, params: Any, existing_prefix: Prefix | None = None, padded_tokens: Any, true_length: int
    ) -> Prefix:
        """Describes a prefix.

        Args:
          params: the handle of `load_params`.
          existing_prefix: extended by the new tokens; the point of extension is kept, since results may depend on it.
          padded_tokens: ids, padded on the right; or a `Request` of a rollout.
          true_length: number of ids before the padding.

        Raises:
          ContextOverflow: the true length does not fit the engine.
          ValueError: an id outside the vocabulary.
        """
        if isinstance(padded_tokens, Request):
            return Prefix(tuple(tuple(extension) for extension in padded_tokens.extensions), padded_tokens)
        before = existing_prefix.extensions if existing_prefix is not None else ()
        extensions = (*before, tuple(np.asarray(padded_tokens)[:true_length].tolist()))
        self.table.check(Session(), extensions, 1, Sampling(temperature=0.0))
        return Prefix(extensions)

    def insert(self, prefix: Prefix, decode_state: SlotTable, slot: int) -> SlotTable:
        """Puts a prefix into a free slot. One that belongs to no rollout samples greedily until the context is full."""
        request = prefix.request
        if request is None:
            session, greedy = Session(), Sampling(temperature=0.0)
            room = self.table.check(session, prefix.extensions, self._engine.max_len, greedy)
            request = Request(session, prefix.extensions, room, greedy, (0, 0), deliver=lambda outcome: None)
        with self.lock, self.compilations.watch():
            if (running := decode_state.running[slot]) is not None:
                # Callers other than the orchestrator may replace a sequence that has not ended.
                running.cancelled = True
                decode_state.drop_cancelled()
            if not request.cancelled:
                attach(decode_state, request, slot)
        self._live[slot] = _Live(request)
        return decode_state

    def generate(self, params: Any, decode_state: SlotTable) -> tuple[SlotTable, engine_api.ResultTokens]:
        """Computes what was inserted, then samples: k ids for every slot, or fewer and "not valid" where one ended."""
        steps = self._engine.decode_steps
        with self.lock, self.compilations.watch():
            decode_state.drop_cancelled()
            while decode_state.waiting_to_extend():
                decode_state.extend()
                decode_state.drop_cancelled()
            quota = [0] * self._engine.slots
            for slot, live in self._live.items():
                quota[slot] = steps - (len(live.request.ids) - live.reported)
            decode_state.decode(quota)
        data = np.zeros((self._engine.slots, 2 * steps + 1), np.int32)
        for slot, live in list(self._live.items()):
            ids = live.request.ids[live.reported :]
            live.reported += len(ids)
            data[slot, : len(ids)] = ids
            data[slot, steps : steps + len(ids)] = 1
            data[slot, -1] = live.reported
            if len(ids) < steps:
                del self._live[slot]
        result = engine_api.ResultTokens(
            data=data,
            tokens_idx=(0, steps),
            valid_idx=(steps, 2 * steps),
            length_idx=(2 * steps, 2 * steps + 1),
            samples_per_slot=1,
        )
        return decode_state, result

    def get_prefix_destination_sharding(self) -> None:
        return None

    def get_tokenizer(self) -> Any:
        return TokenizerParameters()

    def build_tokenizer(self, metadata: Any) -> _Ids:
        return _Ids()

    @property
    def max_concurrent_decodes(self) -> int:
        return self._engine.slots

    @property
    def samples_per_slot(self) -> int:
        return 1

    @property
    def max_prefill_length(self) -> int:
        """The package's smallest prompt bucket (a power of two from 16 to 32,768) that holds `max_len`."""
        return min(max(16, 1 << (self._engine.max_len - 1).bit_length()), 32_768)

    @property
    def mesh(self) -> jax.sharding.Mesh:
        return jax.sharding.Mesh(np.array(jax.devices()[:1]), ("replica",))

    @property
    def colocated_cpus(self) -> None:
        return None
