"""A soak of serving: thousands of short requests, with cancellations, failures, swaps of weights and restarts.

A tiny model, so that what is worked hard is everything around it. Each round starts many conversations at once; some
are cancelled or closed at a random moment, some fail (an id outside the vocabulary, too many ids, numbers that are not
finite), and between rounds the weights are replaced, or the driver is stopped in the middle of a round and started
again. Every reply that comes is compared with the same request's earlier replies under the same weights: the same bits,
or an error. At the end nothing may be left: no request, no busy slot, no session that is still referenced, no more
threads, device arrays or memory than after the first rounds. A round that does not end within its bound is a hang.
"""

import argparse
import asyncio
import ctypes
import faulthandler
import gc
import random
import threading
import time
import weakref
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from whale_jax.bench.bench import Bench, Result
from whale_jax.qwen3_5 import model
from whale_jax.qwen3_5.config import Qwen35Config
from whale_jax.serving.driver import Driver, DriverName, Generation, Sampling, ServingError, Session, make_driver
from whale_jax.serving.engine import Engine

VOCAB, MAX_LEN, STOP_ID, POISON = 97, 64, 5, 96
ROUND = 200
"""Requests started at once."""
ROUND_SECONDS = 300.0
SETTLE_SECONDS = 30.0
SHAPE = Qwen35Config(
    vocab_size=VOCAB,
    hidden_size=16,
    intermediate_size=32,
    num_layers=4,
    num_heads=2,
    num_kv_heads=1,
    head_dim=16,
    linear_key_heads=2,
    linear_value_heads=2,
    linear_key_dim=8,
    linear_value_dim=8,
    rope_theta=10_000.0,
    tie_embeddings=False,  # the poisoned row must not reach the logits of others
)


class SoakError(AssertionError):
    """Something hung, leaked or differed."""


@dataclass
class Soak:
    """The state of one soak.

    Attributes:
        driver: of one engine.
        weights: by version; a version's params hold a row that is not finite, for the id `POISON`.
        ends: how requests ended, counted.
    """

    driver: Driver
    weights: list[Any]
    random: random.Random
    version: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    sessions: "weakref.WeakSet[Session]" = field(default_factory=weakref.WeakSet)
    _replies: dict[tuple[int, int], Generation] = field(default_factory=dict)

    async def round(self, count: int, *, restart: bool) -> None:
        """Starts `count` conversations at once and waits for the end of all."""
        tasks = [asyncio.create_task(self._one(self.random.randrange(64))) for _ in range(count)]
        stopping = asyncio.create_task(self._restart()) if restart else None
        work = [*tasks, stopping] if stopping is not None else tasks
        _, waiting = await asyncio.wait(work, timeout=ROUND_SECONDS)
        if waiting:
            faulthandler.dump_traceback(all_threads=True)
            raise SoakError(f"{len(waiting)} of {len(work)} requests and restarts took over {ROUND_SECONDS} s")
        await asyncio.gather(*work)
        if left := self.driver.stats()["requests_in_flight"]:
            raise SoakError(f"{left} requests are in flight after their callers went")

    def swap(self) -> None:
        """Replaces the weights by the next version's."""
        self.version = (self.version + 1) % len(self.weights)
        self.driver.set_weights(self.weights[self.version], self.version)
        self.ends["swap"] += 1

    async def _restart(self) -> None:
        await self._moments()
        await asyncio.to_thread(self.driver.stop)
        await asyncio.to_thread(self.driver.start)
        self.ends["restart"] += 1

    async def _moments(self) -> None:
        for _ in range(self.random.randrange(12)):
            await asyncio.sleep(self.random.choice((0, 0, 0.001)))

    async def _one(self, seed: int) -> None:
        """One conversation of one or two turns, which may meet a misfortune."""
        fate = self.random.choices(("fine", "cancel", "close", "poison", "refused", "long"), (60, 15, 10, 5, 5, 5))[0]
        session = self.driver.open()
        self.sessions.add(session)
        rng = random.Random(seed)
        turns = [[rng.randrange(6, POISON) for _ in range(rng.randrange(1, 20))] for _ in range(rng.randrange(1, 3))]
        if fate == "poison":
            turns[0].append(POISON)
        elif fate == "refused":
            turns[0].append(VOCAB)
        elif fate == "long":
            turns[0] *= MAX_LEN
        for number, ids in enumerate(turns):
            sampling = Sampling(temperature=0.0) if seed % 3 == 0 else Sampling(temperature=1.0, top_p=0.9)
            call = asyncio.create_task(
                self.driver.generate(session, ids, max_tokens=1 + seed % 7, sampling=sampling, key=(seed, number))
            )
            if fate in ("cancel", "close"):
                await self._moments()
                call.cancel() if fate == "cancel" else self.driver.close(session)
            (outcome,) = await asyncio.gather(call, return_exceptions=True)
            if not isinstance(outcome, Generation):
                self._ended(outcome)
                break
            self.ends["answered"] += 1
            self._compare((seed, number), outcome)
        self.driver.close(session)

    def _ended(self, error: BaseException) -> None:
        if not isinstance(error, ServingError | ValueError | asyncio.CancelledError):
            raise error
        self.ends[type(error).__name__] += 1

    def _compare(self, request: tuple[int, int], reply: Generation) -> None:
        if reply.weight_version != self.version:
            raise SoakError(f"a reply of weights {reply.weight_version} while {self.version} are served")
        if self._replies.setdefault((self.version, hash(request)), reply) != reply:
            raise SoakError(f"request {request} has two replies under weights {self.version}")


@dataclass(frozen=True)
class Footprint:
    """What a process holds."""

    threads: int
    device_bytes: int
    resident_bytes: int

    @classmethod
    def now(cls) -> "Footprint":
        """After a garbage collection, and after the C library has given back what it only keeps in reserve."""
        gc.collect()
        if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):  # glibc's
            trim(0)
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        arrays = sum(array.nbytes for array in jax.live_arrays())
        return cls(threading.active_count(), arrays, pages * 4096)


def make_engine(seed: int = 0) -> tuple[Engine, list[Any]]:
    """A tiny engine, and the weights that it is to serve in turn; none are finite for the id `POISON`."""
    base = model.init_params(SHAPE, jax.random.key(seed), jnp.float32)
    base = jax.tree.map(lambda leaf: leaf * 8 if leaf.shape[-1] > 16 else leaf, base)
    versions = [{**base, "embed": (base["embed"] * scale).at[POISON].set(jnp.nan)} for scale in (1.0, 1.5, 0.7)]
    engine = Engine(
        SHAPE, versions[0], slots=8, max_len=MAX_LEN, stop_ids=(STOP_ID,), extend_rows=4, extend_chunk=8, decode_steps=3
    )
    return engine, versions


def soak(
    requests: int, engine: Engine, versions: list[Any], *, driver: DriverName, seed: int = 0
) -> tuple[Soak, float, Footprint, Footprint]:
    """Runs a soak of at least `requests` conversations on what `make_engine` gives.

    Returns:
        The soak, its seconds, and the footprints after its first tenth and at its end.

    Raises:
        SoakError: something hung, leaked or differed.
    """
    rounds = -(-requests // ROUND)
    early: Footprint | None = None
    threads = threading.active_count()
    with make_driver(driver, engine) as started:
        started.set_weights(versions[0], 0)
        state, start = Soak(started, versions, random.Random(seed)), time.perf_counter()
        for number in range(rounds):
            asyncio.run(state.round(min(ROUND, requests), restart=number % 7 == 3))
            if number % 3 == 2:
                state.swap()
            if number == rounds // 10:
                early = Footprint.now()
        seconds = time.perf_counter() - start
        if compiled := started.stats()["compilations_after_warm_up"]:
            raise SoakError(f"{compiled} programs were compiled after warm-up")
        final = Footprint.now()
        assert early is not None
        _compare_footprints(early, final)
        if state.ends["answered"] < requests // 3:
            raise SoakError(f"only {state.ends['answered']} replies came: {dict(state.ends)}")
        # What may still refer to a session until others come: a slot, and a thread that waits, by its last request.
        holders = engine.slots + final.threads - threads
        if (left := _sessions_left(state.sessions, holders)) > holders:
            raise SoakError(f"{left} sessions are still referenced, of {engine.slots} slots")
    if threading.active_count() >= final.threads:
        raise SoakError(f"{threading.active_count()} threads after the driver was stopped, {final.threads} before")
    return state, seconds, early, final


def _sessions_left(sessions: "weakref.WeakSet[Session]", holders: int) -> int:
    """How many sessions live, once the driver has met the last cancellations, whose callers do not wait for it."""
    bound = time.monotonic() + SETTLE_SECONDS
    while len(sessions) > holders and time.monotonic() < bound:
        time.sleep(0.05)
        gc.collect()
    return len(sessions)


def _compare_footprints(early: Footprint, final: Footprint) -> None:
    if final.threads > early.threads:
        raise SoakError(f"{final.threads} threads at the end, {early.threads} after the first rounds")
    # A kept beginning more or less is no leak; what grows with requests is.
    if final.device_bytes > early.device_bytes + 2**22:
        raise SoakError(f"device arrays grew from {early.device_bytes} to {final.device_bytes} bytes")
    if final.resident_bytes > early.resident_bytes + 2**25:
        raise SoakError(f"the process grew from {early.resident_bytes} to {final.resident_bytes} bytes")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--requests", type=int, default=20_000, help="conversations")
    parser.add_argument("--driver", choices=("scheduler", "jetstream", "both"), default="both", help="under test")
    parser.add_argument("--seed", type=int, default=0, help="of everything random")


def _run(args: argparse.Namespace) -> Result:
    if args.requests < 1:
        raise ValueError("--requests must be >= 1")
    rows: list[dict[str, str | float | None]] = []
    names: tuple[DriverName, ...] = ("scheduler", "jetstream") if args.driver == "both" else (args.driver,)
    engine, versions = make_engine(args.seed)
    for name in names:
        state, seconds, early, final = soak(args.requests, engine, versions, driver=name, seed=args.seed)
        row: dict[str, str | float | None] = {"driver": name, "seconds": seconds}
        row |= {end: float(count) for end, count in sorted(state.ends.items())}
        row |= {
            "threads_early": float(early.threads),
            "threads": float(final.threads),
            "device_MB_early": early.device_bytes / 1e6,
            "device_MB": final.device_bytes / 1e6,
            "resident_MB_early": early.resident_bytes / 1e6,
            "resident_MB": final.resident_bytes / 1e6,
        }
        rows.append(row)
    return Result({"requests": args.requests, "seed": args.seed}, rows, ("nothing hung, leaked or differed",))


BENCH = Bench(
    "thousands of requests with cancellations, failures and swaps: nothing hangs or leaks", _add_arguments, _run
)
