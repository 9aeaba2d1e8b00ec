"""Behaviour in made-up episodes whose figures can be counted by hand."""

import pytest

from tests.whale_jax.domains.chess.positions import CARD, PAPER_LINE, TWO_MATES
from whale_jax.domains.chess.behaviour import behaviour
from whale_jax.domains.chess.prepare import to_row
from whale_jax.domains.chess.tasks import parse_row
from whale_jax.domains.task import Split, Task


def task(puzzle):
    parsed = parse_row(to_row(puzzle))
    return Task(puzzle.id, "chess", parsed.inputs, parsed.reference, Split.TEST)


TASKS = [task(puzzle) for puzzle in (CARD, PAPER_LINE, TWO_MATES)]


def trace(task_id, reward, reason, *replies, end="answered", thinks=True):
    segments = [
        {"source": "prompt", "text": "<|im_start|>assistant\n<think>\n" if thinks else "<|im_start|>assistant\n"}
    ]
    for turn, (text, finish) in enumerate(replies):
        segments.append({"source": "sampled", "text": text, "turn": turn, "finish": finish})
    return {"task_id": task_id, "reward": reward, "reason": reason, "end": end, "chats": [segments]}


EPISODES = [
    trace("two", 1, "the line is played", ("Rook.</think>\n\n<move>b1b8</move><|im_end|>", "stop")),
    trace("two", 0, "wrong move, at move 1", ("</think><move>a1a2</move><|im_end|>", "stop")),
    trace(
        "0009B",
        0,
        "the line is not finished, at move 2: Illegal move: a: b.",
        ("</think>Qxg4", "stop"),
        ("no", "length"),
    ),
    trace("paper", 0, "timeout", end="timeout"),
    trace("paper", None, "engine down", end="infrastructure"),
]


def test_figures():
    seen = behaviour(EPISODES, TASKS)
    assert (seen.episodes, seen.replies) == (4, 4)
    assert seen.closed_thinking == pytest.approx(3 / 4)
    assert seen.in_format == pytest.approx(2 / 4)
    assert seen.at_limit == pytest.approx(1 / 4)
    assert seen.endings == {
        "the line is not finished": 0.25,
        "the line is played": 0.25,
        "timeout": 0.25,
        "wrong move": 0.25,
    }
    assert seen.moves_found == pytest.approx((1 + 0 + 1) / 3)
    assert seen.by_theme["mateIn1"].solved == pytest.approx(0.5)
    assert (seen.by_theme["mateIn1"].tasks, seen.by_theme["mateIn1"].episodes) == (1, 2)
    assert list(seen.by_rating) == ["800-1199"]
    assert seen.by_rating["800-1199"].episodes == 3
    assert seen.to_json()["by_theme"]["middlegame"] == {"tasks": 1, "episodes": 1, "solved": 0.0}


def test_without_thinking_the_whole_reply_is_read():
    seen = behaviour([trace("two", 1, "the line is played", ("<move>b1b8</move>", "stop"), thinks=False)], TASKS)
    assert (seen.closed_thinking, seen.in_format) == (None, 1.0)


def test_several_moves_are_not_in_the_format():
    seen = behaviour([trace("two", 0, "x", ("</think><move>a1a8</move><move>b1b8</move>", "stop"))], TASKS)
    assert seen.in_format == 0.0
    assert seen.endings == {"answered": 1.0}


def test_no_episodes_no_shares():
    seen = behaviour([], TASKS)
    assert (seen.episodes, seen.in_format, seen.moves_found, seen.by_theme) == (0, None, None, {})
