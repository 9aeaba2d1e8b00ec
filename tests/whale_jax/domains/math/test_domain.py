"""The Math domain as a whole: the demo, task folders, the tool on the real sandbox, behaviour."""

import asyncio
import json

import pytest

from harness_search.contract import Budgets, CallRefused, EndReason, TaskView
from harness_search.sandbox.backends import SandboxUnavailable, detect
from harness_search.sandbox.code import CodeEnd, CodeResult
from harness_search.sandbox.code_server import CodeLimits
from harness_search.sandbox.scripted import ScriptedHost
from harness_search.sandbox.worker import HarnessWorker
from whale_jax.domains.math.behaviour import MathBehaviour
from whale_jax.domains.math.domain import DEMO_OUTPUT_TOKENS, load
from whale_jax.domains.math.tool import CUT, CodeEnv, cut, describe_end
from whale_jax.domains.task import Split, TaskError
from whale_jax.domains.verdict import Verdict
from whale_jax.rollout.tool_calls import parse
from whale_jax.rollout.trace import ChatTrace, Segment, Source, Trace


def count_words(text):
    return len(text.split())


@pytest.fixture(scope="module")
def demo():
    try:
        detect("auto")
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    domain = load()
    yield domain
    domain.close()


@pytest.fixture(scope="module")
def call(demo):
    env = demo.env(demo.tasks(Split.TEST)[0])
    return lambda *args, **kwargs: asyncio.run(env.call("run_code", args, kwargs))


def test_the_demo_runs_code_and_scores_answers(demo, call):
    task = demo.tasks(Split.TEST)[0]
    assert call("print(6 * 7)") == "42\n"
    assert call(code="import sympy; print(sympy.isprime(97))") == "True\n"
    assert demo.env(task).names == demo.tool_names == {"run_code"}
    right = f"\\boxed{{{task.reference['answer']}}}"
    assert demo.verify(task, right).reward == demo.verify(task, right, protocol="paper").reward == 1
    assert demo.verify(task, right + " " * 200, protocol="paper").reward == 0
    assert demo.verify(task, "\\boxed{-1.5}").reward == 0
    assert demo.verify(task, None) == Verdict(0, None, "no reply to read")


def test_each_end_of_a_run_reads_differently(call):
    assert call("x = 1") == "No output: the code ran and printed nothing."
    assert call(" \n") == "Empty code: there is nothing to run."
    assert call(7) == "Code error: code must be a text, got int."
    assert call("1/0").splitlines()[-1] == "ZeroDivisionError: division by zero"
    assert call("import os; os._exit(3)") == "Exit: the code ended the interpreter (status 3)."
    assert call("print('so far'); import os; os.abort()").startswith("so far\nCrash: the interpreter died (")
    assert call("x = 'x' * 10**12").endswith("\nOut of memory: the code may use 1024 MiB.")
    flood = call("while True: print('word ' * 100)")
    assert flood.endswith("\nOutput flood: the code was stopped after printing 262144 bytes.")
    assert "[output cut: " in flood
    assert count_words(flood) < DEMO_OUTPUT_TOKENS + 20
    assert call("#" * 300_000) == "Code error: 300000 bytes of code, more than 262144."
    limits = CodeLimits(cpu_seconds=4)
    timeout = describe_end(CodeResult(CodeEnd.TIMEOUT, ""), limits)
    assert timeout == "Timeout: the code was stopped, for it did not end within 4 s."
    assert (
        describe_end(CodeResult(CodeEnd.DONE, ""), limits) == describe_end(CodeResult(CodeEnd.RAISED, ""), limits) == ""
    )


def test_what_the_primitive_does_not_have_is_refused(demo):
    env = demo.env(demo.tasks(Split.TEST)[0])
    with pytest.raises(CallRefused, match="env has no 'search'; it has: run_code"):
        asyncio.run(env.call("search", ["x"], {}))
    for args, kwargs in ((["1", "2"], {}), ([], {}), ([], {"source": "1"})):
        with pytest.raises(CallRefused, match="run_code"):
            asyncio.run(env.call("run_code", args, kwargs))


@pytest.mark.parametrize("source", ["h0", "strong"])
def test_the_harnesses_get_along_in_the_sandbox(demo, source):
    """The scripted episode of validation: a call, a reply without an answer, then a proper one."""

    async def main():
        tools = json.loads('[{"name": "code_interpreter"}]')
        host = ScriptedHost(
            demo.scripted_replies,
            lambda name, args, kwargs: demo.scripted_result,
            parse_calls=lambda text: [
                {"name": one.name, "arguments": dict(one.arguments)} for one in parse(text, tools)
            ],
        )
        async with await HarnessWorker.start(getattr(demo, source), backend=detect("auto")) as worker:
            budgets = Budgets(1000, 9, 9, 60.0)
            task = TaskView("t", {"question": "What is asked here?"})
            outcome = await worker.run_episode(episode_id="e", task=task, budgets=budgets, seed=0, host=host)
        return outcome, [entry for entry in host.log if entry[0] == "env"]

    outcome, calls = asyncio.run(main())
    assert (outcome.end, outcome.error) == (None, None)
    assert calls == [("env", "run_code", ["x = 6 * 7\nprint(x)"], {})]


def test_the_skill_and_the_scripted_episode_speak_of_this_domain(demo):
    for word in ("run_code", "code_interpreter", "\\boxed", "Timeout", "Out of memory", "Crash", "print"):
        assert word in demo.skill
    assert demo.verify(demo.tasks(Split.TEST)[0], demo.scripted_replies[-1]).answer == "42"
    assert demo.name == "math"


def test_long_output_is_cut_in_its_middle():
    text = " ".join(map(str, range(5000)))
    shown = cut(text, 100, count_words)
    assert count_words(shown) <= 100
    assert shown.startswith("0 1 2")
    assert shown.endswith("4998 4999")
    left_out = len(text) - (len(shown) - len(CUT.format(count=0)) + 1)
    assert f"{left_out}"[:3] in shown
    assert cut("a b c", 3, count_words) == "a b c"
    assert cut("x" * 1000, 100, count_words) == "x" * 1000
    assert cut("word " * 10, 1, count_words) == CUT.format(count=50)


def test_a_sandbox_that_fails_is_no_answer_of_the_code():
    class Broken:
        limits = CodeLimits()

        async def run_async(self, code):
            raise SandboxUnavailable("down")

    env = CodeEnv(Broken(), count_words, 10)  # pyright: ignore[reportArgumentType]
    with pytest.raises(SandboxUnavailable):
        asyncio.run(env.call("run_code", ["1"], {}))


def row(number, **fields):
    return json.dumps({"id": str(number), "problem": f"Problem {number}?", "answer": "5", **fields})


def write_folder(folder, **files):
    folder.mkdir()
    for number, split in enumerate(Split):
        (folder / f"{split}.jsonl").write_text(files.get(split, row(number)) + "\n", encoding="utf-8")
    return folder


def test_a_folder_of_task_files_is_loaded(tmp_path):
    copies = "\n".join([row(1), row(7, problem="problem 1?"), row(20, problem="Other?")])
    domain = load(task_dir=write_folder(tmp_path / "data", harness=copies))
    assert sorted(task.id for task in domain.tasks(Split.HARNESS)) == ["1", "20"]
    assert domain.copies == 1
    (task,) = domain.tasks(Split.TEST)
    assert (task.inputs, task.reference) == ({"question": "Problem 3?"}, {"answer": "5"})
    assert (domain.budgets.turns, domain.budgets.assistant_tokens) == (16, 8_192)
    assert domain.interpreter.limits.cpu_seconds == 30
    assert domain.interpreter.limits.memory_bytes == 1 << 30
    domain.close()


def test_bad_rows_clashes_and_overlaps_stop_the_run(tmp_path):
    bad = "\n".join([row(1), row(2, problem=" "), row(3, answer="")])
    with pytest.raises(TaskError, match=r"harness\.jsonl: 2 of 3 rows.*harness\.jsonl:2: the problem is empty"):
        load(task_dir=write_folder(tmp_path / "bad", harness=bad))
    domain = load(task_dir=tmp_path / "bad", max_bad_rows=0.7)
    assert [bad_row.line for bad_row in domain.bad_rows] == [2, 3]
    domain.close()
    with pytest.raises(TaskError, match="weight and test share 1 task"):
        load(task_dir=write_folder(tmp_path / "copy", test=row(9, problem="Problem 0?")))
    clash = "\n".join([row(1), row(1, problem="Other?")])
    with pytest.raises(TaskError, match=r"harness\.jsonl: two different problems have the id '1'"):
        load(task_dir=write_folder(tmp_path / "clash", harness=clash))
    (tmp_path / "bad" / "test.jsonl").unlink()
    with pytest.raises(TaskError, match=r"bad: no test tasks: one of test\.jsonl, .*test\.parquet must be there"):
        load(task_dir=tmp_path / "bad", max_bad_rows=0.7)


def test_the_data_hash_follows_the_data(tmp_path):
    one, two = (load(task_dir=write_folder(tmp_path / name, test=row(9, answer=name))) for name in "12")
    demos = [load(), load()]
    assert len({one.data_hash, two.data_hash, demos[0].data_hash}) == 3
    assert demos[0].data_hash == demos[1].data_hash
    for domain in (one, two, *demos):
        domain.close()


def trace(end, answer, reward, finish="stop", calls=0):
    segment = Segment((1,), Source.SAMPLED, 0, (0.0,), 0, finish)
    verdict = Verdict(reward, answer, "")
    return Trace("t", 0, (ChatTrace((segment,)),), end, verdict, (0, 0), None, turns=1, tool_calls=calls)


def test_behaviour_tells_token_limits_and_boxes():
    behaviour = MathBehaviour.from_traces(
        [
            trace(EndReason.ANSWERED, "1", 1, calls=1),
            trace(EndReason.ANSWERED, "1", 0),
            trace(EndReason.TOKEN_BUDGET, None, 0),
            trace(EndReason.FORMAT, None, 0, finish="length"),
            trace(EndReason.ANSWERED, "1", None),
            trace(EndReason.INFRASTRUCTURE, None, None),
        ]
    )
    assert behaviour == MathBehaviour(5, token_limit=0.4, boxed=0.6, right_when_boxed=0.5, ran_code=0.2)
    assert MathBehaviour.from_traces([]).to_json() == {
        "episodes": 0,
        "token_limit": None,
        "boxed": None,
        "right_when_boxed": None,
        "ran_code": None,
    }
