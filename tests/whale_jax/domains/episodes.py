"""Whole episodes through runner, episode and sandbox; the model's replies are scripted, ids and all."""

import asyncio
import re
from dataclasses import dataclass, field

from harness_search.contract import Budgets
from harness_search.sandbox.backends import Backend
from whale_jax.domains.domain import Domain, VerifierProtocol
from whale_jax.domains.task import Task
from whale_jax.qwen3_5.chat import ChatCodec
from whale_jax.rollout.runner import EpisodeRequest, RolloutLimits, RolloutRunner
from whale_jax.rollout.trace import Trace
from whale_jax.serving.driver import Generation, Sampling, Session


@dataclass
class ScriptedDriver:
    """Gives the scripted replies in order, as ids; control tokens in them are meant."""

    codec: ChatCodec
    replies: list[str]
    sessions: list[Session] = field(default_factory=list)

    def open(self) -> Session:
        self.sessions.append(Session())
        return self.sessions[-1]

    async def generate(self, session, new_ids, *, max_tokens, sampling, key) -> Generation:
        special = self.codec.special
        control = {
            "</think>": special.think_close,
            "<tool_call>": special.tool_call_open,
            "</tool_call>": special.tool_call_close,
        }
        ids: list[int] = []
        for part in re.split("(" + "|".join(control) + ")", self.replies.pop(0)):
            ids += [control[part]] if part in control else self.codec.encode_text(part)
        ids.append(special.im_end)
        return Generation(tuple(ids), (-0.5,) * len(ids), (-0.25,) * len(ids), "stop", 1)

    def close(self, session: Session) -> None:
        session.closed = True


def roll(
    domain: Domain,
    codec: ChatCodec,
    backend: Backend,
    source: str,
    task: Task,
    *replies: str,
    budgets: Budgets,
    protocol: VerifierProtocol = "honest",
) -> Trace:
    """The episode of a task in which the model gives `replies`, all of them."""
    driver = ScriptedDriver(codec, list(replies))

    async def run() -> list[Trace]:
        runner = RolloutRunner(
            driver,  # type: ignore[arg-type]
            codec,
            domain,
            backend,
            run_seed=0,
            sampling=Sampling(),
            thinking=True,
            concurrency=1,
            limits=RolloutLimits(window=4_000),
            protocol=protocol,
        )
        try:
            return await runner.run_all(source, [EpisodeRequest(task, 0, "test", 0, 0)], budgets=budgets)
        finally:
            await runner.close()

    (trace,) = asyncio.run(run())
    assert driver.replies == []
    return trace
