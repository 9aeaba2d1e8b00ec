"""Which traces are accepted, and that loss falls exactly on sampled ids."""

import numpy as np
import pytest

from harness_search.contract import EndReason
from whale_jax.domains.verdict import Verdict
from whale_jax.rollout.trace import ChatTrace, Finish, Segment, Source, Trace
from whale_jax.training.rsft import AcceptRule, TrainSequence, accept, sequences


def prompt(*ids: int, source: Source = Source.PROMPT) -> Segment:
    return Segment(ids=ids, source=source)


def sampled(*ids: int, turn: int = 0, finish: Finish = "stop", logprob: float = -0.5) -> Segment:
    return Segment(ids, Source.SAMPLED, turn, (logprob,) * len(ids), weight_version=0, finish=finish)


def trace(
    *chats: tuple[Segment, ...], reward: float | None = 1, returned: tuple[int, int] | None = (0, 0), task: str = "t"
) -> Trace:
    return Trace(
        task_id=task,
        sample=0,
        chats=tuple(ChatTrace(chat) for chat in chats),
        end=EndReason.ANSWERED if returned else EndReason.INVALID_RETURN,
        verdict=Verdict(reward=reward, answer=None, reason=""),  # type: ignore[arg-type]
        returned=returned,
    )


ANSWERED = (prompt(1, 2), sampled(3, 4, 9))
CUT = (prompt(1, 2), sampled(3, 4, finish="length"))


@pytest.mark.parametrize(
    ("episode", "honest", "paper"),
    [
        (trace(ANSWERED), True, True),
        (trace(ANSWERED, reward=0), False, False),
        (trace(ANSWERED, reward=None), False, False),
        (trace(CUT), False, True),
        (trace(ANSWERED, returned=None, reward=0), False, False),
    ],
    ids=["right", "wrong", "unscored", "right but cut by a budget", "nothing returned"],
)
def test_acceptance(episode, honest, paper):
    assert AcceptRule.HONEST.accepts(episode) is honest
    assert AcceptRule("paper").accepts(episode) is paper


def test_every_accepted_trace_is_kept_in_order():
    good, bad = trace(ANSWERED), trace(ANSWERED, reward=0)
    assert accept([good, bad, good, trace(CUT)], AcceptRule.HONEST) == [good, good]


def test_loss_falls_on_sampled_ids_alone_with_their_end_of_turn():
    chat = (
        prompt(1, 2),
        sampled(3, 4, 9, logprob=-0.25),  # 9 ends the turn and was sampled
        prompt(5, source=Source.TOOL),
        prompt(6, source=Source.HARNESS),
        sampled(7, turn=1, finish="length", logprob=-0.75),
        Segment((8,), Source.HARNESS, turn=1),  # written by the harness inside the turn
        sampled(10, 9, turn=1, logprob=-0.5),
    )
    (sequence,) = sequences(trace(chat, returned=(0, 1)))
    assert sequence.ids.tolist() == [1, 2, 3, 4, 9, 5, 6, 7, 8, 10, 9]
    assert np.flatnonzero(sequence.target_mask).tolist() == [2, 3, 4, 7, 9, 10]
    assert sequence.logprobs[sequence.target_mask].tolist() == [-0.25] * 3 + [-0.75] + [-0.5] * 2
    assert sequence.targets == 6


def test_end_of_turn_that_the_host_added_is_not_trained():
    (sequence,) = sequences(trace((prompt(1), sampled(2, finish="length"), prompt(9), sampled(3, 9, turn=1))))
    assert np.flatnonzero(sequence.target_mask).tolist() == [1, 3, 4]


def test_each_chat_is_a_sequence_and_a_carried_reply_is_trained_once():
    first = (prompt(1, 2), sampled(3, 9))
    second = (prompt(1), prompt(3, 9), prompt(5), sampled(6, 9))
    out = sequences(trace(first, second, (), (prompt(1, 2, 3),), returned=(1, 0)))
    assert [sequence.ids[sequence.target_mask].tolist() for sequence in out] == [[3, 9], [6, 9]]


def test_answer_after_a_prompt_of_one_token_keeps_all_its_targets():
    """Case B057."""
    (sequence,) = sequences(trace((prompt(1), sampled(2, 3, 4, 9))))
    assert sequence.targets == 4


@pytest.mark.parametrize(
    ("ids", "mask", "logprobs", "what"),
    [
        ([1, 2], [True, True], [0, 0], "first id is marked"),
        ([1], [False], [0], "T >= 2"),
        ([1, 2], [False], [0, 0], r"must be \[T\]"),
    ],
)
def test_impossible_sequences_are_refused_by_name(ids, mask, logprobs, what):
    with pytest.raises(ValueError, match=f"chat of x: .*{what}"):
        TrainSequence(np.array(ids, np.int32), np.array(mask), np.array(logprobs, np.float32), "chat of x")
