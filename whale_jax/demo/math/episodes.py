"""Whole conversations about problems that no split of the demo holds, with the flaws of a small base model.

The assistant mostly writes a program, runs it and boxes what it printed. At rates that depend on what the conversation
told it, it calculates in its head, writes another program than the one asked for, does not print, slips in writing,
forgets the box, or never ends a thought.
"""

import random
from dataclasses import dataclass

from whale_jax.demo.conversation import PROMPT_WEIGHT, Conversation
from whale_jax.demo.math import programs, prompts
from whale_jax.demo.math.programs import Form, Program, Slip
from whale_jax.demo.math.prompts import Axis
from whale_jax.demo.spans import Rates, Span, Told
from whale_jax.domains.math.problems import Problem
from whale_jax.qwen3_5.template import ChatTemplate

OUTPUT_WEIGHT = 0.05
"""Loss weight of what a program printed."""

RUN_THOUGHTS = (
    "I compute it with Python.",
    "Let me run code.",
    "A short program gives the answer.",
    "I will use code.",
    "Python can do this.",
    "I write a program.",
)
REPAIR_THOUGHTS = ("The code failed. I correct it.", "An error. I try again.", "I fix the program.")
SILENT_THOUGHTS = ("Nothing was printed. I print it.", "I forgot to print.", "I need to print the result.")
ANSWER_THOUGHTS = (
    "The output is {value}.",
    "The code printed {value}.",
    "So the answer is {value}.",
    "It is {value}.",
    "The result is there.",
    "I have the answer.",
)
HEAD_THOUGHTS = ("I can do this in my head.", "This is easy.", "Maybe it is {value}.", "I guess {value}.", "I know it.")
LOOPS = ("I need to think about this.", "Let me think again.", "Wait, is that right?", "First, the numbers.")
GIVE_UP = ("I do not know.", "I could not solve it.", "\\boxed{unknown}", "The code does not work.", "I am not sure.")
LEADS = ("The answer is ", "Answer: ", "So we get ", "The result: ")


@dataclass(frozen=True)
class Manner:
    """One assistant; each pair of rates is (untold, told).

    Attributes:
        flaws: scale of all rates.
        in_head: answers without running code.
        wrong_program: computes something else than was asked.
        silent: does not print.
        slips: a fault of writing in the code.
        malformed: a call that no parser can use.
        quits: gives up or guesses after a run that gave nothing.
        unboxed: no box around the answer.
        words: words or a formula in the box.
        loses_itself: never ends a thought.
    """

    flaws: float = 1.0
    in_head: Rates = (0.20, 0.06)
    wrong_program: Rates = (0.30, 0.30)
    silent: Rates = (0.16, 0.04)
    slips: Rates = (0.16, 0.08)
    malformed: Rates = (0.08, 0.03)
    quits: Rates = (0.50, 0.15)
    unboxed: Rates = (0.45, 0.22)
    words: Rates = (0.20, 0.05)
    loses_itself: Rates = (0.04, 0.01)


BASE = Manner()


@dataclass(kw_only=True)
class _Episode(Conversation):
    problem: Problem
    manner: Manner
    wraps: bool
    """The harness prints a bare last line."""
    cleans: bool
    """The harness cleans code up."""
    value: str | None = None
    """What the last program printed, if that was a result."""
    failed: bool = False
    """The last program ended with an error."""
    runs: int = 0
    ending: bool = False
    """The environment said that the next turn is the last."""

    def open(self, template: ChatTemplate, system: str | None, user: str, *, announce: bool) -> None:
        messages = ([{"role": "system", "content": system}] if system else []) + [{"role": "user", "content": user}]
        tools = [prompts.code_tool(self.rng)] if announce else []
        rendered = template.render(messages, tools=tools, thinking=self.thinking, generation_prompt=True)
        self.spans.append(Span("".join(span.text for span in rendered), PROMPT_WEIGHT))

    # What the assistant does. Each returns True when the episode goes on.

    def acts(self, turn: int, *, last_turn: bool) -> bool:
        """One assistant turn, and what the environment says to it."""
        rng, manner = self.rng, self.manner
        if self.thinking and self.happens(Axis.SHORT, manner.loses_itself) and not self.loses_itself(LOOPS):
            return False
        if self.value is not None:
            return self._answers(rng.choice(ANSWER_THOUGHTS).format(value=self.value), self.value)
        if self.ending and rng.random() < 0.9:
            return self._guesses()
        if turn == 0 and self.happens(Axis.CODE, manner.in_head):
            return self._guesses()
        if self.runs and self.happens(Axis.REPAIR, manner.quits):
            if rng.random() < 0.6:
                return self._guesses()
            self.say("I cannot do it.", rng.choice(GIVE_UP))
            return self._nudged(prompts.NUDGE_BOX, Axis.BOX)
        return self._runs_code(last_turn=last_turn)

    def _guesses(self) -> bool:
        value = programs.guess(self.rng)
        goes_on = self._answers(self.rng.choice(HEAD_THOUGHTS).format(value=value), value)
        if not goes_on and not self.runs and not self.ending:
            return self._nudged(prompts.NUDGE_CODE, Axis.CODE)
        return goes_on

    def _answers(self, thought: str, value: str) -> bool:
        rng = self.rng
        unboxed = self.happens(Axis.BOX, self.manner.unboxed)
        if unboxed:
            text = rng.choice((value, f"{rng.choice(LEADS)}{value}.", f"**{value}**", f"\\box{{{value}}}"))
        elif self.happens(Axis.NUMBER, self.manner.words):
            text = rng.choice(
                (f"\\boxed{{The answer is {value}}}", f"\\boxed{{{value} or so}}", f"\\boxed{{{value} = x}}")
            )
        else:
            text = f"{rng.choice(LEADS) if rng.random() < 0.15 else ''}\\boxed{{{value}}}"
        self.say(thought, text)
        return unboxed and self._nudged(prompts.NUDGE_BOX, Axis.BOX)

    def _nudged(self, texts: tuple[str, ...], axis: Axis) -> bool:
        if self.rng.random() > 0.5:
            return False
        self.hear(self.rng.choice(texts))
        self.told.add(axis)
        return True

    def _runs_code(self, *, last_turn: bool) -> bool:
        rng = self.rng
        code = self._code()
        thoughts = RUN_THOUGHTS if not self.runs else REPAIR_THOUGHTS if self.failed else SILENT_THOUGHTS
        if self.happens(Axis.CALL, self.manner.malformed):
            self.say(rng.choice(thoughts), malformed_call(rng, code))
            return self._nudged(prompts.NUDGE_CALL, Axis.CALL)
        self.say(rng.choice(thoughts), call(code))
        output = programs.printed(programs.shown(code, wraps=self.wraps, cleans=self.cleans))
        self.runs += 1
        self.failed = "Error" in output
        self.value = None if self.failed or not output else output.strip()
        result = self._result(output, last_turn=last_turn).strip()
        self.hear(f"<tool_response>\n{result}\n</tool_response>", OUTPUT_WEIGHT)
        return True

    def _code(self) -> str:
        rng, manner = self.rng, self.manner
        kind = self.problem.kind
        wrong = self.happens(Axis.CODE, manner.wrong_program)
        program: Program = rng.choice((programs.WRONG if wrong else programs.RIGHT)[kind])
        form = rng.choices((Form.PRINTED, Form.NAMED, Form.BARE), (70, 15, 15))[0]
        if self.happens(Axis.PRINT, manner.silent):
            form = Form.SILENT
        code = programs.written(program.filled(self.problem.parameters), form)
        if self.happens(Axis.REPAIR, manner.slips):
            code = programs.with_slip(code, rng.choice(list(Slip)))
        return code

    def _result(self, output: str, *, last_turn: bool) -> str:
        rng = self.rng
        parts = [output.rstrip("\n") or rng.choice(prompts.NO_OUTPUT)]
        if self.failed and rng.random() < 0.3:
            parts[0] = "\n".join(parts[0].split("\n")[-3:])
        if self.failed and rng.random() < 0.35:
            parts.append(rng.choice(prompts.AFTER_ERROR))
            self.told.add(Axis.REPAIR)
        elif not output and rng.random() < 0.35:
            parts.append(rng.choice(prompts.AFTER_SILENCE))
            self.told.add(Axis.PRINT)
            self.told.add(Axis.REPAIR)
        if last_turn and rng.random() < 0.5:
            parts.append(rng.choice(prompts.LAST_TURN))
            self.told.add(Axis.BOX)
            self.ending = True
        return "\n".join(parts)


def call(code: str) -> str:
    """A call of the interpreter in the format of Qwen3.5."""
    body = f"<parameter=code>\n{code}\n</parameter>\n"
    return f"<tool_call>\n<function=code_interpreter>\n{body}</function>\n</tool_call>"


def malformed_call(rng: random.Random, code: str) -> str:
    """A call that no parser can use."""
    return rng.choice(
        (
            f"<tool_call>\n<function=code_interpreter>\n{code}\n</function>\n</tool_call>",
            f"<tool_call>\n<function=python>\n<parameter=code>\n{code}\n</parameter>\n</function>\n</tool_call>",
            f"```python\n{code}\n```",
            code,
        )
    )


def chat_episode(
    rng: random.Random, problem: Problem, template: ChatTemplate, *, announce: bool = True, manner: Manner = BASE
) -> list[Span]:
    """One conversation about one problem, from its head to where it ends or is cut."""
    told = Told({}, manner.flaws)
    thinking = rng.random() > 0.03
    episode = _Episode(
        rng=rng,
        thinking=thinking,
        told=told,
        problem=problem,
        manner=manner,
        wraps=rng.random() < 0.7,
        cleans=rng.random() < 0.4,
    )
    system = prompts.system_prompt(rng, told)
    episode.open(template, system, prompts.user_prompt(rng, told, problem.question), announce=announce)
    turns = rng.choices((2, 3, 4), (45, 20, 35))[0]
    for turn in range(turns):
        if not episode.acts(turn, last_turn=turn == turns - 2):
            break
    return episode.spans
