"""Evaluations made from traces."""

import asyncio
import json
from typing import Any

import pytest

from harness_search.contract import EndReason
from whale_jax.domains.task import Split, Task
from whale_jax.domains.verdict import Verdict
from whale_jax.evaluation.behaviour import Behaviour
from whale_jax.evaluation.evaluate import Evaluation, evaluate, evaluation_from_traces, evaluation_requests
from whale_jax.rollout.trace import ChatTrace, Segment, Source, Trace


def trace(task: str, sample: int, reward, *, end=EndReason.ANSWERED, finish="stop", answer="a", tools=1) -> Trace:
    chat = ChatTrace((Segment((1, 2), Source.HARNESS), Segment((3, 4), Source.SAMPLED, 0, (-1.0, -1.0), 0, finish)))
    return Trace(task, sample, (chat,), end, Verdict(reward, answer, ""), (0, 0), None, 1, tools)


TRACES = [
    trace("b", 0, 0, end=EndReason.FORMAT, answer=None, tools=0), trace("a", 1, 1), trace("a", 0, 0, finish="length"),
    trace("b", 1, None, end=EndReason.INFRASTRUCTURE, answer=None),
]  # fmt: skip


def test_an_evaluation_does_not_depend_on_the_order_of_its_episodes() -> None:
    evaluation = evaluation_from_traces(TRACES, k=2)
    assert evaluation == evaluation_from_traces(TRACES[::-1], k=2)
    assert evaluation.rewards == {"a": [0, 1], "b": [0, None]}
    assert (evaluation.mean, evaluation.tasks, evaluation.k) == (0.25, 2, 2)
    assert evaluation.minus(evaluation).mean == 0


def test_it_survives_json() -> None:
    evaluation = evaluation_from_traces(TRACES, k=2, domain_figures={"hit": 0.5})
    stored = json.loads(json.dumps(evaluation.to_json()))
    assert Evaluation.from_json(stored, {"hit": 0.5}) == evaluation
    summary = evaluation.summary()
    assert json.loads(json.dumps(summary)) == summary
    assert {"mean_at_k", "k", "tasks", "ci95", "episodes", "unscored"} <= summary.keys()


def test_the_evidence_of_a_journal_does_not_hold_the_domains_figures() -> None:
    """Their hash is in every journal: runs of before and after these figures stay comparable to the byte."""
    with_figures = evaluation_from_traces(TRACES, k=2, domain_figures={"hit": 0.5})
    assert with_figures.to_json() == evaluation_from_traces(TRACES, k=2).to_json()
    assert with_figures != evaluation_from_traces(TRACES, k=2)


def test_exactly_one_result_per_slot() -> None:
    with pytest.raises(ValueError, match="task a: sample 1"):
        evaluation_from_traces([*TRACES, trace("a", 1, 1)], k=2)
    with pytest.raises(ValueError, match="sample 1"):
        evaluation_from_traces(TRACES, k=1)


def test_behaviour_leaves_out_what_infrastructure_broke() -> None:
    behaviour = Behaviour.from_traces(TRACES)
    assert (behaviour.episodes, behaviour.answered, behaviour.right_when_answered) == (3, pytest.approx(2 / 3), 0.5)
    assert (behaviour.cut, behaviour.used_tools) == (pytest.approx(1 / 3), pytest.approx(2 / 3))
    assert behaviour.ends == {"answered": pytest.approx(2 / 3), "format": pytest.approx(1 / 3)}
    assert Behaviour.from_traces([]).answered is None


def test_evaluate_asks_for_k_samples_of_each_task() -> None:
    tasks = [Task(name, "fake", {}, {}, Split.TEST) for name in "ab"]

    class Runner:
        async def run_all(self, harness, requests):
            assert harness == "source"
            assert requests == evaluation_requests(tasks, samples=3, purpose="test")
            return [trace(request.task.id, request.sample, 1) for request in requests]

    def measure(traces):
        return {"episodes": len(traces)}

    runner: Any = Runner()
    evaluation = asyncio.run(evaluate(runner, "source", tasks, k=3, purpose="test"))
    assert (evaluation.mean, evaluation.ledger.episodes, evaluation.domain_figures) == (1.0, 6, {})
    evaluation = asyncio.run(evaluate(runner, "source", tasks, k=3, purpose="test", measure=measure))
    assert evaluation.domain_figures == {"episodes": 6}
