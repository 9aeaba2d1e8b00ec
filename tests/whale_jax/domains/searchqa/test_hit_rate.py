import dataclasses
import string
from typing import Literal

from harness_search.contract import EndReason
from whale_jax.domains.searchqa.hit_rate import HitRate, hit_rate
from whale_jax.domains.task import Split, Task
from whale_jax.domains.verdict import Verdict
from whale_jax.qwen3_5.chat import SpecialIds
from whale_jax.rollout.trace import ChatTrace, Segment, Source, Trace

SPECIAL = SpecialIds(*range(len(dataclasses.fields(SpecialIds))))
LETTERS = {character: 100 + number for number, character in enumerate(string.printable + "東京é")}


Reward = Literal[0, 1] | None


class Codec:
    special = SPECIAL

    def decode(self, ids):
        return "".join({number: character for character, number in LETTERS.items()}.get(token, "?") for token in ids)


def ids(text):
    return tuple(LETTERS[character] for character in text)


def prompt(text):
    return Segment(ids(text), Source.HARNESS)


def sampled(*tokens):
    return Segment(tokens, Source.SAMPLED, 0, (-1.0,) * len(tokens), 0, "stop")


def tool(text, source=Source.TOOL):
    return Segment((*ids("<"), SPECIAL.tool_response_open, *ids(text), SPECIAL.tool_response_close), source)


def trace(task, *segments, reward: Reward = 0, end=EndReason.ANSWERED, tool_calls=1):
    chats = (ChatTrace(tuple(segments)),)
    return Trace(task, 0, chats, end, Verdict(reward, "x", ""), None, tool_calls=tool_calls)


ANSWERS = {"t": ["Kalo", "New Kalo"], "yes": ["Yes"], "jp": ["東京"], "number": ["60,500"]}
TASKS = {name: Task(name, "searchqa", {"question": "Q?"}, {"answers": ANSWERS[name]}, Split.TEST) for name in ANSWERS}


def rate(*traces):
    return hit_rate(traces, TASKS, Codec())


def test_a_document_with_the_answer_is_a_hit_however_the_harness_edited_it():
    result = rate(
        trace("t", tool('{"result": "Doc 1 (Title: x)\\nkalo, a city"}'), reward=1),
        trace("t", tool("near KALO.", Source.HARNESS)),
        trace("t", tool("nothing"), reward=1),
        trace("t", prompt("no tool"), tool_calls=0),
    )
    assert result == HitRate(4, searched=0.75, hit=0.5, right_when_hit=0.5, right_when_missed=0.5)
    assert result.to_json()["hit"] == 0.5


def test_only_whole_words_in_tool_responses_count():
    elsewhere = [
        trace("t", tool("Kalopolis and Kal o")),
        trace("t", prompt("Is Kalo in it?"), tool("nothing")),
        trace("t", sampled(SPECIAL.tool_response_open, *ids("Kalo"), SPECIAL.tool_response_close)),
        trace("t", prompt("<tool_response>Kalo</tool_response>")),
        trace("t", tool("open"), Segment((SPECIAL.tool_response_open, *ids("Kalo")), Source.HARNESS)),
    ]
    assert rate(*elsewhere).hit == 0
    assert rate(trace("number", tool("about 60500 people"))).hit == 1
    assert rate(trace("jp", tool("ab東京cd"))).hit == 1


def test_what_is_left_out():
    lost = trace("t", tool("Kalo"), end=EndReason.INFRASTRUCTURE, reward=None)
    assert rate(trace("yes", tool("yes")), lost) == HitRate(0, None, None, None, None)
    unscored = trace("t", tool("Kalo"), reward=None)
    assert rate(unscored) == HitRate(1, 1.0, 1.0, None, None)
