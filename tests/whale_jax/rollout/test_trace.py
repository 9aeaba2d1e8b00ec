"""Traces, keys and ledgers."""

import json
from types import SimpleNamespace

import pytest

from harness_search.contract import EndReason
from whale_jax.domains.verdict import Verdict
from whale_jax.rollout.keys import harness_seed, sampling_key
from whale_jax.rollout.ledger import Ledger
from whale_jax.rollout.trace import ChatTrace, Effort, Segment, Source, Trace, harness_overhead


def sampled(ids, turn=0, finish="stop") -> Segment:
    return Segment(tuple(ids), Source.SAMPLED, turn, tuple(-0.5 for _ in ids), 2, finish)


def make_trace(reward=1, end=EndReason.ANSWERED, finish="stop", effort=None) -> Trace:
    head, tool = Segment((17, 18), Source.HARNESS), Segment((30,), Source.TOOL)
    chats = (ChatTrace((head, sampled([20, 2]), tool, sampled([21], 1, finish))), ChatTrace(()))
    return Trace("t", 3, chats, end, Verdict(reward, "yes", "read"), (0, 1), None, 2, 1, effort or Effort())


def test_masks_and_counts_are_derived() -> None:
    trace = make_trace()
    chat = trace.chats[0]
    assert chat.ids == (17, 18, 20, 2, 30, 21)
    assert chat.loss_mask == (False, False, True, True, False, True)
    assert chat.logprobs == (0.0, 0.0, -0.5, -0.5, 0.0, -0.5)
    assert (trace.sampled_tokens, trace.prompt_tokens, trace.weight_versions, chat.turns) == (3, 3, {2}, 2)
    assert (trace.returned_finish, trace.ended_by_itself) == ("stop", True)
    assert not make_trace(finish="length").ended_by_itself


def test_json_round_trip_is_exact_and_holds_no_time() -> None:
    trace = make_trace(effort=Effort(2, 1.5, 0.5))
    text = json.dumps(trace.to_json())
    assert Trace.from_json(json.loads(text)) == trace == make_trace()
    assert "seconds" not in text


def test_the_public_form_has_texts_and_no_ids(fakes: SimpleNamespace) -> None:
    public = make_trace().to_public_json(fakes.Codec())
    assert json.loads(json.dumps(public)) == public
    assert "ids" not in json.dumps(public)
    assert public["chats"][0][1] == {
        "source": "sampled", "text": "\x04<|im_end|>", "turn": 0, "tokens": 2, "finish": "stop",
    }  # fmt: skip
    assert (public["reward"], public["answer"], public["end"]) == (1, "yes", "answered")


@pytest.mark.parametrize(
    "arguments",
    [
        ((), Source.TOOL),
        ((1,), Source.SAMPLED, 0),
        ((1,), Source.SAMPLED, None, (-1.0,), 0, "stop"),
        ((1,), Source.HARNESS, None, (-1.0,)),
        ((1,), Source.TOOL, None, (), 1),
    ],
)
def test_a_segment_that_cannot_be_is_refused(arguments) -> None:
    with pytest.raises(ValueError, match=r"segment|sampled"):
        Segment(*arguments)


def test_keys_are_words_that_differ_with_every_field() -> None:
    fields = [0, "train", 0, 0, "t1", 0, 0, 0]
    keys = {sampling_key(*fields)}
    for index, value in enumerate(fields):
        other = [*fields]
        other[index] = value + 1 if isinstance(value, int) else value + "1"
        keys.add(sampling_key(*other))
    keys.add(sampling_key(0, "train", 0, 0, "t", 10, 0, 0))  # not the same as task t1, sample 0
    assert len(keys) == 10
    assert all(0 <= word < 2**32 for key in keys for word in key)
    assert sampling_key(*fields) == (3567315521, 2286959922)  # a change of keys is a change of every result
    assert harness_seed(*fields[:6]) != sampling_key(*fields)[0]


def test_ledger_counts() -> None:
    traces = [
        make_trace(), make_trace(finish="length", end=EndReason.TOKEN_BUDGET), make_trace(reward=0),
        make_trace(reward=None, end=EndReason.INFRASTRUCTURE),
    ]  # fmt: skip
    ledger = Ledger.from_traces(traces)
    assert (ledger.episodes, ledger.scored, ledger.unscored, ledger.rewarded, ledger.ended_by_itself) == (4, 3, 1, 2, 1)
    assert ledger.reward_mean == pytest.approx(2 / 3)
    assert ledger.ends == {"answered": 2, "token_budget": 1, "infrastructure": 1}
    assert (ledger.sampled_tokens, ledger.prompt_tokens, ledger.tool_tokens) == (12, 12, 4)
    assert json.loads(json.dumps(ledger.to_json()))["reward_mean"] == ledger.reward_mean


def test_nothing_scored_has_no_mean() -> None:
    ledger = Ledger.from_traces([make_trace(reward=None)])
    assert ledger.to_json()["reward_mean"] is None
    with pytest.raises(ValueError, match="none of 1 episodes"):
        _ = ledger.reward_mean


def test_what_harnesses_cost_is_a_mean_and_a_share():
    efforts = [Effort(1, 2.0, 0.1), Effort(1, 6.0, 0.3)]
    assert harness_overhead(efforts) == {"harness_ms_per_episode": pytest.approx(200), "harness_share": 0.05}
    assert harness_overhead([]) == {"harness_ms_per_episode": 0.0, "harness_share": 0.0}
