"""Plain text of made-up worlds: lists to repeat, tables to look up, passages with a question. They teach copying early.

The first part of the training is mostly these (`data.exercise_share`): a model that has not yet learned to copy an unseen name from
its context learns little from whole conversations.
"""

import random

from whale_jax.demo import replies
from whale_jax.demo.episodes import Span
from whale_jax.demo.worlds import MadeUpWorld, Statement

GIVEN_WEIGHT = 0.05
"""Loss weight of text that nobody could foresee."""


def exercise(rng: random.Random, world: MadeUpWorld) -> list[Span]:
    """One exercise of a random kind, ended by `<|endoftext|>`."""
    kind = rng.choices((_repeat, _look_up, _passages), (1, 3, 4))[0]
    return [*kind(rng, world), Span("<|endoftext|>", 1.0)]


def _repeat(rng: random.Random, world: MadeUpWorld) -> list[Span]:
    names = rng.sample(list(world.world.place_names()), rng.randint(1, 5))
    text = rng.choice((", ", "\n", " and ")).join(names)
    return [Span(f"{text}\n", GIVEN_WEIGHT), Span(text, 1.0)]


def _look_up(rng: random.Random, world: MadeUpWorld) -> list[Span]:
    """`key: value` lines, then the same keys in another order to be completed."""
    rows = rng.sample(list(world.statements.values()), rng.randint(2, 7))
    table = {row.subject: row.value for row in rows}
    keys = rng.sample(list(table), len(table))[:4]
    sign = rng.choice((": ", " = ", " -> ", " is "))
    spans = [Span("".join(f"{key}{sign}{value}\n" for key, value in table.items()) + "\n", GIVEN_WEIGHT)]
    for key in keys:
        spans += [Span(f"{key}{sign}", GIVEN_WEIGHT), Span(f"{table[key]}\n", 1.0)]
    return spans


def _passages(rng: random.Random, world: MadeUpWorld) -> list[Span]:
    """A few passages, then short questions about them."""
    keys = rng.sample(list(world.passages), rng.choice((1, 2, 3, 3, 4)))
    if rng.random() < 0.7:  # several about one place: the fact must decide
        subject = world.statements[keys[0]].subject
        same = [key for key in world.passages if world.statements[key].subject == subject]
        keys = list(dict.fromkeys([keys[0], *rng.sample(same, min(len(same), 2)), *keys]))[:4]
        rng.shuffle(keys)
    rows = [world.passages[key] for key in keys]
    layout = "Doc {number} (Title: {title})\n{text}\n" if rng.random() < 0.5 else "{text}\n"
    given = "".join(layout.format(number=i, title=row.title, text=row.text) for i, row in enumerate(rows, 1))
    spans = [Span(given, 0.15)]
    for key in rng.sample(keys, min(len(keys), 3)):
        spans += _question(rng, world.statements[key])
    return spans


def _question(rng: random.Random, said: Statement) -> list[Span]:
    relation = replies.relation_word(rng, said.fact)
    asked = rng.choice(("{subject}, {relation}: ", "The {relation} of {subject} is ", "{relation} of {subject}? "))
    return [
        Span(asked.format(subject=said.subject, relation=relation), GIVEN_WEIGHT),
        Span(f"{said.value}\n", 1.0),
    ]
