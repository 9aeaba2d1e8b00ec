"""A workload on the project's engine: how fast, and where the time goes."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import jax

from whale_jax.bench.workload import Turn, Workload
from whale_jax.qwen3_5.config import Qwen35Config
from whale_jax.serving import engine as engine_module
from whale_jax.serving import rows
from whale_jax.serving.driver import Driver, DriverName, Sampling, make_driver
from whale_jax.serving.engine import Engine
from whale_jax.serving.replicas import replica_devices

SAMPLING = Sampling(temperature=1.0, top_p=1.0, top_k=20)


@dataclass(frozen=True)
class Speed:
    """One run of a workload.

    Attributes:
        seconds: by the clock.
        processor_seconds: of this process, all threads: other work on the machine does not show in them.
        sampled: tokens.
        stats: what the driver counted in this run.
    """

    seconds: float
    processor_seconds: float
    sampled: int
    stats: dict[str, int]


def make_engines(config: Qwen35Config, params: Any, workload: Workload, *, slots: int, replicas: int) -> list[Engine]:
    """Engines as the main job makes them, with room for the workload's longest conversation.

    No id ends a reply: the lengths of a workload are given.
    """
    max_len = -(-workload.longest // 64) * 64
    return [
        Engine(config, params, slots=slots, max_len=max_len, stop_ids=(-1,), device=device)
        for device in replica_devices(replicas)
    ]


def run(
    engines: list[Engine],
    workload: Workload,
    driver_name: DriverName = "scheduler",
    at_start: Callable[[], None] = lambda: None,
) -> Speed:
    """Runs a workload once, after one conversation on each engine that is not timed; calls `at_start` between them."""
    with make_driver(driver_name, *engines) as driver:
        first, *_ = workload.conversations
        other = tuple(Turn(turn.new_ids[::-1], turn.sampled) for turn in first)  # shares no beginning with the others
        asyncio.run(_converse_all(driver, (other,) * len(engines), len(engines)))
        at_start()
        before, start, processor = driver.stats(), time.perf_counter(), time.process_time()
        concurrency = sum(engine.slots for engine in engines)
        asyncio.run(_converse_all(driver, workload.conversations, concurrency))
        seconds, processor = time.perf_counter() - start, time.process_time() - processor
        stats = {name: count - before.get(name, 0) for name, count in driver.stats().items()}
    return Speed(seconds, processor, stats["sampled_tokens"], stats)


async def _converse_all(driver: Driver, conversations: tuple[tuple[Turn, ...], ...], concurrency: int) -> None:
    """All conversations, at most `concurrency` at a time, in their order."""
    room = asyncio.Semaphore(concurrency)

    async def one(index: int, turns: tuple[Turn, ...]) -> None:
        async with room:
            session = driver.open()
            for number, turn in enumerate(turns):
                key = (index, number)
                await driver.generate(session, turn.new_ids, max_tokens=turn.sampled, sampling=SAMPLING, key=key)
            driver.close(session)

    await asyncio.gather(*(one(index, turns) for index, turns in enumerate(conversations)))


def computed_prompt_tokens(speed: Speed, workload: Workload) -> int:
    """Prompt tokens that entered the model, of all that did.

    Of a reply of n ids, n - 1 are computed while it is sampled; the last one with the next turn, if there is one.
    """
    replies = sum(len(turns) for turns in workload.conversations)
    inside = workload.sampled_tokens - replies
    between = replies - len(workload.conversations)
    return speed.stats["computed_tokens"] - inside - between


@dataclass
class Profile:
    """Where the time of one engine's run went.

    Attributes:
        seconds: the whole run, by the clock.
        programs: seconds in each compiled program, from its call until its results are there.
        occupancy: the share of slots that a decode step samples for, on average.
        decode_rows, decode_calls: what `occupancy` is made of.
    """

    slots: int
    seconds: float = 0.0
    programs: dict[str, float] = field(default_factory=dict)
    decode_rows: int = 0
    decode_calls: int = 0

    def clear(self) -> None:
        """Forgets what came before the part that counts."""
        self.programs.clear()
        self.decode_rows = self.decode_calls = 0

    @property
    def host_overhead(self) -> float:
        """The share of the run in which no program ran: scheduling, copies to the host, the callers' event loop."""
        return 1 - sum(self.programs.values()) / self.seconds

    @property
    def occupancy(self) -> float:
        """The share of slots that a decode step samples for, on average."""
        return self.decode_rows / (self.decode_calls * self.slots)


def profile(engine: Engine, workload: Workload) -> Profile:
    """Runs a workload on one engine whose compiled programs are timed.

    Each program is waited for, so nothing on the host overlaps with it: the overhead is, if anything, too large.
    """
    result = Profile(engine.slots)
    with _timed(engine, result):
        result.seconds = run([engine], workload, at_start=result.clear).seconds
    if not result.programs:
        raise RuntimeError("the engine holds no compiled program that can be timed")
    return result


@contextmanager
def _timed(engine: Engine, result: Profile) -> Iterator[None]:
    """Puts a stopwatch around every jitted function that the engine calls."""
    originals = [
        (place, name, value)
        for place in (engine._programs, engine_module, rows)
        for name, value in vars(place).items()
        if isinstance(value, jax.stages.Wrapped)
    ]
    decode = engine.decode

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            out = jax.block_until_ready(function(*args, **kwargs))
            result.programs[name] = result.programs.get(name, 0.0) + time.perf_counter() - start
            return out

        return call

    def counted(asked: Any) -> Any:
        result.decode_calls += 1
        result.decode_rows += len(asked)
        return decode(asked)

    for place, name, function in originals:
        setattr(place, name, timed(name.strip("_"), function))
    engine.decode = counted  # type: ignore[method-assign]
    try:
        yield
    finally:
        for place, name, function in originals:
            setattr(place, name, function)
        del engine.decode
