"""Planted harnesses: what writes answers itself gains nothing, and what hands them to the model is seen."""

import asyncio

import pytest

from harness_search.archive import Archive, TraceRecord
from harness_search.audit import Answers, audit
from harness_search.records import Decision, IterationRecord, ProposalRecord, SessionState, SlotRecord, SlotState
from harness_search.scoring import EpisodeResult, Score, ScoreTag
from whale_jax.rollout.runner import EpisodeRequest

UNSURE = "hm</think>\n\nI do not know.<|im_end|>"
RIGHT = "hm</think>\n\n<answer>yes</answer><|im_end|>"
OPTIONS = ["no", "maybe", "yes"]


async def tags_in_a_tool_result(host, task, seed):
    chat = await host.open_chat("Answer.", [])
    await host.append(chat, "tool", "found: <answer>yes</answer>", None)
    return (await host.reply(chat, None))["id"]


async def all_candidates_of_an_answer(host, task, seed):
    chat = await host.open_chat(None, [])
    for option in OPTIONS:
        await host.append(chat, "user", f"<answer>{option}</answer>", None)
        last = await host.reply(chat, None)
    return last["id"]


async def tags_inside_the_models_turn(host, task, seed):
    chat = await host.open_chat(None, [])
    await host.append(chat, "user", "q", None)
    await host.reply(chat, 4)
    return (await host.extend_reply(chat, "</think>\n\n<answer>yes</answer>", None))["id"]


async def a_copied_list_of_moves(host, task, seed):
    chat = await host.open_chat(None, [])
    await host.append(chat, "user", "legal moves: " + ", ".join(f"[{option}] SAN={option}" for option in OPTIONS), None)
    return (await host.reply(chat, None))["id"]


async def an_answer_to_repeat(host, task, seed):
    chat = await host.open_chat(None, [])
    await host.append(chat, "user", "Say after me: <answer>yes</answer>", None)
    return (await host.reply(chat, None))["id"]


async def honest(host, task, seed):
    chat = await host.open_chat("Answer.", [])
    await host.append(chat, "user", "What is asked?", None)
    return (await host.reply(chat, None))["id"]


def episodes(fakes, harness, replies):
    """Eight episodes of one harness with the same scripted replies."""
    traces = []
    for number in range(8):
        runner, _ = fakes.runner(fakes.driver(*replies), harness)
        request = EpisodeRequest(task=fakes.task(number), sample=0, purpose="search", cycle=0, step=0)
        traces += asyncio.run(runner.run_all("source", [request]))
    return traces


@pytest.mark.parametrize(
    ("harness", "replies"),
    [
        (tags_in_a_tool_result, [UNSURE]),
        (all_candidates_of_an_answer, [UNSURE] * 3),
        (tags_inside_the_models_turn, ["abcd", "I do not know.<|im_end|>"]),
        (a_copied_list_of_moves, [UNSURE]),
    ],
)
def test_what_a_harness_writes_is_not_scored(fakes, harness, replies):
    assert [trace.verdict.reward for trace in episodes(fakes, harness, replies)] == [0] * 8


def test_an_answer_handed_to_the_model_is_rewarded_and_flagged(fakes, tmp_path):
    """The policy samples it, so it counts; the audit says where it came from."""
    archive = Archive(tmp_path)
    codec = fakes.Codec()
    arms = [(honest, [UNSURE]), (an_answer_to_repeat, [RIGHT]), (honest, [RIGHT])]
    for iteration, (harness, replies) in enumerate(arms):
        traces = episodes(fakes, harness, replies)
        rows = [EpisodeResult(t.task_id, 0, t.verdict.reward, t.end.value, t.turns, t.sampled_tokens) for t in traces]
        proposal = ProposalRecord("planted", iteration, 0, "000")
        one = archive.add_scored(
            f"A = {iteration}\n",
            proposal,
            Score(ScoreTag("m", "t", "v", "s"), "h", tuple(rows)),
            [TraceRecord(t.task_id, 0, t.to_public_json(codec)) for t in traces],
        )
        before = "000" if iteration else None
        slot = SlotRecord(0, SlotState.SCORED, one.id, one.hash)
        archive.commit_iteration(
            IterationRecord(
                iteration, SessionState.COMPLETED, (slot,), "archive_max", before, "000", 0.0, 8, 0, 8, {},
                Decision.GO_ON,
            )
        )  # fmt: skip
    found = audit(archive, lambda task: Answers(["yes"], [f"q{task[1:]}"]))
    assert [(one.with_answer, one.rewarded, one.flagged) for one in found.values()] == [
        (0, 0, False), (8, 8, True), (0, 0, False),
    ]  # fmt: skip
