"""Plain text of made-up worlds: lists to repeat, tables to look up, passages with questions. They teach copying early.

The first part of the training is mostly these (`data.Mixture`): a model that has not yet learned to copy an unseen
name from its context learns little from whole conversations, where few tokens are copies.
"""

import json
import random

from whale_jax.demo import replies
from whale_jax.demo.episodes import passage_spans
from whale_jax.demo.spans import Span
from whale_jax.demo.worlds import MadeUpWorld, Statement

GIVEN_WEIGHT = 0.05
"""Loss weight of text that nobody could foresee."""


def exercise(rng: random.Random, world: MadeUpWorld) -> list[Span]:
    """One exercise of a random kind, ended by `<|endoftext|>`."""
    kind = rng.choices((_repeat, _look_up, _passages, _queries), (1, 2, 6, 2))[0]
    return [*kind(rng, world), Span("<|endoftext|>", 1.0)]


def _repeat(rng: random.Random, world: MadeUpWorld) -> list[Span]:
    names = rng.sample(list(world.world.place_names()), rng.randint(2, 6))
    text = rng.choice((", ", "\n", " and ")).join(names)
    return [Span(f"{text}\n", GIVEN_WEIGHT), Span(text, 1.0)]


def _look_up(rng: random.Random, world: MadeUpWorld) -> list[Span]:
    """`key: value` lines, then the same keys in another order to be completed."""
    rows = rng.sample(list(world.statements.values()), rng.randint(2, 6))
    table = {row.subject: row.value for row in rows}
    sign = rng.choice((": ", " = ", " -> ", " is "))
    spans = [Span("".join(f"{key}{sign}{value}\n" for key, value in table.items()) + "\n", GIVEN_WEIGHT)]
    for key in rng.sample(list(table), len(table)):
        spans += [Span(f"{key}{sign}", 0.3), Span(f"{table[key]}\n", 1.0)]
    return spans


def _queries(rng: random.Random, world: MadeUpWorld) -> list[Span]:
    """Questions, each with the query for its first fact."""
    spans: list[Span] = []
    for spec in rng.sample(world.questions, 4):
        said = world.statements[spec.gold[0]]
        query = f"{said.subject} {replies.relation_word(rng, said.fact)}"
        spans += [Span(f"{spec.question}\n", GIVEN_WEIGHT), Span(f"{json.dumps([query], ensure_ascii=False)}\n", 1.0)]
    return spans


def _passages(rng: random.Random, world: MadeUpWorld) -> list[Span]:
    """A few passages, then short questions about each of them."""
    keys = rng.sample(list(world.passages), rng.choice((1, 1, 2, 3)))
    if rng.random() < 0.6:  # several about one place: the fact must decide
        subject = world.statements[keys[0]].subject
        same = [key for key in world.passages if world.statements[key].subject == subject]
        keys = list(dict.fromkeys([keys[0], *rng.sample(same, min(len(same), 2)), *keys]))[:4]
        rng.shuffle(keys)
    layout = "Doc {number} (Title: {title})\n{text}\n" if rng.random() < 0.7 else "{text}\n"
    seen: set[str] = set()
    spans: list[Span] = []
    for number, key in enumerate(keys, 1):
        row = world.passages[key]
        spans += passage_spans(layout.format(number=number, title=row.title, text=row.text), world.names_in(key), seen)
    for key in rng.sample(keys, len(keys)):
        spans += _question(rng, world.statements[key], keys.index(key) + 1)
    return spans


def _question(rng: random.Random, said: Statement, number: int) -> list[Span]:
    """A question about one statement, answered in short or in the way of a conversation."""
    relation = replies.relation_word(rng, said.fact)
    asked = rng.choice(("{subject}, {relation}: ", "The {relation} of {subject} is ", "{relation} of {subject}? "))
    lead = [Span(asked.format(subject=said.subject, relation=relation), 0.3)]
    if rng.random() < 0.5:
        return [*lead, Span(f"{said.value}\n", 1.0)]
    thought = rng.choice(replies.ANSWER_THOUGHTS).format(
        relation=relation, subject=said.subject, value=said.value, number=number
    )
    return [*lead, Span(f"\n{thought}\n<answer>{said.value}</answer>\n", 1.0)]
