"""Only what the policy sampled gets on the board."""

import asyncio

import pytest

from harness_search.contract import CallRefused
from tests.whale_jax.domains.chess.positions import PAPER_LINE
from whale_jax.domains.chess.environment import PuzzleEnv
from whale_jax.domains.domain import JudgedEnv, SampledText

REPLY = SampledText("<move>b2b1</move>")


@pytest.fixture
def env():
    return PuzzleEnv(PAPER_LINE)


def call(env, name, *args, **kwargs):
    return asyncio.run(env.call(name, args, kwargs))


def test_it_judges_its_own_episode(env):
    assert isinstance(env, JudgedEnv)
    assert "Puzzle move: 2" in call(env, "play", REPLY)
    assert call(env, "play", reply=SampledText("Qxd1#"), move="b1d1").startswith("Puzzle over: ")
    assert env.verify("Qxd1#", protocol="paper").reward == 1


@pytest.mark.parametrize("reply", ["<move>b2b1</move>", "", None, 7, ["b2b1"]], ids=repr)
def test_a_text_of_the_harness_is_no_reply(env, reply):
    before = call(env, "observe")
    with pytest.raises(CallRefused, match="reply of this episode itself"):
        call(env, "play", reply, "b2b1")
    assert call(env, "observe") == before


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "message"),
    [
        ("observe", (1,), {}, "takes no arguments"),
        ("observe", (), {"x": 1}, "takes no arguments"),
        ("play", (), {}, "reply of this episode"),
        ("play", (REPLY, "b2b1", 1), {}, "play takes"),
        ("play", (REPLY,), {"reply": REPLY}, "play takes"),
        ("play", (REPLY,), {"best": True}, "play takes"),
        ("play", (REPLY, 7), {}, "move must be a text or None, got int"),
        ("play", (REPLY, "x" * 201), {}, "201 characters"),
        ("best_move", (), {}, "env has no 'best_move'; it has: observe, play"),
    ],
)
def test_calls_that_make_no_sense_are_refused(env, name, args, kwargs, message):
    with pytest.raises(CallRefused, match=message):
        call(env, name, *args, **kwargs)
