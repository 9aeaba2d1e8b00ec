"""What makes a candidate invalid, and that every reason is told at once."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping

import pytest

from harness_search.canonical import fingerprint
from harness_search.contract import Budgets, TaskView
from harness_search.overfit import OverfitCheck
from harness_search.sandbox.backends import Backend, detect
from harness_search.sandbox.scripted import ScriptedHost
from harness_search.validate import ScriptedEpisode, SearchSpace, Validator, prompt_only_errors

H0 = """
TOOLS = []
SYSTEM_PROMPT = "You answer."
USER_PROMPT = "{question}\\nAnswer with one word."
HINT_PROMPT = "Use braces like {{this}}."
TURNS = 1

async def run(task, model, env):
    chat = model.chat(system=SYSTEM_PROMPT, tools=TOOLS)
    chat.user(USER_PROMPT.format(question=task.question))
    return await chat.reply()
"""
QUESTION = "In which country does the river that flows through Bergama rise?"
BUDGETS = Budgets(assistant_tokens=100, turns=3, tool_calls=2, wall_seconds=10.0)


@pytest.fixture(scope="module")
def backend() -> Backend:
    return detect("auto")


def check(
    source: str,
    backend: Backend,
    *,
    space: SearchSpace = SearchSpace.FULL,
    archived: Mapping[str, str] | None = None,
) -> tuple[str, ...]:
    task = TaskView("probe", {"question": "Is this a test?"})
    scripted = ScriptedEpisode(task, lambda: ScriptedHost(["</think>yes"], budgets=BUDGETS), BUDGETS)
    texts = [QUESTION, "yes", "Who was Ada?"]
    validator = Validator(h0=H0, search_space=space, backend=backend, scripted=scripted, harness_task_texts=texts)
    return asyncio.run(validator(source, archived or {}))


def body(code: str) -> str:
    """H0 with another line at the start of `run`."""
    return H0.replace("    chat = model", f"    {code}\n    chat = model")


def test_a_sound_candidate_has_no_errors(backend: Backend) -> None:
    assert check(H0.replace("You answer.", "You answer briefly."), backend) == ()


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ("def run(:", "syntax error"),
        ("async def run(task, model):\n    return None\n", "async def run"),
        ("import socket\n" + H0, "socket"),
        ("\ud800" + H0, "surrogate"),
        (H0 + "\n1 / 0\n", "does not load in the sandbox"),
        (body("raise KeyError('lost')"), r"scripted episode \(harness_error\).*lost"),
        (H0.replace("return await chat.reply()", "return 'yes'"), r"scripted episode \(invalid_return\)"),
        (H0.replace("{question}", "{question} {more}"), r"scripted episode \(harness_error\).*more"),
    ],
)
def test_each_fault_is_named(backend: Backend, source: str, word: str) -> None:
    errors = check(source, backend)
    assert len(errors) == 1
    assert re.search(word, errors[0], re.DOTALL)


def test_a_harness_that_plays_until_its_budget_is_sound(backend: Backend) -> None:
    forever = "while True:\n        await chat.reply()\n        chat.user('on')"
    loop = H0.replace("return await chat.reply()", forever)
    assert check(loop, backend) == ()


def test_all_errors_are_told_at_once(backend: Backend) -> None:
    source = H0.replace("TURNS = 1", f"TURNS = 2\nKNOWN = {QUESTION!r}") + "\n1 / 0\n"
    errors = check(source, backend, space=SearchSpace.PROMPT_ONLY, archived={fingerprint(source): "007"})
    assert [error.split(":")[0].split(" ")[0] for error in errors] == ["is", "holds", "prompt-only", "does"]
    assert "candidate 007" in errors[0]


def test_errors_hold_no_addresses(backend: Backend) -> None:
    errors = check(body("raise ValueError(object())"), backend)
    assert "0x…" in errors[0]
    assert check(body("raise ValueError(object())"), backend) == errors


def test_copies_differ_in_layout_alone() -> None:
    assert fingerprint(H0) == fingerprint("# a comment\n" + H0.replace("TURNS = 1", "TURNS   =   1"))
    assert fingerprint(H0) == fingerprint('"""A docstring."""\n' + H0)
    assert fingerprint(H0) != fingerprint(H0.replace("TURNS = 1", "TURNS = 2"))
    assert fingerprint("TEXT = __doc__\n") != fingerprint('"""A prompt."""\nTEXT = __doc__\n')
    assert fingerprint("def run(:") == fingerprint("def  run(:\n") != fingerprint("def run(")
    assert fingerprint("\ud800") != fingerprint("\ud801")
    assert fingerprint("(" * 100_000)


@pytest.mark.parametrize(
    "changed",
    [
        H0.replace("You answer.", "Other text, with é and 'quotes'."),
        H0.replace("{question}\\nAnswer with one word.", "Q: {question}\\nA: ({{sure}})"),
        "# free comments\n" + H0,
        H0.replace('"You answer."', '("Two " "pieces.")'),
    ],
)
def test_prompt_only_allows_texts(changed: str) -> None:
    assert prompt_only_errors(changed, H0) == []


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        (H0.replace("TURNS = 1", "TURNS = 2"), "more than the text"),
        (H0.replace("{question}", "the question"), "must keep exactly the placeholders {question}, found (none)"),
        (H0.replace("{question}", "{question} {question_id}"), "found {question}, {question_id}"),
        (H0.replace("{question}", "{question} {"), "braces that are no placeholder"),
        (H0.replace("{question}", "{question} {}"), "braces that are no placeholder"),
        (H0.replace("{{this}}", "{this}"), "HINT_PROMPT must keep"),
        (H0 + '\nEXTRA_PROMPT = "new"\n', "more than the text"),
        (H0.replace("SYSTEM_PROMPT", "OTHER_PROMPT"), "more than the text"),
        (H0.replace("TOOLS = []", 'TOOLS = [{"name": "f"}]'), "more than the text"),
        (H0.replace("async def run", "async  def run").replace("chat.user", "'x'; chat.user"), "more than the text"),
    ],
)
def test_prompt_only_refuses_everything_else(changed: str, word: str) -> None:
    errors = prompt_only_errors(changed, H0)
    assert any(word in error for error in errors), errors


def test_prompt_only_leaves_a_text_free_that_h0_cannot_format() -> None:
    h0 = H0.replace("Use braces like {{this}}.", "Write { now.")
    assert prompt_only_errors(h0.replace("Write { now.", "Write {}."), h0) == []


LONG = OverfitCheck([QUESTION, "Who was Ada?", "short", "You answer with one word, please, and nothing else at all."])


@pytest.mark.parametrize(
    "source",
    [
        f"HINT = {QUESTION!r}",
        f"# {QUESTION}",
        f"HINT = {QUESTION.upper()!r}",
        f"HINT = {QUESTION[5:45]!r}",
        f"HINT = {QUESTION[:20]!r} + {QUESTION[20:]!r}",
        f"HINT = ' '.join({QUESTION.split()!r})",
        f"HINT = {QUESTION.encode()!r}",
        "HINT = '" + "".join(f"\\x{ord(char):02x}" for char in QUESTION) + "'",
        "HINT = 'who  was\\nada?'",
        f"def broken(:  # {QUESTION}",
    ],
)
def test_overfit_finds_long_stretches_and_whole_questions(source: str) -> None:
    assert LONG.errors(source)


@pytest.mark.parametrize("source", [f"HINT = {QUESTION[5:44]!r}", "HINT = 'short'", "HINT = 'Who was Bob?'", H0, ""])
def test_overfit_leaves_common_words_alone(source: str) -> None:
    assert LONG.errors(source) == []


def test_overfit_does_not_count_what_the_initial_harness_says_itself() -> None:
    common = "Answer the question below in one word, and think before you do."
    check = OverfitCheck([common + " " + QUESTION], allowed_source=f"P = {common!r}")
    assert check.errors(f"P = {common!r}") == []
    assert len(check.errors(f"P = {QUESTION!r}")) == 1
