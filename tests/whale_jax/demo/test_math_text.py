"""The text that the mathematics demo model learns from."""

import random
from dataclasses import replace

import pytest

from tests.whale_jax.demo.wording import shared
from whale_jax.demo.courses import COURSES
from whale_jax.demo.math import programs, prompts, stream
from whale_jax.demo.math.episodes import BASE, chat_episode, malformed_call
from whale_jax.demo.math.programs import Form, Slip
from whale_jax.demo.spans import Span
from whale_jax.demo.tokenizer import DEMO_DIR
from whale_jax.domains.math import catalogue, h0, strong
from whale_jax.domains.math.boxed import last_boxed
from whale_jax.domains.math.problems import FAMILIES, Kind
from whale_jax.qwen3_5.template import ChatTemplate
from whale_jax.rollout.tool_calls import parse

FLAWLESS = replace(BASE, flaws=0.0)


@pytest.fixture(scope="module")
def template() -> ChatTemplate:
    return ChatTemplate.from_dir(DEMO_DIR)


def said(spans: list[Span]) -> list[str]:
    """The finished assistant turns."""
    return [span.text.removesuffix("<|im_end|>") for span in spans if span.text.endswith("<|im_end|>") and span.weight]


def test_no_problem_of_any_split_occurs() -> None:
    rng = random.Random(1)
    drawn = [stream.problem(rng) for _ in range(3000)]
    assert len(stream.demo_ids()) == 3000
    assert not {problem.id for problem in drawn} & stream.demo_ids()
    assert {problem.kind for problem in drawn} == set(Kind)


@pytest.mark.parametrize("kind", list(Kind))
def test_a_right_program_prints_the_answer_and_a_wrong_one_seldom(kind: Kind) -> None:
    rng = random.Random(2)
    lucky = 0
    for _ in range(30):
        problem = stream.problem(rng, kind)
        answer = str(FAMILIES[kind].solve(*problem.parameters))
        for program in programs.RIGHT[kind]:
            for form in (Form.PRINTED, Form.NAMED):
                assert programs.printed(programs.written(program.filled(problem.parameters), form)).strip() == answer
        wrong = rng.choice(programs.WRONG[kind]).filled(problem.parameters)
        lucky += programs.printed(programs.written(wrong, Form.PRINTED)).strip() == answer
    assert lucky < 20


def test_forms_and_slips_do_what_they_say() -> None:
    code = programs.written(programs.RIGHT[Kind.MULTIPLE][0].filled((4, 6)), Form.PRINTED)
    assert programs.printed(code) == "12\n"
    assert programs.printed(programs.written(programs.RIGHT[Kind.PRODUCT][0].filled((4, 6)), Form.SILENT)) == ""
    assert "SyntaxError" in programs.printed(programs.with_slip(code, Slip.UNCLOSED))
    assert "NameError" in programs.printed(programs.with_slip(code, Slip.NO_IMPORT))
    for slip, error in ((Slip.INDENTED, "IndentationError"), (Slip.MARKED, "SyntaxError")):
        slipped = programs.with_slip(code, slip)
        assert error in programs.printed(programs.shown(slipped, wraps=False, cleans=False))
        assert programs.printed(programs.shown(slipped, wraps=False, cleans=True)) == "12\n"
    fenced = programs.with_slip(code, Slip.FENCED)
    assert programs.printed(programs.shown(fenced, wraps=False, cleans=False)) == "12\n"
    assert programs.printed(programs.shown("4 * 6", wraps=True, cleans=False)) == "24\n"


def test_an_assistant_without_flaws_runs_code_and_boxes_the_answer(template: ChatTemplate) -> None:
    rng = random.Random(3)
    right = 0
    for _ in range(60):
        problem = stream.problem(rng)
        turns = said(chat_episode(rng, problem, template, manner=FLAWLESS))
        (call,) = parse(turns[0], h0.TOOLS)
        assert call.name == "code_interpreter"
        answer = str(FAMILIES[problem.kind].solve(*problem.parameters))
        right += last_boxed(turns[-1].rpartition("</think>")[2]) == answer
    assert right > 40  # a harness that does not print a bare last line costs some


def test_a_flawed_assistant_fails_often_and_in_many_ways(template: ChatTemplate) -> None:
    rng = random.Random(4)
    turns = [said(chat_episode(rng, stream.problem(rng), template)) for _ in range(200)]
    assert 20 < sum(not t or "\\boxed{" not in t[-1] for t in turns) < 150
    assert 8 < sum(not t or "<tool_call>" not in t[0] for t in turns) < 100


def test_a_malformed_call_is_not_read() -> None:
    rng = random.Random(5)
    for _ in range(30):
        calls = parse(malformed_call(rng, "print(1)"), h0.TOOLS)
        assert not any(call.name == "code_interpreter" and call.arguments.get("code") for call in calls)


def test_texts_repeat_with_their_seed_and_fit_the_rows(template: ChatTemplate) -> None:
    def draw(seed: int) -> list[list[Span]]:
        rng = random.Random(seed)
        return [stream.spans(rng, template, progress) for progress in (0.0, 0.5, 1.0)]

    assert draw(6) == draw(6) != draw(7)
    assert stream.exercise(random.Random(8))[-1] == Span("<|endoftext|>", 1.0)
    assert COURSES["math"].row_len >= 640


@pytest.mark.parametrize("module", [catalogue, strong])
def test_no_edit_says_what_the_model_was_trained_to_obey(module) -> None:
    assert not shared(module, prompts, h0)
