"""Made-up names of places, currencies and people, in many shapes.

The demo model must learn to copy names that it has never seen, and it must never have seen a real one: its validation
and test entities are real cities and countries. So every name here is put together from random syllables, and a name
whose normalised form is on the list of real names is drawn again.
"""

import random
import unicodedata
from collections.abc import Callable, Collection
from dataclasses import dataclass, field


def normalise(name: str) -> str:
    """Lower case, without accents, letters and digits only: `São João-Velho` → `saojoaovelho`."""
    decomposed = unicodedata.normalize("NFKD", name)
    return "".join(character for character in decomposed if character.isalnum()).casefold()


@dataclass(frozen=True)
class Flavour:
    """The sound of one invented language: syllable parts, how names end, which accents it writes."""

    onsets: str
    vowels: str
    codas: str
    endings: str
    accents: dict[str, str] = field(default_factory=dict)

    def word(self, rng: random.Random, syllables: int) -> str:
        """A lower-case word of that many syllables, plus an ending half of the time."""
        onsets, vowels, codas = self.onsets.split(" "), self.vowels.split(), self.codas.split(" ")
        parts: list[str] = []
        for _ in range(syllables):
            parts += [rng.choice(onsets), rng.choice(vowels), rng.choice(codas)]
        if rng.random() < 0.5:
            parts.append(rng.choice(self.endings.split()))
        word = "".join(parts)
        if self.accents and rng.random() < 0.3:
            place = rng.randrange(len(word))
            word = word[:place] + self.accents.get(word[place], word[place]) + word[place + 1 :]
        return word


# A leading, trailing or double blank in a list is an empty part: an open syllable.
FLAVOURS: tuple[Flavour, ...] = (
    Flavour(
        "b d f g h k l m n p r s t v z br kl st tr",
        "a e i o u",
        " l n r s t   m",
        "burg dorf heim feld berg stadt au en",
    ),
    Flavour(
        "b c d f g l m n p r s t v gr ch",
        "a e i o u ai ou",
        "  n l r s  ",
        "ville ac y eux mont court igny",
        {"e": "é", "a": "â", "o": "ô"},
    ),
    Flavour(
        "c d f g l m n p r s t v b gu",
        "a e i o u ia",
        "  n r s l  ",
        "o a es ada illo eira ana",
        {"a": "á", "o": "ó", "n": "ñ", "i": "í"},
    ),
    Flavour(
        "b v g d z k l m n p r s t zh ch sh kr vl", "a e i o u ya", " n r v k  l st", "sk ovo grad ov ino itsa ets"
    ),
    Flavour(
        "k s t n h m y r w g z d b sh ts", "a i u e o", "    n ", "ma ki hara saki mura shi da", {"o": "ō", "u": "ū"}
    ),
    Flavour(
        "b p j k g ch d t n m y r l v s h bh dh kh",
        "a i u e o aa",
        "   n r l m d ",
        "pur abad nagar gaon ganj patti",
        {"a": "ā", "i": "ī"},
    ),
    Flavour("b t j h kh d r z s sh f q k l m n w y gh", "a i u aa", "  r l m n d b sh", "ah an iya ayn abad at"),
    Flavour("b d g h k l m n p r s t w j ng", "a i u e o", "   n ng r k t", "an ang ung ari awa oro ing"),
    Flavour("x zh q j ch sh l m n h g d t y w b", "a i u e o ao ai ia", "   n ng ", "shan zhou yang xi he cun"),
    Flavour("k m n b t s w l z mb nd ng ky", "a i u e o", "     ", "ni bwe ga mba ru zi yo nde"),
    Flavour("h k l m n p w t r", "a e i o u au oa", "     ", "nui lua hiki rua tonga", {"a": "ā", "o": "ō"}),
    Flavour(
        "h j k l m n p r s t v kk",
        "a e i o u y aa uu",
        "  n s l k  r",
        "la nen ki vaara joki lahti",
        {"a": "ä", "o": "ö"},
    ),
    Flavour(
        "b c d g k l m n s t y z ç ş",
        "a e i o u ı",
        " r n l k y ş",
        "lar köy hisar ova tepe lik",
        {"o": "ö", "u": "ü", "g": "ğ"},
    ),
    Flavour(
        "b c d f g h l m n p r s t th wh br st w",
        "a e i o u ea oo",
        "  n r l ck st d",
        "ton ham field ford wick bury ley wood shire",
    ),
    Flavour(
        "d h k l n p t v kh th ng tr",
        "a e i o u",
        "   n ng nh c m",
        "an inh ang oi",
        {"a": "à", "o": "ô", "e": "ế", "u": "ư"},
    ),
    Flavour(
        "b c d g k l ł m n p r s t w z sz cz",
        "a e i o u y",
        "  n r w l k",
        "ów ice no wo awa ek",
        {"o": "ó", "z": "ż", "s": "ś", "e": "ę"},
    ),
)
LETTERS = "abcdefghijklmnopqrstuvwxyz"

FRONT_WORDS = (
    "San", "Santa", "New", "Old", "Port", "Fort", "Upper", "Lower", "East", "West", "North", "South", "Great",
    "Little", "El", "La", "Los", "Bad", "Saint", "Mount", "Lake", "Nova", "Gran", "Villa", "Puerto", "Kota", "Ust",
    "Novo", "Al", "Ban", "Nong", "Ain", "Beni", "Sidi", "Mae", "Khao", "Santo", "Dar", "Le", "Les", "Las", "Sao",
    "São", "Kuala", "Tanjung", "Porto", "Castel",
)  # fmt: skip
BACK_WORDS = (
    "City", "Beach", "Springs", "Park", "Hills", "Bay", "Heights", "Falls", "Norte", "Sul", "Alto", "Nuevo",
    "Junction", "Valley", "Grande", "Town", "Kalan",
)  # fmt: skip
LINKS = ("de", "del", "de la", "am", "an der", "sur", "la", "do", "da", "di", "upon", "of", "e")
HYPHEN_LINKS = ("-sur-", "-on-", "-le-", "-by-", "-en-", "-de-")
COUNTRY_ENDINGS = (
    "ia", "land", "stan", "a", "e", "o", "is", "aria", "any", "onia", "istan", "guay", "mark", "ea", "in", "au",
    "esh",
)  # fmt: skip
COUNTRY_SHAPES = (
    "Republic of {}", "Kingdom of {}", "{} Islands", "United {}", "North {}", "South {}", "East {}", "West {}",
    "New {}", "Saint {}", "{} Republic", "{} and {}", "Democratic Republic of {}", "Union of {}", "{} Islands",
    "Federated {}", "The {}", "Saint {} and {}", "Central {}", "Equatorial {}", "Papua {}", "{}-{}", "Emirates of {}",
    "El {}", "San {}",
)  # fmt: skip
MONEY_ENDINGS = ["", "", "", "a", "o", "i", "ar", "al", "ra", "no"]


class NameMaker:
    """Draws made-up names, none of which is real.

    Args:
        rng: the source of chance; the same state gives the same names.
        forbidden: normalised names that must never come out, in whatever spelling.
    """

    def __init__(self, rng: random.Random, forbidden: Collection[str] = frozenset()) -> None:
        self._rng = rng
        self._forbidden = forbidden

    def _fresh(self, draw: Callable[[], str]) -> str:
        while True:
            name = draw()
            if len(normalise(name)) >= 3 and normalise(name) not in self._forbidden:
                return name

    def _word(self, syllables: int | None = None) -> str:
        rng = self._rng
        if rng.random() < 0.12:  # no language at all: every piece of the vocabulary must be copied at times
            word = "".join(rng.choice(LETTERS) for _ in range(rng.randint(3, 9)))
        else:
            count = syllables or rng.choices((1, 2, 3), (3, 5, 1))[0]
            word = rng.choice(FLAVOURS).word(rng, count)
        return word[:1].upper() + word[1:14]

    def city(self) -> str:
        """A city: mostly one word, a quarter with several or with a hyphen."""
        return self._fresh(self._city)

    def _city(self) -> str:
        rng = self._rng
        shape = rng.random()
        if shape < 0.72:
            return self._word()
        if shape < 0.80:
            return f"{rng.choice(FRONT_WORDS)} {self._word()}"
        if shape < 0.84:
            return f"{self._word()} {rng.choice(BACK_WORDS)}"
        if shape < 0.90:
            return f"{self._word()} {self._word(1)}"
        if shape < 0.93:
            return f"{self._word()} {rng.choice(LINKS)} {self._word(1)}"
        if shape < 0.97:
            return f"{self._word()}-{self._word(1)}"
        if shape < 0.98:
            return f"{self._word(1)}{rng.choice(HYPHEN_LINKS)}{self._word(1)}"
        return f"{self._word(1)}'{self._word(1).lower()}"

    def country(self) -> str:
        """A country: mostly one word with a country's ending, a quarter with several words."""
        return self._fresh(self._country)

    def _country(self) -> str:
        rng = self._rng

        def word() -> str:
            stem = self._word(rng.choice((1, 1, 2)))
            return stem + rng.choice(COUNTRY_ENDINGS) if rng.random() < 0.6 else stem

        if rng.random() < 0.75:
            return word()
        shape = rng.choice(COUNTRY_SHAPES)
        return shape.format(*(word() for _ in range(shape.count("{}"))))

    def currency(self) -> str:
        """A currency's name: one short word, seldom two."""

        def draw() -> str:
            name = self._word(self._rng.choice((1, 1, 2)))[:8] + self._rng.choice(MONEY_ENDINGS)
            return name if self._rng.random() < 0.93 else f"{name} {self._word(1)}"

        return self._fresh(draw)

    def code(self, letters: int) -> str:
        """A code of capital letters, as currencies and countries have."""
        return self._fresh(lambda: "".join(self._rng.choice(LETTERS).upper() for _ in range(letters)))

    def region(self) -> str:
        """A continent or a language: one word, sometimes with a compass point."""

        def draw() -> str:
            point = self._rng.choice(("North ", "South ", "East ", "West ")) if self._rng.random() < 0.2 else ""
            return point + self._word(self._rng.choice((1, 2))) + self._rng.choice(("a", "ia", "e", "is", ""))

        return self._fresh(draw)

    def population(self, low: int, high: int) -> int:
        """A head count, log-uniform between the bounds, rounded at times as statistics are."""
        value = round(low * (high / low) ** self._rng.random())
        if self._rng.random() < 0.2:
            value = round(value, -3) or low
        return value
