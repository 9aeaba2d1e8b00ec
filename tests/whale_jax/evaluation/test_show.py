"""What `--show` prints, and the calls that it prints."""

import asyncio
import io

import pytest
from rich.console import Console

from harness_search.contract import CallRefused
from tests.whale_jax.rollout.conftest import FakeCodec, FakeDomain, FakeDriver, make_runner, make_task
from whale_jax.domains.domain import JudgedEnv
from whale_jax.domains.verdict import Verdict
from whale_jax.evaluation.calls import CallRecorder
from whale_jax.evaluation.evaluate import evaluation_from_traces, evaluation_requests
from whale_jax.evaluation.show import print_episode, print_evaluation, visible

SEARCH = "look</think>\n<tool_call>x</tool_call><|im_end|>"
ANSWER = "so</think>\n<answer>yes</answer><|im_end|>"


async def harness(host, task, seed):
    """Two calls: the result of the first is passed on, that of the second is edited; a third is refused."""
    chat = await host.open_chat("Answer. " + "word " * 60, [])
    await host.append(chat, "user", "bell \x07 [bold]tab\there", None)
    await host.reply(chat, None)
    result = await host.env("search", ["first"], {"topk": 2})
    await host.append(chat, "tool", result["text"], result["handle"])
    result = await host.env("search", ["second"], {})
    await host.append(chat, "tool", "edited: " + result["text"][:5], None)
    return (await host.reply(chat, None))["id"]


@pytest.fixture
def shown():
    """One episode: what is printed of it on a terminal of so many columns, and its trace."""

    def show(width: int):
        recorder = CallRecorder(FakeDomain())  # type: ignore[arg-type]
        driver = FakeDriver(FakeCodec(), [SEARCH, ANSWER])
        runner, _ = make_runner(driver, harness, recorder.as_domain())  # type: ignore[arg-type]
        task = make_task()
        (trace,) = asyncio.run(runner.run_all("A = 1", evaluation_requests([task], samples=1, purpose="validation")))
        console = Console(file=io.StringIO(), width=width)
        print_episode(console, "episode 1", task, trace, recorder.calls, FakeCodec())
        return console.file.getvalue(), trace, recorder.calls  # type: ignore[attr-defined]

    return show


def test_every_segment_stands_beside_its_source(shown):
    printed, trace, _ = shown(100)
    gutter = [line[:10].strip() for line in printed.splitlines()]
    for source in {segment.source.value for segment in trace.segments}:
        assert gutter.count(source) == sum(segment.source.value == source for segment in trace.segments)
    assert "question  q0" in printed
    assert gutter.count("turn 1") == gutter.count("turn 2") == 1
    assert "end       answered · 2 turns · 2 calls · " in printed
    assert "verdict   reward 1 · answer 'yes' · read" in printed


def test_calls_show_results_that_the_conversation_does_not(shown):
    printed, _, calls = shown(100)
    assert [(call.name, call.args, call.kwargs) for call in calls] == [
        ("search", ("first",), {"topk": 2}),
        ("search", ("second",), {}),
    ]
    assert 'call 1    search("first", topk=2)\n          15 characters, passed on as they are' in printed
    assert "call 2    search(\"second\")\n          found ['second']" in printed


@pytest.mark.parametrize(("width", "bound"), [(20, 80), (100, 100), (500, 120)])
def test_lines_fit_80_to_120_columns(shown, width, bound):
    printed, _, _ = shown(width)
    longest = max(len(line) for line in printed.splitlines())
    assert longest == bound
    assert not any(line.endswith(" ") for line in printed.splitlines())


def test_nothing_that_a_terminal_acts_on_is_printed(shown):
    printed, _, _ = shown(100)
    assert r"bell \x07 [bold]tab    here" in printed
    assert visible("a\x1b[2Jb\u202ec\nd") == "a\\x1b[2Jb\\u202ec\nd"


def test_figures_of_nothing_scored_are_no_figures():
    console = Console(file=io.StringIO(), width=100)
    print_evaluation(console, "h0", "validation", evaluation_from_traces([], k=2))
    assert "–" in console.file.getvalue()  # type: ignore[attr-defined]


class RefusingEnv:
    names = frozenset({"search"})

    async def call(self, name, args, kwargs):
        raise CallRefused("no topk there")


class JudgingEnv(RefusingEnv):
    def verify(self, answer_text, *, protocol):
        return Verdict(1, answer_text, protocol)


@pytest.mark.parametrize(("env", "judged"), [(RefusingEnv, False), (JudgingEnv, True)])
def test_a_recorded_environment_is_what_it_was(env, judged):
    domain = FakeDomain()
    domain.env = lambda task: env()  # type: ignore[method-assign]
    recorder = CallRecorder(domain)  # type: ignore[arg-type]
    recorded = recorder.env(make_task())
    assert recorded.names == {"search"}
    with pytest.raises(CallRefused, match="no topk there"):
        asyncio.run(recorded.call("search", ["x"], {}))
    assert [(call.result, call.error) for call in recorder.calls] == [(None, "no topk there")]
    assert isinstance(recorded, JudgedEnv) == judged
    if isinstance(recorded, JudgedEnv):
        assert recorded.verify("yes", protocol="honest") == Verdict(1, "yes", "honest")
