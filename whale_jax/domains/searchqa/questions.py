"""The demo questions of a world: one hop (a fact of a place) and two hops (a fact of the country of a city)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from whale_jax.domains.searchqa.facts import City, Country, World, rounded
from whale_jax.domains.searchqa.passages import Fact, chosen, passage_id


class QuestionKind(StrEnum):
    """What is asked. The last two need two retrieved passages, the second found through the first."""

    COUNTRY_OF_CITY = "country_of_city"
    POPULATION_OF_CITY = "population_of_city"
    CAPITAL_OF_COUNTRY = "capital_of_country"
    CURRENCY_OF_COUNTRY = "currency_of_country"
    CONTINENT_OF_COUNTRY = "continent_of_country"
    CAPITAL_VIA_CITY = "capital_via_city"
    CURRENCY_VIA_CITY = "currency_via_city"

    @property
    def hops(self) -> int:
        """The number of passages that an answer needs, one after the other."""
        return 2 if self in (QuestionKind.CAPITAL_VIA_CITY, QuestionKind.CURRENCY_VIA_CITY) else 1


@dataclass(frozen=True)
class QuestionSpec:
    """A question with its answers.

    `subject` is the name that the question contains; `country` is the id of the country that decides the split; `gold`
    are the ids of the passages that state the needed facts, in the order in which they are needed.
    """

    id: str
    question: str
    answers: tuple[str, ...]
    kind: QuestionKind
    subject: str
    country: str
    gold: tuple[str, ...]


_WORDINGS: dict[QuestionKind, tuple[str, ...]] = {
    QuestionKind.COUNTRY_OF_CITY: (
        "In which country is {subject}?",
        "What country is {subject} in?",
        "Which country does {subject} belong to?",
    ),
    QuestionKind.POPULATION_OF_CITY: (
        "What is the population of {subject}?",
        "How many people live in {subject}?",
        "About how many people live in {subject}?",
    ),
    QuestionKind.CAPITAL_OF_COUNTRY: (
        "What is the capital of {subject}?",
        "Which city is the capital of {subject}?",
        "Name the capital of {subject}.",
    ),
    QuestionKind.CURRENCY_OF_COUNTRY: (
        "What is the currency of {subject}?",
        "Which currency is used in {subject}?",
        "What money do people in {subject} use?",
    ),
    QuestionKind.CONTINENT_OF_COUNTRY: (
        "On which continent is {subject}?",
        "What continent is {subject} on?",
        "Which continent does {subject} belong to?",
    ),
    QuestionKind.CAPITAL_VIA_CITY: (
        "What is the capital of the country that {subject} is in?",
        "Which city is the capital of the country of {subject}?",
        "Name the capital of the country where {subject} lies.",
    ),
    QuestionKind.CURRENCY_VIA_CITY: (
        "What is the currency of the country that {subject} is in?",
        "Which currency is used in the country of {subject}?",
        "What money do people use in the country where {subject} lies?",
    ),
}
# What a city is asked for, by its share: each city is asked about once, so that questions stay independent.
_CITY_KINDS = (
    *(QuestionKind.COUNTRY_OF_CITY,) * 3,
    *(QuestionKind.POPULATION_OF_CITY,) * 2,
    *(QuestionKind.CAPITAL_VIA_CITY,) * 2,
    *(QuestionKind.CURRENCY_VIA_CITY,) * 2,
)
_COUNTRY_KINDS = (
    QuestionKind.CAPITAL_OF_COUNTRY,
    QuestionKind.CURRENCY_OF_COUNTRY,
    QuestionKind.CONTINENT_OF_COUNTRY,
)


def _city_answer(city: City, country: Country, kind: QuestionKind) -> tuple[str, tuple[str, ...]]:
    """The answer to a question about `city`, and its gold passages."""
    place = passage_id(city, Fact.COUNTRY)
    match kind:
        case QuestionKind.COUNTRY_OF_CITY:
            return country.name, (place,)
        case QuestionKind.POPULATION_OF_CITY:
            return f"{rounded(city.population):,}", (passage_id(city, Fact.POPULATION),)
        case QuestionKind.CAPITAL_VIA_CITY:
            return country.capital, (place, passage_id(country, Fact.CAPITAL))
        case QuestionKind.CURRENCY_VIA_CITY:
            return country.currency, (place, passage_id(country, Fact.CURRENCY))
        case _:
            raise ValueError(f"{kind} is not asked about a city")


def _country_answer(country: Country, kind: QuestionKind) -> tuple[str, tuple[str, ...]]:
    """The answer to a question about `country`, and its gold passage."""
    match kind:
        case QuestionKind.CAPITAL_OF_COUNTRY:
            return country.capital, (passage_id(country, Fact.CAPITAL),)
        case QuestionKind.CURRENCY_OF_COUNTRY:
            return country.currency, (passage_id(country, Fact.CURRENCY),)
        case QuestionKind.CONTINENT_OF_COUNTRY:
            return country.continent, (passage_id(country, Fact.CONTINENT),)
        case _:
            raise ValueError(f"{kind} is not asked about a country")


def questions(world: World) -> list[QuestionSpec]:
    """One question for each city (its kind picked by hash) and three for each country, in the world's order.

    A question that holds its own answer (the capital of Guinea-Bissau) is left out.
    """
    result = []
    for country in world.countries:
        for kind in _COUNTRY_KINDS:
            answer, gold = _country_answer(country, kind)
            result.append(_spec(kind, country, country.name_in_text, country.id, answer, gold))
    for city in world.cities:
        country = world.country(city.country)
        kind = chosen(_CITY_KINDS, city.id, "kind")
        answer, gold = _city_answer(city, country, kind)
        result.append(_spec(kind, city, city.name, country.id, answer, gold))
    return [spec for spec in result if not any(answer in spec.question for answer in spec.answers)]


def _spec(
    kind: QuestionKind, place: City | Country, subject: str, country_id: str, answer: str, gold: tuple[str, ...]
) -> QuestionSpec:
    return QuestionSpec(
        id=f"{place.id}-{kind}",
        question=chosen(_WORDINGS[kind], place.id, kind).format(subject=subject),
        answers=(answer,),
        kind=kind,
        subject=place.name,
        country=country_id,
        gold=gold,
    )
