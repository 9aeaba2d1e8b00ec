"""h0, the strong harness and every composition of catalogue edits, run against a model that says what it is told to."""

import asyncio
import random
from types import SimpleNamespace

import pytest

from harness_search.contract import check_source, read_info
from harness_search.proposers.edits import check_catalogue
from whale_jax.domains.registry import load_domain
from whale_jax.domains.searchqa.catalogue import CATALOGUE
from whale_jax.domains.task import Split

DOMAIN = load_domain("searchqa")
TASK = DOMAIN.tasks(Split.VALIDATION)[0]


class FakeModel:
    """Offers what `model` and its chats offer inside the sandbox; replies come from a list, the last one for ever."""

    def __init__(self, *replies, tokens=192):
        self.budgets = SimpleNamespace(assistant_tokens=tokens, turns=6, tool_calls=12)
        self.replies, self.turns, self.log = list(replies), 0, []

    def chat(self, system=None, tools=None):
        self.log.append(("system", system))
        return self

    def user(self, text):
        self.log.append(("user", text))

    def tool(self, text):
        self.log.append(("tool", text))

    async def reply(self, max_tokens=None):
        calls, raw, finish = self.replies[min(self.turns, len(self.replies) - 1)]
        self.turns += 1
        thinking, _, text = raw.rpartition("</think>")
        self.log.append(("reply", raw))
        return SimpleNamespace(
            text=text,
            thinking=thinking,
            raw=raw,
            finish=finish,
            remaining=SimpleNamespace(tokens=9, turns=9, tool_calls=9),
            tool_calls=[SimpleNamespace(name="search", arguments=arguments) for arguments in calls],
        )

    async def extend_reply(self, text, max_tokens=None):
        self.log.append(("extend", text))
        return await self.reply(max_tokens)

    def said(self, kind):
        return [text for found, text in self.log if found == kind]


class FakeEnv:
    """`env` as a harness sees it, on the real search."""

    async def search(self, *args, **kwargs):
        return await DOMAIN.env(TASK).call("search", args, kwargs)


def say(text, finish="stop"):
    return [], text, finish


def call(*queries, **arguments):
    return [{"query_list": list(queries), **arguments}], "</think><tool_call>…</tool_call>", "stop"


def run(source, *replies):
    names = {}
    exec(compile(source, "harness.py", "exec"), names)
    model = FakeModel(*replies)
    task = SimpleNamespace(id=TASK.id, question=TASK.inputs["question"])
    reply = asyncio.run(names["run"](task, model, FakeEnv()))
    return model, reply


def edited(*edit_names, source=DOMAIN.h0):
    for edit_name in edit_names:
        (edit,) = [edit for edit in CATALOGUE if edit.name == edit_name]
        source = edit.apply(source)
        assert source is not None, edit_name
    return source


ANSWER = say("</think><answer>S</answer>")


def test_h0_runs_the_first_query_shows_one_passage_and_returns_the_second_reply():
    model, reply = run(DOMAIN.h0, call("Turkey capital", "Kenya capital"), call("Turkey currency"))
    (result,) = model.said("tool")
    assert "Doc 1 (Title: Turkey)" in result
    assert "Doc 2" not in result
    assert (model.turns, reply.raw) == (2, "</think><tool_call>…</tool_call>")


def test_h0_takes_an_answer_without_a_search():
    model, reply = run(DOMAIN.h0, ANSWER)
    assert (model.turns, reply.text) == (1, "<answer>S</answer>")


@pytest.mark.parametrize("query_list", [None, "Turkey", [], [None], 7, {"a": 1}, [["x"]]], ids=repr)
@pytest.mark.parametrize("source", [DOMAIN.h0, DOMAIN.strong], ids=["h0", "strong"])
def test_whatever_the_model_passes_is_answered(source, query_list):
    model, reply = run(source, ([{"query_list": query_list}], "</think>", "stop"), ANSWER)
    assert model.said("tool")
    assert reply.text == "<answer>S</answer>"


def test_strong_shows_no_passage_twice_and_announces_the_last_turn():
    model, _ = run(DOMAIN.strong, call("Turkey capital"), call("Turkey capital"), call("Kenya capital"), ANSWER)
    first, second, third = model.said("tool")
    assert first.count("Doc ") == third.count("Doc ") == 3
    assert "Nothing new" in second
    assert "No turn is left" in third
    assert "No turn is left" not in first + second


def test_strong_talks_back_and_closes_thinking():
    model, reply = run(
        DOMAIN.strong, say("thinking on and on", "length"), say("</think>no idea"), call("Turkey"), ANSWER
    )
    assert model.said("extend") == ["\n</think>\n\n"]
    assert len(model.said("user")) == 2
    assert reply.text == "<answer>S</answer>"


def test_the_catalogue_is_sound():
    check_catalogue(CATALOGUE)
    kinds = [edit.kind for edit in CATALOGUE]
    assert len(CATALOGUE) >= 12
    assert 3 * (len(kinds) - kinds.count("useful")) >= len(kinds)
    assert len({edit.axis for edit in CATALOGUE}) == 6
    assert all(edit.addresses for edit in CATALOGUE)


@pytest.mark.parametrize("edit", CATALOGUE, ids=lambda edit: edit.name)
def test_each_edit_applies_to_h0_once(edit):
    changed = edit.apply(DOMAIN.h0)
    assert changed is not None
    assert check_source(changed) == []
    assert edit.apply(changed) is None
    assert edit.apply("x = 1\n") is None


SCRIPTS = [
    (ANSWER,),
    (say("</think>no idea"),),
    (say("never ends", "length"),),
    (call("Turkey capital", "Ankara"), call("zzz"), call(), ANSWER),
    (call("Turkey capital"),),
    (say("</think><tool_call>broken"), call("Turkey capital"), ANSWER),
]


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("source", [DOMAIN.h0, DOMAIN.strong], ids=["h0", "strong"])
def test_any_sequence_of_edits_gives_a_working_harness(source, seed):
    rng = random.Random(seed)
    for edit in rng.sample(CATALOGUE, rng.randrange(1, len(CATALOGUE) + 1)):
        source = edit.apply(source) or source
    assert check_source(source) == []
    assert read_info(source).prompts["USER_PROMPT"].count("{question}") >= 1
    for script in SCRIPTS:
        model, _ = run(source, *script)
        assert model.turns <= 9


def test_what_single_edits_do():
    two = (call("Turkey capital", "Kenya capital"), ANSWER)
    assert run(edited("all_queries"), *two)[0].said("tool")[0].count("Doc ") == 2
    assert run(edited("three_passages"), *two)[0].said("tool")[0].count("Doc ") == 3
    assert run(edited("question_as_query"), *two)[0].said("tool")[0].count("Doc ") == 2
    assert "city" not in run(edited("short_passages"), *two)[0].said("tool")[0]
    assert run(edited("more_turns"), call("Turkey"))[0].turns == 4
    assert run(edited("single_turn"), *two)[0].turns == 1
    assert "No turn is left" in run(edited("announce_last_turn"), *two)[0].said("tool")[0]
    assert run(edited("ask_for_tags"), say("</think>hm"), ANSWER)[1].text == "<answer>S</answer>"
    assert len(run(edited("ask_for_search"), ANSWER)[0].said("user")) == 2
    assert len(run(edited("explain_call_format"), say("</think><tool_call>"), ANSWER)[0].said("user")) == 2
    assert len(run(edited("doubt_every_answer"), ANSWER)[0].said("user")) == 2
    assert "other words" in run(edited("suggest_other_words"), call("zzz"), ANSWER)[0].said("tool")[0]
    assert TASK.inputs["question"].lower() in run(edited("lower_case_question"), ANSWER)[0].said("user")[0]
    assert run(edited("plain_result"), *two)[0].said("tool")[0].startswith("Doc 1")
    assert run(edited("close_thinking"), say("on", "length"))[0].said("extend")
    reverse = run(edited("three_passages", "reverse_documents"), *two)[0].said("tool")[0]
    assert reverse.startswith('{"result": "Doc 3')
