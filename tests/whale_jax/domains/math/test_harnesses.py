"""h0, the strong harness and the catalogue, as plain Python on a fake model and a fake interpreter."""

import asyncio
import contextlib
import io
import random
from types import SimpleNamespace

import pytest

from harness_search.contract import check_source, read_info
from harness_search.proposers.edits import check_catalogue
from harness_search.validate import prompt_only_errors
from whale_jax.domains.math.catalogue import CATALOGUE
from whale_jax.domains.math.domain import _source

H0, STRONG = _source("h0.py"), _source("strong.py")
BOTH = pytest.mark.parametrize("source", [H0, STRONG], ids=["h0", "strong"])


class FakeModel:
    """Replies from a list, the last one for ever; `log` keeps what was said to it."""

    def __init__(self, *replies):
        self.replies, self.turns, self.log = replies, 0, []
        self.budgets = SimpleNamespace(assistant_tokens=96, turns=9)

    def chat(self, system=None, tools=None):
        self.log.append(("system", system))
        assert tools[0]["function"]["name"] == "code_interpreter"
        return self

    def user(self, text):
        self.log.append(("user", text))

    def tool(self, text):
        self.log.append(("tool", text))

    async def reply(self, max_tokens=None):
        code, raw, finish = self.replies[min(self.turns, len(self.replies) - 1)]
        self.turns += 1
        calls = [] if code is None else [SimpleNamespace(name="code_interpreter", arguments=code)]
        text = raw.rpartition("</think>")[2]
        remaining = SimpleNamespace(tokens=9, turns=9, tool_calls=9)
        return SimpleNamespace(text=text, raw=raw, finish=finish, remaining=remaining, tool_calls=calls)

    async def extend_reply(self, text, max_tokens=None):
        self.log.append(("extend", text))
        return await self.reply(max_tokens)

    def said(self, kind):
        return [text for found, text in self.log if found == kind]


class FakeEnv:
    """Runs the code here: these tests write it themselves."""

    def __init__(self):
        self.ran = []

    async def run_code(self, code):
        self.ran.append(code)
        out = io.StringIO()
        try:
            with contextlib.redirect_stdout(out):
                exec(compile(code, "<code>", "exec"), {})
        except Exception as error:
            return f"Traceback (most recent call last):\n  a\n  b\n  c\n  d\n{type(error).__name__}: {error}\n"
        return out.getvalue() or "No output: the code ran and printed nothing."


def say(text, finish="stop"):
    return None, text, finish


def call(code):
    return {"code": code}, "</think><tool_call>…</tool_call>", "stop"


ANSWER = say("</think>\\boxed{42}")


def run(source, *replies):
    names = {}
    exec(compile(source, "harness.py", "exec"), names)
    model, env = FakeModel(*replies), FakeEnv()
    task = SimpleNamespace(id="t", question="What is 6 * 7?")
    reply = asyncio.run(names["run"](task, model, env))
    return model, env, reply


def edited(*edit_names, source=H0):
    for edit_name in edit_names:
        (edit,) = [edit for edit in CATALOGUE if edit.name == edit_name]
        source = edit.apply(source)
        assert source is not None, edit_name
    return source


def test_h0_is_as_weak_as_the_papers():
    model, env, reply = run(H0, call("x = 6\nx * 7"), ANSWER)
    assert model.said("system") == [None]
    assert model.said("user") == ["What is 6 * 7?\nPut the final answer in \\boxed{}."]
    assert (env.ran, model.said("tool")) == (["x = 6\nprint(x * 7)"], ["42\n"])
    assert (model.turns, reply.text) == (2, "\\boxed{42}")
    assert run(H0, call("1"), call("2"))[0].turns == 2
    assert run(H0, ANSWER)[0].turns == 1


@pytest.mark.parametrize(
    ("code", "ran"),
    [
        ("```python\nprint(1)\n```", "\nprint(1)"),
        ("```\n1 + 1\n```\n```\n2\n```", "\nprint(1 + 1)"),
        ("for i in range(3):\n    i", "for i in range(3):\n    print(i)"),
        ("while True:\n    break", "while True:\n    print(break)"),
        ("def f():\n    return 1", "def f():\n    print(return 1)"),
        ("x = 1", "x = 1"),
    ],
)
def test_h0_takes_the_first_block_and_breaks_control_lines(code, ran):
    assert run(H0, call(code), ANSWER)[1].ran == [ran]


@pytest.mark.parametrize(
    ("code", "ran"),
    [
        ("```python\nprint(1)\n```", "print(1)"),
        ("```\na = 1\n```\ntext\n```\na + 1\n```", "a = 1\n\nprint(a + 1)"),
        ("    x = 1\n    x + 1", "x = 1\nprint(x + 1)"),
        (">>> 1 + 1", "print(1 + 1)"),
        ("while True:\n    break", "while True:\n    break"),
        ("(1 +\n 2)", "print((1 +\n 2))"),
        ("1 +", "1 +"),
        ("x = 1; x", "x = 1; x"),
        ("1 # one", "1 # one"),
        ("print(1)\n2", "print(1)\n2"),
    ],
)
def test_strong_cleans_code_up_and_leaves_sound_code_alone(code, ran):
    assert run(STRONG, call(code), ANSWER)[1].ran == [ran]


def test_strong_explains_errors_and_announces_the_last_turn():
    model, _, _ = run(STRONG, call("1/0"), call("x = 1"), call("print(1)"), ANSWER)
    error, nothing, last = model.said("tool")
    assert "ZeroDivisionError" in error
    assert "Correct it" in error
    assert "Traceback" not in error
    assert "printed nothing" in nothing
    assert last.startswith("1\n")
    assert "last turn" in last
    assert "last turn" not in error + nothing


def test_strong_talks_back_and_closes_thinking():
    model, _, reply = run(STRONG, say("on and on", "length"), say("</think>no idea"), say("</think>hm"), ANSWER)
    assert model.said("extend") == ["\n</think>\n\n"]
    assert len(model.said("user")) == 3
    assert reply.text == "\\boxed{42}"


@BOTH
@pytest.mark.parametrize("code", [None, "", 7, ["print(1)"], {"a": 1}, "\0", "(" * 1000], ids=repr)
def test_whatever_the_model_passes_is_answered(source, code):
    model, _, reply = run(source, call(code), ANSWER)
    assert model.said("tool")
    assert reply.text == "\\boxed{42}"


def test_the_catalogue_is_sound():
    check_catalogue(CATALOGUE)
    kinds = [edit.kind for edit in CATALOGUE]
    assert len(CATALOGUE) >= 10
    assert 3 * (len(kinds) - kinds.count("useful")) >= len(kinds)
    assert len({edit.axis for edit in CATALOGUE}) == 6
    assert all(edit.addresses for edit in CATALOGUE)
    assert all(edit.hypothesis.count(".") == 1 for edit in CATALOGUE if "..." not in edit.hypothesis)


@pytest.mark.parametrize("edit", CATALOGUE, ids=lambda edit: edit.name)
def test_each_edit_applies_to_h0_once(edit):
    changed = edit.apply(H0)
    assert changed is not None
    assert check_source(changed) == []
    assert edit.apply(changed) is None
    assert edit.apply("x = 1\n") is None


def test_the_prompt_edits_are_open_to_a_prompt_only_search():
    prompts = [edit.name for edit in CATALOGUE if not prompt_only_errors(edit.apply(H0) or "", H0)]
    assert {"run_code_first", "number_alone", "always_box", "think_at_length"} <= set(prompts)


SCRIPTS = [
    (ANSWER,),
    (say("</think>no idea"),),
    (say("never ends", "length"),),
    (call("```python\n1/0\n```"), call("x = 1"), call("6 * 7"), ANSWER),
    (call("print(1)"),),
    (say("</think><tool_call>broken"), call(None), ANSWER),
]


@pytest.mark.parametrize("seed", range(30))
@BOTH
def test_any_sequence_of_edits_gives_a_working_harness(source, seed):
    rng = random.Random(seed)
    for edit in rng.sample(CATALOGUE, rng.randrange(1, len(CATALOGUE) + 1)):
        source = edit.apply(source) or source
    assert check_source(source) == []
    assert "{question}" in read_info(source).prompts["USER_PROMPT"]
    for script in SCRIPTS:
        assert run(source, *script)[0].turns <= 9


def test_what_single_edits_do():
    one = (call("x = 1\nwhile True:\n    break"), ANSWER)
    assert "SyntaxError" in run(H0, *one)[0].said("tool")[0]
    assert run(edited("print_soundly"), *one)[0].said("tool")[0].startswith("No output")
    assert run(edited("print_soundly"), call("6 * 7"), ANSWER)[0].said("tool") == ["42\n"]
    assert run(edited("dedent_code"), call("    x = 1\n    x"), ANSWER)[0].said("tool") == ["1\n"]
    assert run(edited("drop_prompt_marks"), call(">>> print(1)"), ANSWER)[1].ran == ["print(1)"]
    assert run(edited("drop_comments"), call("# a\nprint(1)"), ANSWER)[1].ran == ["print(1)"]
    assert run(edited("last_line_only"), call("x = 1\nprint(1)"), ANSWER)[1].ran == ["print(1)"]
    assert "Correct it" in run(edited("ask_for_repair"), call("1/0"), ANSWER)[0].said("tool")[0]
    assert "Traceback" not in run(edited("short_errors"), call("1/0"), ANSWER)[0].said("tool")[0]
    assert "print(...)" in run(edited("ask_for_print"), call("x = 1"), ANSWER)[0].said("tool")[0]
    assert run(edited("frame_result"), call("1"), ANSWER)[0].said("tool") == ["[output]\n1\n[end of output]"]
    assert run(edited("hide_errors"), call("1/0"), ANSWER)[0].said("tool") == ["Done."]
    assert run(edited("ask_for_box"), say("</think>hm"), ANSWER)[2].text == "\\boxed{42}"
    assert len(run(edited("ask_for_code"), ANSWER)[0].said("user")) == 2
    assert len(run(edited("explain_call_format"), say("</think><tool_call>"), ANSWER)[0].said("user")) == 2
    assert len(run(edited("doubt_every_answer"), ANSWER)[0].said("user")) == 2
    assert run(edited("more_turns"), call("1"))[0].turns == 4
    assert run(edited("single_turn"), call("1"))[0].turns == 1
    assert "last turn" in run(edited("announce_last_turn"), call("1"), ANSWER)[0].said("tool")[0]
    assert run(edited("close_thinking"), say("on", "length"))[0].said("extend")
    assert "Python" in run(edited("run_code_first"), ANSWER)[0].said("system")[0]
