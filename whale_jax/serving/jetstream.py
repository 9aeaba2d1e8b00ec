"""google-jetstream 0.2.2 on the engine: its `Engine` interface, and a `Driver` on its orchestrator.

Every rough edge of the package is dealt with in this module:

- it imports seqio (and with it TensorFlow), tiktoken, shortuuid and grpc for parts that rollouts never use: where they
  are not installed, empty stand-ins are there during its import and gone after it;
- importing it sets the root logger to DEBUG and adds a handler, and its calls of `logging.info` would configure the
  root logger again: both are undone, and it logs to the logger "jetstream";
- `delete_pytree` calls `jax.tree_map`, which JAX no longer has: replaced;
- its thread class kills the whole process on any exception, and one thread kind is not a daemon: replaced;
- its return channels raise in the orchestrator's thread when the caller's event loop is gone: here they drop the
  result;
- its prompt buckets must contain `max_prefill_length`: the next bucket is given, true lengths are checked here;
- it drops stop ids, and whole steps that pass a length limit: here the tokenizer declares no stop ids and no limit is
  ever passed, the slot table ends requests, and "not valid" tells the orchestrator so;
- on stop it forgets requests without releasing who waits for them: they are released here.

The package also installs a top-level package `benchmarks`; nothing here or in it imports that.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import jax
import numpy as np

from whale_jax.serving.driver import Generation, Sampling, ServingError, Session
from whale_jax.serving.engine import Engine
from whale_jax.serving.inflight import InFlight, Outcome
from whale_jax.serving.slots import Request, SlotTable

_log = logging.getLogger("jetstream")


def _stand_ins() -> dict[str, types.ModuleType]:
    """Modules that the package imports and rollouts do not use, with the names it needs at import time."""

    def module(name: str, **names: Any) -> types.ModuleType:
        result = types.ModuleType(name)
        vars(result).update(names)
        return result

    def refuse(*args: object, **kwargs: object) -> None:
        raise NotImplementedError("this part of google-jetstream needs a package that is not installed")

    empty = type("StandIn", (), {})
    vocabularies = module("seqio.vocabularies", SentencePieceVocabulary=empty, Vocabulary=empty)
    load = module("tiktoken.load", load_tiktoken_bpe=refuse)
    aio = module("grpc.aio", ServicerContext=empty)
    return {
        "seqio": module("seqio", vocabularies=vocabularies),
        "seqio.vocabularies": vocabularies,
        "tiktoken": module("tiktoken", load=load),
        "tiktoken.load": load,
        "shortuuid": module("shortuuid", uuid=lambda: "local"),
        "grpc": module("grpc", aio=aio, StatusCode=empty),
        "grpc.aio": aio,
    }


@contextlib.contextmanager
def _contained_import() -> Iterator[None]:
    """Puts stand-ins for missing packages in place, and the root logger and `sys.modules` back afterwards."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    missing = {name for name in ("seqio", "tiktoken", "shortuuid", "grpc") if importlib.util.find_spec(name) is None}
    placed = {name: module for name, module in _stand_ins().items() if name.partition(".")[0] in missing}
    sys.modules.update(placed)
    try:
        yield
    finally:
        for name in placed:
            sys.modules.pop(name, None)
        root.setLevel(level)
        root.handlers[:] = handlers


with _contained_import():
    from jetstream.core import orchestrator
    from jetstream.core.utils import async_multifuture
    from jetstream.engine import engine_api, token_utils, tokenizer_api
    from jetstream.engine.tokenizer_pb2 import TokenizerParameters  # type: ignore[attr-defined]  # made at run time


class _Thread(threading.Thread):
    """An orchestrator thread whose exception fails its driver's requests, not the process."""

    def __init__(self, *, target: Callable[[], None], name: str, daemon: bool = True) -> None:
        super().__init__(target=target, name=f"jetstream-{name}", daemon=True)
        self._orchestrator: _Orchestrator = target.func.__self__  # type: ignore[attr-defined]  # a partial of a method

    def run(self) -> None:
        try:
            super().run()
        except Exception as error:
            self._orchestrator.thread_failed(self.name, error)


def _delete_pytree(tree: Any) -> None:
    """Frees the arrays of a prefill result."""
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, jax.Array):
            leaf.delete()


orchestrator.delete_pytree = _delete_pytree
orchestrator.JetThread = _Thread
for _module in (orchestrator, token_utils):
    vars(_module)["logging"] = _log


class _Channel(async_multifuture.AsyncMultifuture[list[Any]]):
    """A return channel that drops what comes after its event loop has ended."""

    def add_result(self, result: list[Any]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            super().add_result(result)

    def set_exception(self, exception: Exception) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            super().set_exception(exception)


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
        with self.lock:
            if (running := decode_state.running[slot]) is not None:
                # Callers other than the orchestrator may replace a sequence that has not ended.
                running.cancelled = True
                decode_state.drop_cancelled()
            if not request.cancelled:
                decode_state.attach(request, slot)
        self._live[slot] = _Live(request)
        return decode_state

    def generate(self, params: Any, decode_state: SlotTable) -> tuple[SlotTable, engine_api.ResultTokens]:
        """Computes what was inserted, then samples: k ids for every slot, or fewer and "not valid" where one ended."""
        steps = self._engine.decode_steps
        with self.lock:
            decode_state.drop_cancelled()
            while decode_state.waiting_to_extend():
                decode_state.extend()
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

    def get_tokenizer(self) -> TokenizerParameters:
        return TokenizerParameters()

    def build_tokenizer(self, metadata: TokenizerParameters) -> _Ids:
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


class _Orchestrator(orchestrator.Driver):
    """The package's driver; requests of rollouts pass through it as they are."""

    def __init__(self, engine: JetStreamEngine, failed: Callable[[str, Exception], None]) -> None:
        self._failed = failed
        super().__init__(
            prefill_engines=[engine],
            generate_engines=[engine],
            prefill_params=[engine.load_params()],
            generate_params=[engine.load_params()],
            interleaved_mode=True,
            jax_padding=False,
        )

    def _process_prefill_content(
        self, request: Any, tokenizer: tokenizer_api.Tokenizer, is_bos: bool, max_prefill_length: int
    ) -> tuple[Any, int]:
        if isinstance(request.prefill_content, Request):
            return request.prefill_content, 0
        return super()._process_prefill_content(request, tokenizer, is_bos, max_prefill_length)

    def thread_failed(self, name: str, error: Exception) -> None:
        """Releases who waits: without this thread nothing is answered any more."""
        if self.live:
            _log.error("thread %s failed", name, exc_info=error)
        self._failed(f"google-jetstream's thread {name} failed: {type(error).__name__}: {error}", error)


class JetStreamDriver:
    """`Driver` whose requests are scheduled by google-jetstream's orchestrator."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._adapter = JetStreamEngine(engine)
        self._in_flight = InFlight("JetStream driver")
        self._orchestrator: _Orchestrator | None = None

    def start(self) -> None:
        if self._orchestrator is None:
            self._engine.warm_up()
            self._in_flight.start()
            self._orchestrator = _Orchestrator(self._adapter, self._in_flight.fail)

    def stop(self) -> None:
        running, self._orchestrator = self._orchestrator, None
        if running is not None:
            self._in_flight.fail("the JetStream driver was stopped")
            running.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def open(self) -> Session:
        return Session()

    async def generate(
        self, session: Session, new_ids: Sequence[int], *, max_tokens: int, sampling: Sampling, key: tuple[int, int]
    ) -> Generation:
        extensions = [tuple(new_ids)]
        max_tokens = self._adapter.table.check(session, extensions, max_tokens, sampling)
        channel = _Channel()
        outcomes: list[Outcome] = []

        def deliver(outcome: Outcome) -> None:
            self._in_flight.discard(request)
            outcomes.append(outcome)
            if isinstance(outcome, ServingError):
                channel.set_exception(outcome)

        request = Request(session, extensions, max_tokens, sampling, key, deliver)
        self._in_flight.add(request, lambda request: self._submit(request, channel))
        ids: list[int] = []
        try:
            async for samples in channel:
                ids.extend(samples[0].token_ids)
        except asyncio.CancelledError:
            self._in_flight.cancel(request)
            raise
        outcome = outcomes[0]
        if isinstance(outcome, ServingError):
            raise outcome
        if tuple(ids) != outcome.ids:
            raise ServingError(f"google-jetstream returned {len(ids)} ids where the engine sampled {len(outcome.ids)}")
        return outcome

    def close(self, session: Session) -> None:
        self._in_flight.close(session)

    def set_weights(self, params: Any, version: int) -> None:
        def replace() -> None:
            with self._adapter.lock:
                self._adapter.table.set_weights(params, version)

        if len(self._in_flight):
            raise ServingError(f"weights can be replaced between rollouts only: {len(self._in_flight)} are in flight")
        self._in_flight.do(replace)

    def stats(self) -> dict[str, int]:
        counters = self._adapter.table.stats()
        return {**counters, "requests_in_flight": len(self._in_flight)}

    def _submit(self, request: Request, channel: _Channel) -> None:
        assert self._orchestrator is not None, "requests are accepted between start and stop only"
        self._orchestrator.place_request_on_prefill_queue(
            orchestrator.ActiveRequest(
                max_tokens=self._engine.max_len,  # never passed: the request's own bound ends it first
                history_path="session",  # keeps the package from putting a begin id in front
                prefill_content=request,  # type: ignore[arg-type]  # taken by _Orchestrator as it is
                return_channel=channel,
                is_client_side_tokenization=True,
            )
        )
