"""One view of text for comparison: the same folding for index, query, names and answers.

NFKC alone leaves accents; a decomposed accent and a composed one must meet (cases D114, F156), so text is decomposed by
compatibility, accents are dropped, and the rest is case-folded. Marks of other scripts, which tell words apart (as in
が, or vowel signs), stay.
"""

from __future__ import annotations

import re
import unicodedata

# Letters that Unicode does not decompose, although readers take them for the base letter; and typographic punctuation.
_MAPPED = str.maketrans(
    {
        "ł": "l", "Ł": "L", "ø": "o", "Ø": "O", "đ": "d", "Đ": "D", "ð": "d", "Ð": "D", "þ": "th", "Þ": "Th",
        "æ": "ae", "Æ": "Ae", "œ": "oe", "Œ": "Oe", "ı": "i",
        "‘": "'", "’": "'", "‚": "'", "‛": "'", "ʼ": "'", "ʻ": "'", "ʿ": "'", "ʾ": "'", "′": "'", "`": "'", "´": "'",
        "“": '"', "”": '"', "„": '"', "«": '"', "»": '"', "″": '"',
        "‐": "-", "‑": "-", "‒": "-", "–": "-", "—": "-", "―": "-", "−": "-", "⁃": "-",
    }
)  # fmt: skip

_ACCENTS = re.compile(r"[\u0300-\u036f]")  # the combining marks of Latin, Greek and Cyrillic


def fold(text: str) -> str:
    """`text` without accents, case, compatibility forms and typographic punctuation, and with single spaces."""
    mapped = text.translate(_MAPPED)  # before decomposition, which would turn the acute accent into a space
    decomposed = unicodedata.normalize("NFKD", mapped)
    bare = _ACCENTS.sub("", decomposed)
    return " ".join(unicodedata.normalize("NFKC", bare.translate(_MAPPED)).casefold().split())
