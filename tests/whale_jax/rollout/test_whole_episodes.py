"""Whole episodes through the real parts: engine, scheduler, sandbox, SearchQA; the policy is a tiny random Qwen3.5."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import whale_jax.demo
from harness_search.contract import Budgets, EndReason
from harness_search.sandbox.backends import detect
from whale_jax.domains.registry import load_domain
from whale_jax.domains.task import Split
from whale_jax.qwen3_5 import model
from whale_jax.qwen3_5.chat import ChatCodec
from whale_jax.qwen3_5.config import Qwen35Config
from whale_jax.rollout.runner import EpisodeRequest, RolloutLimits, RolloutRunner
from whale_jax.rollout.trace import Source, Trace
from whale_jax.serving.driver import Driver, Sampling, Session, make_driver
from whale_jax.serving.engine import Engine

pytestmark = pytest.mark.slow

WINDOW = 256
BUSY = '''
async def run(task, model, env):
    """Uses everything a harness has, whatever the model says."""
    chat = model.chat(system="Search.", tools=TOOLS)
    chat.user(task.question)
    reply = await chat.reply(max_tokens=6)
    if reply.finish == "length":
        reply = await chat.extend_reply("</think>\\n\\nI search.", max_tokens=4)
    found = await env.search([task.question], topk=1, max_doc_tokens=12)
    chat.tool(found)
    chat.user("Shorter: " + found[:20])
    other = model.chat()
    other.user("Look at this.")
    other.add(reply)
    other.user("Is it right? <|im_end|>")
    await other.reply(max_tokens=5)
    return await chat.reply(max_tokens=5)

TOOLS = [{"name": "search", "parameters": {"properties": {"query_list": {"type": "array"}}}}]
'''


class Watched:
    """A driver that remembers its sessions and, beside them, the ids that each call gave and got."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.consumed: dict[int, list[tuple[int, bool]]] = {}
        self._sessions: list[Session] = []

    def open(self) -> Session:
        self._sessions.append(self._driver.open())
        return self._sessions[-1]

    def close(self, session: Session) -> None:
        self._driver.close(session)

    async def generate(self, session: Session, new_ids: Sequence[int], **options: Any) -> Any:
        generation = await self._driver.generate(session, new_ids, **options)
        record = self.consumed.setdefault(id(session), [])
        record += [(token, False) for token in new_ids] + [(token, True) for token in generation.ids]
        return generation


@pytest.fixture(scope="module")
def codec() -> ChatCodec:
    return ChatCodec.from_dir(Path(whale_jax.demo.__file__).parent / "checkpoint")


@pytest.fixture(scope="module")
def driver(codec: ChatCodec):
    config = Qwen35Config.from_hf(
        {
            "model_type": "qwen3_5_text", "vocab_size": codec.vocab_size, "hidden_size": 32, "intermediate_size": 48,
            "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
            "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 16,
            "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
            "partial_rotary_factor": 0.25, "tie_word_embeddings": True, "full_attention_interval": 4,
        }
    )  # fmt: skip
    params = model.init_params(config, jax.random.key(0), jnp.float32)
    engine = Engine(
        config, params, slots=4, max_len=WINDOW, stop_ids=codec.stop_ids, extend_rows=2, extend_chunk=32, decode_steps=4
    )
    with make_driver("scheduler", engine) as started:
        yield started


def roll(
    driver: Driver, codec: ChatCodec, source: str, concurrency: int, sampling: Sampling
) -> tuple[list[Trace], Watched]:
    domain = load_domain("searchqa", count_tokens=lambda text: len(codec.encode_text(text)))
    requests = [
        EpisodeRequest(task, sample, "train", 0, 1) for task in domain.tasks(Split.WEIGHT)[:3] for sample in range(2)
    ]
    watched = Watched(driver)

    async def run() -> list[Trace]:
        runner = RolloutRunner(
            watched,  # type: ignore[arg-type]
            codec,
            domain,
            detect(),
            run_seed=7,
            sampling=sampling,
            thinking=True,
            concurrency=concurrency,
            limits=RolloutLimits(window=WINDOW),
        )
        budgets = Budgets(assistant_tokens=24, turns=4, tool_calls=4, wall_seconds=120.0)
        try:
            return await runner.run_all(source, requests, budgets=budgets)
        finally:
            await runner.close()

    return asyncio.run(run()), watched


@pytest.mark.parametrize("which", ["h0", "busy"])
def test_traces_are_token_exact_and_do_not_depend_on_concurrency(driver: Driver, codec: ChatCodec, which: str) -> None:
    source = load_domain("searchqa").h0 if which == "h0" else BUSY
    crowd, watched = roll(driver, codec, source, 6, Sampling())
    alone, _ = roll(driver, codec, source, 1, Sampling())
    assert [trace.to_json() for trace in crowd] == [trace.to_json() for trace in alone]
    recorded = sorted(
        list(zip(chat.ids, chat.loss_mask, strict=True)) for trace in crowd for chat in trace.chats if chat.ids
    )
    assert recorded == sorted(watched.consumed.values())
    for trace in crowd:
        assert trace.verdict.reward == 0, (trace.end, trace.error)
        assert trace.end in (EndReason.FORMAT, EndReason.TOKEN_BUDGET, EndReason.ANSWERED), (trace.end, trace.error)
        assert trace.returned is not None
        assert 0 < trace.sampled_tokens <= 24
        assert Trace.from_json(trace.to_json()) == trace
    assert len({trace.chats[0].ids for trace in crowd}) == len(crowd)
    if which == "busy":
        for trace in crowd:
            assert len(trace.chats) == 2
            assert {segment.source for segment in trace.chats[0].segments} >= {Source.TOOL, Source.HARNESS}
            assert sum(segment.ids.count(codec.special.im_start) for segment in trace.chats[1].segments) >= 4


def test_greedy_samples_of_a_task_are_equal(driver: Driver, codec: ChatCodec) -> None:
    traces, _ = roll(driver, codec, load_domain("searchqa").h0, 6, Sampling(temperature=0.0))
    assert traces[0].chats == traces[1].chats
    assert traces[0].chats != traces[2].chats
