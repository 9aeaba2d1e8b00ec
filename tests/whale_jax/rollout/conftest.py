"""Small stand-ins for the parts around an episode: a byte-level codec, a driver that samples from a script or from its
key, a domain with one primitive, and a worker that runs harness functions in this process."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from harness_search.contract import Budgets, EpisodeEnded
from harness_search.sandbox.worker import EpisodeOutcome
from whale_jax.domains.task import Split, Task
from whale_jax.domains.verdict import Verdict
from whale_jax.qwen3_5.chat import Piece, SpecialIds
from whale_jax.rollout.episode import Episode
from whale_jax.rollout.keys import sampling_key
from whale_jax.rollout.runner import RolloutLimits, RolloutRunner
from whale_jax.serving.driver import Generation, Sampling, Session

SPECIAL = SpecialIds(*range(9))
CONTROL = dict(
    enumerate(
        ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<tool_response>",
         "</tool_response>", "<think>", "</think>"]
    )
)  # fmt: skip
BYTE = 16


class FakeCodec:
    """One id per byte, nine control ids below them, Qwen3.5's turn format."""

    special = SPECIAL
    stop_ids = (SPECIAL.im_end, SPECIAL.endoftext)

    def encode_text(self, text: str) -> list[int]:
        return [BYTE + byte for byte in text.encode("utf-8", "replace")]

    def trusted(self, text: str) -> list[int]:
        """Text whose control tokens are meant."""
        ids: list[int] = []
        while text:
            token = next((token for token, name in CONTROL.items() if text.startswith(name)), None)
            ids += self.encode_text(text[0]) if token is None else [token]
            text = text[len(CONTROL[token]) if token is not None else 1 :]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        data = b"".join(CONTROL[token].encode() if token < BYTE else bytes([token - BYTE]) for token in ids)
        return data.decode("utf-8", "replace")

    def start(self, system: str | None, tools: Sequence[Any], thinking: bool) -> list[Piece]:
        if system is None:
            return []
        ids = self.trusted("<|im_start|>system\n"), self.encode_text(system), self.trusted("<|im_end|>\n")
        return [Piece(tuple(ids[0]), "prompt"), Piece(tuple(ids[1]), "harness"), Piece(tuple(ids[2]), "prompt")]

    def user(self, text: str) -> list[int]:
        return [*self.trusted("<|im_start|>user\n"), *self.encode_text(text), *self.trusted("<|im_end|>\n")]

    def tool(self, text: str) -> list[int]:
        opening, closing = "<|im_start|>user\n<tool_response>\n", "\n</tool_response><|im_end|>\n"
        return [*self.trusted(opening), *self.encode_text(text), *self.trusted(closing)]

    def close_turn(self, ids: Sequence[int]) -> list[int]:
        newline = BYTE + 10
        if not ids or list(ids[-2:]) == [SPECIAL.im_end, newline]:
            return []
        return [newline] if ids[-1] == SPECIAL.im_end else [SPECIAL.im_end, newline]

    def generation_prompt(self, thinking: bool) -> list[int]:
        return self.trusted("<|im_start|>assistant\n<think>\n" + ("" if thinking else "\n</think>\n\n"))


@dataclass
class FakeDriver:
    """Samples `replies` in order (text with control tokens; without `<|im_end|>` at its end the reply is cut), or,
    without any, ids that depend on key, position and prefix alone. `before` runs inside every generate call."""

    codec: FakeCodec
    replies: list[str] = field(default_factory=list)
    before: Callable[[Session], Awaitable[None]] | None = None
    sessions: list[Session] = field(default_factory=list)
    in_flight: int = 0
    version: int = 3

    def open(self) -> Session:
        self.sessions.append(Session())
        return self.sessions[-1]

    async def generate(
        self, session: Session, new_ids: Sequence[int], *, max_tokens: int, sampling: Sampling, key: tuple[int, int]
    ) -> Generation:
        self.in_flight += 1
        try:
            if self.before is not None:
                await self.before(session)
        finally:
            self.in_flight -= 1
        session.ids += new_ids
        source = self._scripted if self.replies else self._keyed
        ids = source(session, key, max_tokens)[:max_tokens]
        session.ids += ids
        finish = "stop" if ids[-1] in FakeCodec.stop_ids else "length"
        return Generation(tuple(ids), tuple(-0.5 for _ in ids), tuple(-0.25 for _ in ids), finish, self.version)

    def close(self, session: Session) -> None:
        session.closed = True

    def _scripted(self, session: Session, key: tuple[int, int], max_tokens: int) -> list[int]:
        return self.codec.trusted(self.replies.pop(0))

    def _keyed(self, session: Session, key: tuple[int, int], max_tokens: int) -> list[int]:
        ids: list[int] = []
        for _ in range(max_tokens):
            seen = repr((key, len(session.ids) + len(ids), sum(session.ids), ids)).encode()
            byte = hashlib.blake2b(seen, digest_size=2).digest()
            ids.append(byte[1] % 9 if byte[0] < 40 else BYTE + 32 + byte[1] % 64)
            if ids[-1] in FakeCodec.stop_ids:
                break
        return ids


class FakeEnv:
    names = frozenset({"search"})

    async def call(self, name: str, args: Sequence[Any], kwargs: Any) -> str:
        await asyncio.sleep(0)
        return f"found {args!r}"


@dataclass
class FakeDomain:
    """Right is the answer `yes`; `verdicts`, if any, come first."""

    budgets: Budgets = field(
        default_factory=lambda: Budgets(assistant_tokens=200, turns=4, tool_calls=3, wall_seconds=30.0)
    )
    verdicts: list[Verdict] = field(default_factory=list)
    asked: list[str | None] = field(default_factory=list)

    def env(self, task: Task) -> FakeEnv:
        return FakeEnv()

    def verify(self, task: Task, answer_text: str | None, *, protocol: str = "honest") -> Verdict:
        self.asked.append(answer_text)
        if self.verdicts:
            return self.verdicts.pop(0)
        if answer_text is None or "<answer>" not in answer_text:
            return Verdict(0, None, "no answer")
        answer = answer_text.rpartition("<answer>")[2].partition("</answer>")[0]
        return Verdict(1 if answer == "yes" else 0, answer, "read")


Harness = Callable[..., Awaitable[int | None]]


@dataclass
class FakeWorker:
    """Runs a harness function `(host, task, seed)`, which returns a reply id. An EpisodeEnded ends the episode; any
    other exception is raised, as a fault of the host is."""

    harness: Harness
    episodes: list[str] = field(default_factory=list)
    closed: bool = False

    async def run_episode(
        self, *, episode_id: str, task: Any, budgets: Budgets, seed: int, host: Any
    ) -> EpisodeOutcome:
        self.episodes.append(episode_id)
        try:
            return EpisodeOutcome(None, await self.harness(host, task, seed), None, 0.0)
        except EpisodeEnded as ended:
            return EpisodeOutcome(ended.reason, None, ended.detail, 0.0)

    async def close(self) -> None:
        self.closed = True


def make_task(number: int = 0) -> Task:
    return Task(f"t{number}", "fake", {"question": f"q{number}"}, {"answer": "yes"}, Split.WEIGHT)


def make_episode(driver: FakeDriver, *, window: int = 2000, thinking: bool = True, **budgets: Any) -> Episode:
    allowed = {"assistant_tokens": 400, "turns": 8, "tool_calls": 8, "wall_seconds": 30.0, **budgets}
    return Episode(
        driver,  # type: ignore[arg-type]
        driver.codec,
        FakeEnv(),
        budgets=Budgets(**allowed),
        sampling=Sampling(),
        thinking=thinking,
        window=window,
        key=partial(sampling_key, 0, "test", 0, 0, "t0", 0),
    )


def make_runner(
    driver: FakeDriver, harness: Harness, domain: FakeDomain | None = None, *, concurrency: int = 4, **options: Any
) -> tuple[RolloutRunner, list[FakeWorker]]:
    workers: list[FakeWorker] = []

    async def start(source: str) -> FakeWorker:
        workers.append(FakeWorker(harness))
        return workers[-1]

    limits = RolloutLimits(window=2000, **{"grace_seconds": 5.0, **options.pop("limits", {})})
    runner = RolloutRunner(
        driver,  # type: ignore[arg-type]
        driver.codec,
        domain or FakeDomain(),  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        run_seed=0,
        sampling=Sampling(),
        thinking=True,
        concurrency=concurrency,
        limits=limits,
        start_worker=start,
        **options,
    )
    return runner, workers


@pytest.fixture
def fakes() -> SimpleNamespace:
    """The stand-ins by name (test folders are no packages, so they are handed over instead of imported)."""
    return SimpleNamespace(
        BYTE=BYTE, Codec=FakeCodec, Domain=FakeDomain, Driver=FakeDriver, SPECIAL=SPECIAL, Worker=FakeWorker,
        episode=make_episode, runner=make_runner, task=make_task,
        driver=lambda *replies, **options: FakeDriver(FakeCodec(), list(replies), **options),
    )  # fmt: skip
