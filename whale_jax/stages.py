"""Where the time goes: seconds per stage of a run, and the memory in use."""

import contextlib
import resource
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from enum import StrEnum

import jax

from harness_search.proposers.base import EmptySlot, Proposal, Proposer, ProposerUsage
from harness_search.workspace import Workspace
from whale_jax.domains.domain import Domain, DomainStandIn, VerifierProtocol
from whale_jax.domains.task import Task
from whale_jax.domains.verdict import Verdict


class Stage(StrEnum):
    """What a run does with its time."""

    ROLLOUT = "rollout"
    """Episodes, from the first request to the last verdict; verification among them."""
    VERIFY = "verify"
    """Verifiers, which run in threads beside the episodes."""
    PACK = "pack"
    TRAIN = "train"
    SWAP = "swap"
    """New weights for the engine."""
    CHECKPOINT = "checkpoint"
    """What training waits for: the copy to the host, and a save that is not done when the next thing rests on it."""
    PROPOSER = "proposer"
    """Waiting for the proposer's next candidate, while earlier ones may be evaluated."""


class StageClock:
    """Seconds in which a stage went on, however many times at once. For any number of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds = dict.fromkeys(Stage, 0.0)
        self._running = dict.fromkeys(Stage, 0)
        self._since = dict.fromkeys(Stage, 0.0)
        self._marks: dict[str, dict[Stage, float]] = {}

    def add(self, stage: Stage, seconds: float) -> None:
        """Counts seconds that somebody else measured."""
        with self._lock:
            self._seconds[stage] += seconds

    @contextlib.contextmanager
    def of(self, stage: Stage) -> Iterator[None]:
        """Counts the time that the context lasts."""
        with self._lock:
            if self._running[stage] == 0:
                self._since[stage] = time.monotonic()
            self._running[stage] += 1
        try:
            yield
        finally:
            with self._lock:
                self._running[stage] -= 1
                if self._running[stage] == 0:
                    self._seconds[stage] += time.monotonic() - self._since[stage]

    def since(self, mark: str) -> dict[str, float]:
        """Seconds of every stage since the last call with this mark, as `<stage>_seconds`; what is still going on
        counts when it is over."""
        with self._lock:
            before = self._marks.get(mark, dict.fromkeys(Stage, 0.0))
            self._marks[mark] = dict(self._seconds)
            return {f"{stage}_seconds": self._seconds[stage] - before[stage] for stage in Stage}


class ClockedProposer:
    """A proposer that is waited for on a clock."""

    def __init__(self, proposer: Proposer, clock: StageClock) -> None:
        self._proposer = proposer
        self._clock = clock

    @property
    def name(self) -> str:
        return self._proposer.name

    async def propose(
        self, workspace: Workspace, *, iteration: int, slots: int, seed: int
    ) -> AsyncGenerator[Proposal | EmptySlot, None]:
        async with contextlib.aclosing(
            self._proposer.propose(workspace, iteration=iteration, slots=slots, seed=seed)
        ) as session:
            while True:
                try:
                    with self._clock.of(Stage.PROPOSER):
                        item = await anext(session)
                except StopAsyncIteration:
                    return
                yield item

    def usage(self, iteration: int) -> ProposerUsage:
        return self._proposer.usage(iteration)


class ClockedDomain(DomainStandIn):
    """A domain whose verifier is on a clock.

    Environments that score their own episode (chess) are not: what they know, they know when it is played.
    """

    def __init__(self, domain: Domain, clock: StageClock) -> None:
        super().__init__(domain)
        self._clock = clock

    def verify(self, task: Task, answer_text: str | None, *, protocol: VerifierProtocol = "honest") -> Verdict:
        with self._clock.of(Stage.VERIFY):
            return self._domain.verify(task, answer_text, protocol=protocol)


def memory() -> dict[str, int]:
    """Peak bytes so far: of this process on the host, and of the fullest device where devices say so."""
    peaks = [stats["peak_bytes_in_use"] for device in jax.local_devices() if (stats := device.memory_stats())]
    found = {"host_peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}
    return found | ({"device_peak_bytes": max(peaks)} if peaks else {})
