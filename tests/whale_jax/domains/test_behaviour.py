"""What every domain measures of episodes beside their scores."""

import string

import pytest

from harness_search.contract import EndReason
from whale_jax.domains.registry import DOMAIN_NAMES, load_domain
from whale_jax.domains.task import Split
from whale_jax.domains.verdict import Verdict
from whale_jax.qwen3_5.chat import SpecialIds
from whale_jax.rollout.trace import ChatTrace, Segment, Source, Trace

SPECIAL = SpecialIds(*range(9))
CONTROL = dict(enumerate(["<|endoftext|>", "<|im_start|>", "<|im_end|>", "", "", "<|tool|>", "<|/tool|>", "<think>"]))
CONTROL[8] = "</think>"
FIRST = 100


class Codec:
    special = SPECIAL

    def decode(self, ids):
        return "".join(CONTROL[token] if token < FIRST else chr(token - FIRST) for token in ids)


def ids(text):
    assert set(text) <= set(string.printable)
    return tuple(FIRST + ord(character) for character in text)


def episode(task, reply, reason="", *, reward=0, answer=None, document=None, sample=0, end=EndReason.ANSWERED):
    segments = [Segment((*ids("assistant\n"), SPECIAL.think_open, *ids("\n")), Source.PROMPT)]
    if document is not None:
        document = (SPECIAL.tool_response_open, *ids(document), SPECIAL.tool_response_close)
        segments.append(Segment(document, Source.TOOL))
    sampled = (SPECIAL.think_close, *ids(reply), SPECIAL.im_end)
    segments.append(Segment(sampled, Source.SAMPLED, 0, (-1.0,) * len(sampled), 0, "stop"))
    chats, calls = (ChatTrace(tuple(segments)),), int(document is not None)
    return Trace(task.id, sample, chats, end, Verdict(reward, answer, reason), (0, 0), None, 1, calls)


@pytest.fixture(scope="module")
def domains():
    return {name: load_domain(name) for name in DOMAIN_NAMES}


@pytest.mark.parametrize("name", DOMAIN_NAMES)
def test_figures_are_named_and_meant_and_absent_without_episodes(domains, name):
    domain = domains[name]
    task = domain.tasks(Split.TEST)[0]
    assert all(figure.isidentifier() and meaning for figure, meaning in domain.figures.items())
    assert domain.behaviour([task], [], Codec()) == {}
    lost = episode(task, "x", reward=None, end=EndReason.INFRASTRUCTURE)
    assert domain.behaviour([task], [lost], Codec()) == {}
    measured = domain.behaviour([task], [episode(task, "x"), lost], Codec())
    assert measured
    assert measured.keys() <= domain.figures.keys()
    assert all(type(value) is float for value in measured.values())


def test_search_tells_how_often_retrieval_found_the_answer(domains):
    domain = domains["searchqa"]
    task = next(task for task in domain.tasks(Split.TEST) if task.reference["answers"][0].isalpha())
    answer = task.reference["answers"][0]
    traces = [
        episode(task, "a", reward=1, document=f"It is {answer}."),
        episode(task, "b", document=f"It is {answer}.", sample=1),
        episode(task, "c", document="Nothing.", sample=2),
        episode(task, "d", sample=3),
    ]
    expected = {"searched": 0.75, "hit": 0.5, "right_when_hit": 0.5, "right_when_missed": 0.0}
    assert domain.behaviour(domain.tasks(Split.TEST), traces, Codec()) == expected
    assert domain.behaviour([task], traces[::-1], Codec()) == expected


def test_math_tells_boxes_and_token_limits(domains):
    domain = domains["math"]
    task = domain.tasks(Split.TEST)[0]
    traces = [
        episode(task, "a", answer="1", reward=1, document="1"),
        episode(task, "b", end=EndReason.TOKEN_BUDGET, sample=1),
    ]
    expected = {"token_limit": 0.5, "boxed": 0.5, "right_when_boxed": 1.0, "ran_code": 0.5}
    assert domain.behaviour([task], traces, Codec()) == expected


def test_chess_tells_the_form_of_replies_and_how_puzzles_ended(domains):
    domain = domains["chess"]
    task = domain.tasks(Split.TEST)[0]
    traces = [
        episode(task, "<move>a1a2</move>", "the line is played", reward=1),
        episode(task, "a1a2", "wrong move, at move 1", sample=1),
    ]
    measured = domain.behaviour([task], traces, Codec())
    assert (measured["closed_thinking"], measured["in_format"], measured["at_limit"]) == (1.0, 0.5, 0.0)
    assert (measured["solved"], measured["wrong_move"], measured["unfinished"]) == (0.5, 0.5, 0.0)
    assert measured["moves_found"] == len(task.reference["moves"]) // 2 / 2
    assert measured.keys() == domain.figures.keys()
