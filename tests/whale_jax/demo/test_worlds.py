"""Made-up names and worlds: reproducible, and never real."""

import dataclasses
import random

import pytest

from whale_jax.demo.names import NameMaker, normalise
from whale_jax.demo.worlds import MadeUpWorld, assert_made_up, normalised_real_names, real_names
from whale_jax.domains.searchqa.facts import World, real_world


def test_normalise_ignores_case_accents_and_signs() -> None:
    assert normalise("São João-Velho") == normalise("sao joao velho") == "saojoaovelho"


def test_names_repeat_with_the_seed_and_take_many_shapes() -> None:
    def draw(seed: int) -> list[str]:
        maker = NameMaker(random.Random(seed))
        return [draw() for _ in range(60) for draw in (maker.city, maker.country, maker.currency, maker.region)]

    assert draw(1) == draw(1) != draw(2)
    cities = draw(1)[::4]
    assert any(" " in name for name in cities)
    assert any("-" in name for name in cities)
    assert any(not name.isascii() for name in draw(1))


def test_a_forbidden_name_never_comes_out() -> None:
    maker = NameMaker(random.Random(3))
    forbidden = frozenset(normalise(maker.city()) for _ in range(50))
    again = NameMaker(random.Random(3), forbidden)
    assert not {normalise(again.city()) for _ in range(50)} & forbidden


def test_the_forbidden_names_cover_every_place_of_the_real_world() -> None:
    world = real_world()
    names = {*world.place_names(), *(c.currency for c in world.countries), *(c.continent for c in world.countries)}
    assert names <= real_names()
    assert {normalise(name) for name in names} <= normalised_real_names()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_world_repeats_with_its_seed_and_holds_no_real_name(seed: int) -> None:
    world = MadeUpWorld(seed)
    assert world.world == MadeUpWorld(seed).world
    assert not {normalise(name) for name in world.world.place_names()} & normalised_real_names()


def test_a_real_name_in_a_world_is_refused_in_any_spelling() -> None:
    world = MadeUpWorld(0).world
    city = dataclasses.replace(world.cities[0], name=real_world().cities[0].name.upper())
    with pytest.raises(AssertionError, match="real names"):
        assert_made_up(World(world.countries, (city, *world.cities[1:])))


def test_passages_state_what_the_world_says_they_state() -> None:
    world = MadeUpWorld(4)
    assert set(world.passages) == set(world.statements)
    for key, said in world.statements.items():
        assert said.value in world.passages[key].text
        assert said.subject in world.passages[key].text
    for spec in world.questions:
        assert world.statements[spec.gold[-1]].value in spec.answers


def test_search_finds_the_place_that_is_named() -> None:
    world = MadeUpWorld(5)
    city = world.world.cities[0]
    found = world.search(f"{city.name} country", 3, random.Random(0))
    assert found[0].title == city.name
    assert world.search("zzzz", 3, random.Random(0)) == []
