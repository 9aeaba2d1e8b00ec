"""The static contract: what is refused without running a line, and what is read from the syntax tree."""

import copy
import pickle

import pytest

from harness_search.contract import (
    ALLOWED_MODULES,
    MAX_SOURCE_BYTES,
    HarnessError,
    TaskView,
    check_source,
    placeholders,
    read_info,
)

RUN = "async def run(task, model, env):\n    return await model.chat().reply()\n"

BROKEN = {
    "J226 syntax error": ("def f(:\n", "line 1: syntax error"),
    "empty": ("", "exactly once"),
    "NUL": (RUN + "\0", "NUL character"),
    "lone surrogate": (RUN + "x = '\ud800'", "surrogate"),
    "too long": (RUN + "#" * MAX_SOURCE_BYTES, "bytes, more than"),
    "absurdly nested": (RUN + "x = " + "-" * 100_000 + "1", "cannot be parsed"),
    "long chain": (RUN + "x = 1" + "+1" * 60_000, "cannot be parsed"),
    "too many brackets": (RUN + "x = " + "(" * 1_000, "syntax error"),
    "huge integer": (RUN + "x = " + "9" * 10_000, "syntax error"),
    "no run": ("x = 1\n", "exactly once"),
    "two runs": (RUN + RUN, "exactly once"),
    "run not async": ("def run(task, model, env): pass\n", "must be"),
    "run a class": ("class run: pass\n", "must be"),
    "run inside a function": ("def f():\n    async def run(task, model, env): pass\n", "exactly once"),
    "other parameters": ("async def run(task, model): pass\n", "exactly"),
    "renamed parameters": ("async def run(a, b, c): pass\n", "exactly"),
    "star arguments": ("async def run(task, model, env, *args): pass\n", "exactly"),
    "defaults": ("async def run(task, model, env=None): pass\n", "without defaults"),
    "decorated": ("@f\n" + RUN, "undecorated"),
    "import os": ("import os\n" + RUN, "'os' may not be imported"),
    "import from os": ("from os.path import join\n" + RUN, "'os.path' may not be imported"),
    "import inside a function": (RUN + "    import socket\n", "'socket'"),
    "one of several imports": ("import json, chess\n" + RUN, "'chess'"),
    "import numpy": ("import numpy as np\n" + RUN, "'numpy'"),
    "relative import": ("from . import x\n" + RUN, "relative"),
    "TOOLS not a list": ("TOOLS = {}\n" + RUN, "list of JSON objects"),
    "TOOLS computed": ("TOOLS = [dict(name='f')]\n" + RUN, "literal"),
    "TOOLS with a tuple": ("TOOLS = [{'name': 'f', 'x': (1,)}]\n" + RUN, "JSON values"),
    "TOOLS with a number as key": ("TOOLS = [{'name': 'f', 1: 2}]\n" + RUN, "JSON values"),
    "TOOLS with NaN": ("TOOLS = [{'name': 'f', 'x': 1e999}]\n" + RUN, "JSON values"),
    "TOOLS with a set": ("TOOLS = [{'name': 'f', 'x': {1}}]\n" + RUN, "JSON values"),
    "TOOLS without a name": ("TOOLS = [{'type': 'function'}]\n" + RUN, "no function name"),
    "TOOLS assigned twice": ("TOOLS = []\nTOOLS = []\n" + RUN, "exactly once"),
    "TOOLS assigned in a function": ("TOOLS = []\ndef f():\n    TOOLS = 1\n" + RUN, "exactly once"),
    "prompt computed": ("A_PROMPT = 'a' + 'b'\n" + RUN, "plain string literal"),
    "prompt an f-string": ("A_PROMPT = f'a{1}'\n" + RUN, "plain string literal"),
    "prompt bytes": ("A_PROMPT = b'a'\n" + RUN, "plain string literal"),
    "prompt assigned twice": ("A_PROMPT = 'a'\nA_PROMPT = 'b'\n" + RUN, "exactly once"),
    "prompt extended": ("A_PROMPT = 'a'\nA_PROMPT += 'b'\n" + RUN, "exactly once"),
    "prompt in a loop": ("for A_PROMPT in ['a']: pass\n" + RUN, "exactly once"),
    "prompt by walrus": ("A_PROMPT = 'a'\nif (A_PROMPT := 'b'): pass\n" + RUN, "exactly once"),
    "placeholder with an attribute": ("A_PROMPT = '{task.question}'\n" + RUN, "plain placeholder"),
    "placeholder with an index": ("A_PROMPT = '{a[0]}'\n" + RUN, "plain placeholder"),
    "placeholder with a format": ("A_PROMPT = '{a:>10}'\n" + RUN, "plain placeholder"),
}

SOUND = {
    "smallest": RUN,
    "docstring and comments": '"""A harness."""\n# why\n' + RUN,
    "allowed imports": "from __future__ import annotations\nimport asyncio, re, json\nfrom collections import deque\n"
    + RUN,
    "submodule": "import collections.abc\n" + RUN,
    "annotated constants": "TOOLS: list = []\nA_PROMPT: str = 'a {b}'\n" + RUN,
    "joined string": "A_PROMPT = 'a'\\\n    'b'\n" + RUN,
    "braces that are text": """A_PROMPT = '{"query": ["x"]} {{not.a.field}} {question}'\n""" + RUN,
    "bad escape": "import re\nX = re.compile('\\d')\n" + RUN,
    "flat tool": "TOOLS = [{'name': 'search', 'parameters': {'a': None, 'b': True}}]\n" + RUN,
    "prompt read in functions": "A_PROMPT = 'a'\ndef f(): return A_PROMPT\n" + RUN,
}


@pytest.mark.parametrize(("source", "message"), BROKEN.values(), ids=BROKEN.keys())
def test_broken_source_is_refused_with_its_reason(source: str, message: str) -> None:
    problems = check_source(source)
    assert any(message in problem for problem in problems), problems
    with pytest.raises(HarnessError):
        read_info(source)


@pytest.mark.parametrize("source", SOUND.values(), ids=SOUND.keys())
def test_sound_source_passes(source: str) -> None:
    assert check_source(source) == []


def test_every_problem_is_named_at_once() -> None:
    problems = check_source("import os\nTOOLS = 1\nA_PROMPT = 2\n")
    assert len(problems) == 4


def test_info_holds_tools_and_prompts_as_written() -> None:
    tools = [{"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}]
    info = read_info(
        f"TOOLS = {tools!r}\nSYSTEM_PROMPT = 'Be brief.'\nUSER_PROMPT = '{{question}}'\nOTHER = 'x'\n{RUN}"
    )
    assert list(info.tools) == tools
    assert info.prompts == {"SYSTEM_PROMPT": "Be brief.", "USER_PROMPT": "{question}"}


def test_placeholders_are_the_plain_fields() -> None:
    assert placeholders('{a} {{b}} {c_1} {"d": 1} {}') == {"a", "c_1"}


def test_task_view_gives_inputs_as_attributes_and_nothing_else() -> None:
    task = TaskView("t1", {"question": "Why?"})
    assert (task.id, task.question, task.inputs["question"]) == ("t1", "Why?", "Why?")
    with pytest.raises(AttributeError, match="no input 'reference'"):
        _ = task.reference
    assert pickle.loads(pickle.dumps(task)) == copy.deepcopy(task) == task


def test_no_module_that_reaches_the_machine_is_allowed() -> None:
    reaching = {"os", "sys", "io", "pathlib", "socket", "subprocess", "ctypes", "importlib", "threading", "builtins"}
    assert not ALLOWED_MODULES & reaching
