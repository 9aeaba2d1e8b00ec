"""The embedded demo's promises: sizes, disjoint entities, answerable questions, limited retrieval."""

from collections import Counter

import pytest

from whale_jax.domains.searchqa.demo import demo_documents, demo_tasks
from whale_jax.domains.searchqa.facts import City, Country, World, real_world, rounded
from whale_jax.domains.searchqa.normalise import fold
from whale_jax.domains.searchqa.passages import passages
from whale_jax.domains.searchqa.questions import QuestionKind, questions
from whale_jax.domains.searchqa.retrieval import Bm25Retriever
from whale_jax.domains.task import Split, check_disjoint

MADE_UP = World(
    countries=(
        Country("v", "Veria", "Tolm", "Asia", "Dram", 5_204_000),
        Country("u", "United Isles", "Port Bel", "Oceania", "Crown", 61_230, takes_article=True),
    ),
    cities=(City("k", "Kalo", "v", 60_549, 39.2, 27.6), City("m", "Mirn", "u", 15_001, -7.7, -0.2)),
)


def test_sizes():
    counts = {split: len(tasks) for split, tasks in demo_tasks().items()}
    assert len(demo_documents()) >= 5_000
    assert sum(counts.values()) >= 2_000
    assert counts[Split.WEIGHT] >= 900
    assert counts[Split.HARNESS] >= 300
    assert counts[Split.VALIDATION] >= 250
    assert counts[Split.TEST] >= 300


def test_every_split_has_every_kind_in_like_shares():
    for tasks in demo_tasks().values():
        kinds = Counter(task.reference["kind"] for task in tasks)
        assert set(kinds) == set(QuestionKind)
        two_hops = sum(count for kind, count in kinds.items() if QuestionKind(kind).hops == 2)
        assert 0.25 < two_hops / len(tasks) < 0.45


def test_names_are_unique_and_passages_short():
    world = real_world()
    assert world.ambiguous_names() == []
    assert max(len(passage.text.split()) for passage in passages(world)) <= 35
    assert len({passage.id for passage in passages(world)}) == len(passages(world))


def test_no_place_of_a_held_out_split_is_asked_about_or_an_answer_elsewhere():
    world = real_world()
    places = {fold(name) for name in world.place_names()}
    split_of = {task.id: split for split, tasks in demo_tasks().items() for task in tasks}
    mentioned = {split: set() for split in Split}
    for spec in questions(world):
        names = {fold(spec.subject), *(fold(answer) for answer in spec.answers)}
        mentioned[split_of[spec.id]] |= names & places
    trained_or_searched = mentioned[Split.WEIGHT] | mentioned[Split.HARNESS]
    assert not trained_or_searched & (mentioned[Split.VALIDATION] | mentioned[Split.TEST])
    assert not mentioned[Split.VALIDATION] & mentioned[Split.TEST]
    check_disjoint(demo_tasks())


@pytest.mark.parametrize("world", [MADE_UP, real_world()], ids=["made up", "real"])
def test_the_gold_passages_hold_what_the_question_needs(world):
    text = {passage.id: passage.text for passage in passages(world)}
    for spec in questions(world):
        assert spec.subject in spec.question
        assert len(spec.gold) == spec.kind.hops
        assert spec.subject in text[spec.gold[0]]
        assert all(answer in text[spec.gold[-1]] for answer in spec.answers)
        assert not any(answer in spec.question for answer in spec.answers)


def test_texts_of_a_made_up_world():
    by_id = {passage.id: passage for passage in passages(MADE_UP)}
    assert by_id["k-population"].title == "Kalo"
    assert "60,500" in by_id["k-population"].text
    assert "the United Isles" in by_id["m-country"].text
    assert "8 south and 0 west" in by_id["m-position"].text
    assert not any("{" in passage.text for passage in by_id.values())


@pytest.mark.parametrize(
    ("count", "expected"), [(0, 0), (7, 7), (999, 999), (1_000, 1_000), (60_549, 60_500), (60_550, 60_600)]
)
def test_rounding_to_three_digits(count, expected):
    assert rounded(count) == expected


RELATION = {
    QuestionKind.COUNTRY_OF_CITY: "country",
    QuestionKind.POPULATION_OF_CITY: "population",
    QuestionKind.CAPITAL_OF_COUNTRY: "capital",
    QuestionKind.CURRENCY_OF_COUNTRY: "currency",
    QuestionKind.CONTINENT_OF_COUNTRY: "continent",
}


def test_one_passage_is_often_the_wrong_one_and_three_hold_the_right_one():
    """The query that a small model writes: the place and a word for the relation. A change of wording shows here."""
    retriever = Bm25Retriever(demo_documents())
    first, third, total = Counter(), Counter(), Counter()
    for spec in questions(real_world()):
        if spec.kind not in RELATION:
            continue
        found = [hit.document.id for hit in retriever.search(f"{spec.subject} {RELATION[spec.kind]}", 3)]
        total[spec.kind] += 1
        first[spec.kind] += found[:1] == [spec.gold[0]]
        third[spec.kind] += spec.gold[0] in found
    for kind in RELATION:
        assert 0.3 < first[kind] / total[kind] < 0.7, kind
        assert third[kind] / total[kind] > 0.8, kind
    assert 0.4 < first.total() / total.total() < 0.6
    assert third.total() / total.total() > 0.95
