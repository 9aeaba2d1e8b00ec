"""The demo corpus: short passages about each place of a world, each carrying one fact.

Several passages share the title of their place, so the first hit for a place is often not the passage with the fact
asked for. Wordings vary by place, and the word that a question uses may be missing from the passage that answers it, or
present in one that does not: retrieval is then as imperfect as on a real corpus.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from typing import TypeVar

from whale_jax.domains.searchqa.facts import City, Country, World, rounded


class Fact(StrEnum):
    """What a passage says about its place."""

    COUNTRY = "country"  # city
    POSITION = "position"  # city
    POPULATION = "population"  # city and country
    CAPITAL = "capital"  # country
    CURRENCY = "currency"  # country
    CONTINENT = "continent"  # country


@dataclass(frozen=True)
class Passage:
    """One row of the corpus. `title` is the place's name, whatever the fact."""

    id: str
    title: str
    text: str


_CITY_WORDINGS: dict[Fact, tuple[str, ...]] = {
    Fact.COUNTRY: (
        "{city} is found on the map of {country}, where it is one of the larger places with shops and schools.",
        "The country of {city} is {country}, where it is one of the larger places with shops and schools.",
        "{city} belongs to {country}, and it is one of the larger places there.",
        "{city} is a city in {country}, where it is one of the larger places with shops and schools.",
    ),
    Fact.POPULATION: (
        "About {population} people live in {city}, by the latest count of the country.",
        "{city} has a population of about {population}, by the latest count of those who live there.",
        "The number of people who live in {city} is about {population}, by the latest count.",
        "{city} is a place with about {population} people, by the latest count of the country.",
    ),
    Fact.POSITION: (
        "{city} lies near {latitude} and {longitude} on the map of its country.",
        "A good map shows {city} near {latitude} and {longitude}, with the places around it.",
        "On the map of the world, {city} lies near {latitude} and {longitude}.",
        "The map shows {city} and its population near {latitude} and {longitude}.",
    ),
}
_COUNTRY_WORDINGS: dict[Fact, tuple[str, ...]] = {
    Fact.CAPITAL: (
        "The capital of {country} is {capital}, a place that every good map shows.",
        "{country} is led from {capital}, which the map marks with a star.",
        "{capital} is the capital of {country}, which the map marks with a star.",
        "{country} has its first city in {capital}, which the map marks with a star.",
    ),
    Fact.CURRENCY: (
        "The currency of {country} is the {currency}, used in shops and banks.",
        "People in {country} pay with the {currency} in shops and banks.",
        "The money of {country} is the {currency}, used in shops and banks.",
        "Shops and banks in the capital of {country} take the {currency} as currency.",
    ),
    Fact.POPULATION: (
        "About {population} people live in {country}, in the capital and outside it.",
        "{country} has a population of about {population} on its part of the continent.",
        "The number of people who live in {country} is about {population}.",
        "The population of {country} is about {population}, and all use one currency.",
    ),
    Fact.CONTINENT: (
        "{country} is a country on the continent of {continent}.",
        "{country} lies in {continent} and has its own capital and currency.",
        "{country} is part of {continent}, as the map of the world shows.",
        "The continent of {country} is {continent}, as the map of the world shows.",
    ),
}


def passage_id(place: City | Country, fact: Fact) -> str:
    """The id of the passage that states `fact` about `place`."""
    return f"{place.id}-{fact}"


T = TypeVar("T")


def chosen(options: Sequence[T], *key: str) -> T:
    """One of `options`, picked by a hash of `key`: the same in every process and on every machine."""
    digest = blake2b("\x1f".join(key).encode(), digest_size=8).digest()
    return options[int.from_bytes(digest) % len(options)]


def _degrees(value: float, positive: str, negative: str) -> str:
    return f"{abs(round(value))} {positive if value >= 0 else negative}"


def _passage(place: City | Country, fact: Fact, wordings: tuple[str, ...], fields: dict[str, str]) -> Passage:
    text = chosen(wordings, place.id, fact).format(**fields)
    return Passage(id=passage_id(place, fact), title=place.name, text=text[0].upper() + text[1:])


def passages(world: World) -> list[Passage]:
    """All passages of `world`: four for a country, three for a city, in the world's order."""
    result = []
    for country in world.countries:
        fields = {
            "country": country.name_in_text,
            "capital": country.capital,
            "currency": country.currency,
            "continent": country.continent,
            "population": f"{rounded(country.population):,}",
        }
        result += [_passage(country, fact, wordings, fields) for fact, wordings in _COUNTRY_WORDINGS.items()]
    for city in world.cities:
        fields = {
            "city": city.name,
            "country": world.country(city.country).name_in_text,
            "population": f"{rounded(city.population):,}",
            "latitude": _degrees(city.latitude, "north", "south"),
            "longitude": _degrees(city.longitude, "east", "west"),
        }
        result += [_passage(city, fact, wordings, fields) for fact, wordings in _CITY_WORDINGS.items()]
    return result
