"""What rollouts ask of serving: sessions that grow, and keyed generation on them.

Two drivers implement `Driver` on one engine: `scheduler.RolloutScheduler` and `jetstream_driver.JetStreamDriver`. A
request's tokens and log-probabilities are a pure function of (the session's ids and the points at which it was
extended, key, sampling, weights): they depend on neither driver, slot, neighbours, arrival order nor eviction.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

if TYPE_CHECKING:
    from whale_jax.serving.engine import Engine

Finish = Literal["stop", "length"]
DriverName = Literal["scheduler", "jetstream"]


class ServingError(RuntimeError):
    """A request or session that cannot go on; the engine and its other sessions can."""


class ContextOverflow(ServingError):
    """The session's ids, the new ids and one sampled token do not fit the engine's `max_len`."""


class DriverStopped(ServingError):
    """The driver was stopped, or its thread died, while the caller was waiting."""


@dataclass(frozen=True)
class Sampling:
    """How one request samples.

    Attributes:
      temperature: 0 is greedy.
      top_p: share of the probability that is kept after top-k.
      top_k: most likely tokens kept; may not exceed the engine's `max_top_k`.
      min_tokens: before so many sampled ids, no stop id is sampled and no stop string ends the reply.
      stop_ids: ids that end the reply beside the engine's; the one that did stays in the ids.
      stop_strings: texts that end the reply once they are in it, wherever they begin and end among the tokens. All
        sampled ids stay. Such a request samples one id per look of the host, so that its state never runs ahead.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 20
    min_tokens: int = 0
    stop_ids: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature < float("inf"):
            raise ValueError(f"Sampling.temperature must be >= 0 and finite, got {self.temperature}")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"Sampling.top_p must be in (0, 1], got {self.top_p}")
        if self.top_k < 1:
            raise ValueError(f"Sampling.top_k must be >= 1, got {self.top_k}")
        if self.min_tokens < 0:
            raise ValueError(f"Sampling.min_tokens must be >= 0, got {self.min_tokens}")
        if "" in self.stop_strings:
            raise ValueError("Sampling.stop_strings must not be empty")


@dataclass(frozen=True)
class Generation:
    """The outcome of one request.

    Attributes:
      ids: sampled token ids; a stop id that ended the reply is kept as the last one.
      logprobs: log-probability of each id under the distribution it was drawn from (temperature, top-k and top-p
        applied and renormalised); 0 for greedy sampling.
      model_logprobs: log-probability of each id under the model itself (temperature 1, the whole vocabulary): what a
        trainer's log-softmax gives for the same ids.
      finish: "stop" if a stop id or a stop string ended the reply, "length" if `max_tokens` or the context did.
      weight_version: version of the weights that sampled the last id.
      weight_versions: the same for every id; they differ where the weights were replaced under way.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    model_logprobs: tuple[float, ...]
    finish: Finish
    weight_version: int
    weight_versions: tuple[int, ...] = ()


@dataclass(eq=False)
class Session:
    """One growing conversation. Callers hold it and read `ids`; everything else belongs to the driver.

    Attributes:
      ids: every id so far, extensions and sampled ids in order.
      consumed: how many of `ids` the kept state has seen. The last sampled id waits outside the state and goes first in
        the next extension.
      pieces: how the state came about: the sizes of the chunks that entered it, those of sampled ids being negative.
        A state that is lost is computed again by the same pieces, and so to the same bits.
      slot: the engine slot that holds the state, if it is on the device.
      version: version of the weights that computed the state.
      busy: a request is in flight.
      closed: no further request is accepted: closed by the caller, or a request on it failed or was cancelled.
    """

    ids: list[int] = field(default_factory=list)
    consumed: int = 0
    pieces: list[int] = field(default_factory=list)
    slot: int | None = None
    version: int = 0
    busy: bool = False
    closed: bool = False


class Driver(Protocol):
    """Sessions and generation for rollouts; one asyncio loop calls it, a thread of its own owns the engine."""

    def open(self) -> Session:
        """Starts an empty session; costs nothing until its first request."""
        ...

    async def generate(
        self,
        session: Session,
        new_ids: Sequence[int],
        *,
        max_tokens: int,
        sampling: Sampling,
        key: tuple[int, int],
    ) -> Generation:
        """Appends `new_ids` to the session, then samples at most `max_tokens` tokens.

        Cancelling the call closes the session.

        Raises:
          ContextOverflow: the ids do not fit; the session is unchanged.
          ValueError: an id outside the vocabulary or a setting outside its range; the session is unchanged.
          ServingError: the session is busy or closed, or this request failed (the session is then closed).
          DriverStopped: the driver was stopped or died.
        """
        ...

    def close(self, session: Session) -> None:
        """Frees the session and cancels what is in flight on it. Closing twice is harmless."""
        ...

    def set_weights(self, params: Any, version: int) -> None:
        """Replaces the weights while no request is in flight; state computed with other weights is dropped."""
        ...

    def suspend(self) -> None:
        """Gives up the device memory of all states while no request is in flight, so that training can have it.

        What may go on waits in host memory; the next request takes the device memory again.

        Raises:
          ServingError: a request is in flight.
        """
        ...

    def stats(self) -> dict[str, int]:
        """Counters since the start (`engine.Engine.counters`, `slots.SlotTable.counters`), and the driver's own.

        `requests_in_flight` were accepted and not answered, `requests_waiting` of them have no slot yet, and
        `compilations_after_warm_up` should stay 0.
        """
        ...

    def start(self) -> None:
        """Compiles the engine's steps if they are not, and starts the driver's threads."""
        ...

    def stop(self) -> None:
        """Releases every waiter with `DriverStopped` and ends the threads."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...


def make_driver(name: DriverName, *engines: Engine) -> Driver:
    """Builds a driver on one engine, or on several that share the sessions.

    Args:
      name: "scheduler", or "jetstream" for google-jetstream's own orchestrator.
      *engines: used by this driver alone from now on.

    Raises:
      ServingError: "jetstream" is asked for and google-jetstream is not installed.
      ValueError: another name, or no engine.
    """
    if len(engines) != 1:
        from whale_jax.serving.replicas import Replicas

        return Replicas([make_driver(name, engine) for engine in engines], [engine.device for engine in engines])
    engine = engines[0]
    if name == "scheduler":
        from whale_jax.serving.scheduler import RolloutScheduler

        return RolloutScheduler(engine)
    if name == "jetstream":
        if importlib.util.find_spec("jetstream") is None:
            raise ServingError(
                "--rollout_driver=jetstream needs the package google-jetstream; "
                "install it with `pip install --no-deps google-jetstream==0.2.2`, or use --rollout_driver=scheduler"
            )
        from whale_jax.serving.jetstream_driver import JetStreamDriver

        return JetStreamDriver(engine)
    raise ValueError(f"unknown rollout driver {name!r}; known: scheduler, jetstream")
