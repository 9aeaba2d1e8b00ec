"""The mathematics text as an endless stream: exercises first, then right conversations, at last a base model's."""

import functools
import random
from dataclasses import replace

from whale_jax.demo.math import programs
from whale_jax.demo.math.episodes import BASE, chat_episode
from whale_jax.demo.math.programs import Form
from whale_jax.demo.spans import Span
from whale_jax.domains.math.demo import demo_tasks
from whale_jax.domains.math.problems import FAMILIES, Kind, Problem
from whale_jax.qwen3_5.template import ChatTemplate

GIVEN_WEIGHT = 0.05
"""Loss weight of text that nobody could foresee."""


@functools.cache
def demo_ids() -> frozenset[str]:
    """The problems of all splits, none of which occurs in the text."""
    return frozenset(task.id for tasks in demo_tasks().values() for task in tasks)


def problem(rng: random.Random, kind: Kind | None = None) -> Problem:
    """A problem of any kind that is in no split of the demo."""
    kind = kind or rng.choice(list(Kind))
    family = FAMILIES[kind]
    while True:
        parameters = family.draw(rng)
        found = Problem(kind, parameters, family.text.format(*parameters), 0)
        if found.id not in demo_ids():
            return found


def exercise(rng: random.Random) -> list[Span]:
    """One exercise of a random kind, ended by `<|endoftext|>`."""
    kind = rng.choices((_repeat, _programs, _outputs), (2, 6, 2))[0]
    return [*kind(rng), Span("<|endoftext|>", 1.0)]


def _number(rng: random.Random) -> str:
    return str(rng.randint(1, 10 ** rng.randint(1, 5)))


def _repeat(rng: random.Random) -> list[Span]:
    """Named numbers, then the same names in another order to be completed."""
    table = {name: _number(rng) for name in rng.sample("abcdefgh", rng.randint(2, 5))}
    spans = [Span("".join(f"{name} = {value}\n" for name, value in table.items()), GIVEN_WEIGHT)]
    for name in rng.sample(list(table), len(table)):
        spans += [Span(f"{name}: ", GIVEN_WEIGHT), Span(f"{table[name]}\n", 1.0)]
    return spans


def _programs(rng: random.Random) -> list[Span]:
    """Questions, each with its program."""
    spans: list[Span] = []
    for _ in range(rng.randint(2, 4)):
        asked = problem(rng)
        program = rng.choice(programs.RIGHT[asked.kind]).filled(asked.parameters)
        code = programs.written(program, Form.PRINTED if rng.random() < 0.8 else Form.NAMED)
        spans += [Span(f"{asked.question}\n", GIVEN_WEIGHT), Span(f"{code}\n", 1.0)]
    return spans


def _outputs(rng: random.Random) -> list[Span]:
    """What programs printed, each with the boxed answer."""
    spans: list[Span] = []
    for _ in range(rng.randint(2, 5)):
        value = _number(rng)
        spans.append(Span(f"<tool_response>\n{value}\n</tool_response>\n", GIVEN_WEIGHT))
        thought = rng.choice(("The output is {0}.\n", "It is {0}.\n", "")).format(value)
        spans.append(Span(f"{thought}\\boxed{{{value}}}\n", 1.0))
    return spans


def spans(rng: random.Random, template: ChatTemplate, progress: float) -> list[Span]:
    """The next text; `progress` is the share of the training that is done."""
    exercises = 0.9 if progress < 0.12 else 0.5 if progress < 0.3 else 0.12
    if rng.random() < exercises:
        return exercise(rng)
    flaws = 0.2 if progress < 0.5 else 0.5 if progress < 0.7 else 1.0
    announce = rng.random() >= (0.65 if progress < 0.4 else 0.1)
    return chat_episode(rng, problem(rng), template, announce=announce, manner=replace(BASE, flaws=flaws))
