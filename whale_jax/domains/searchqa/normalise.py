"""One view of text for comparison: the same folding for index, query, names and answers.

NFKC alone leaves accents; a decomposed accent and a composed one must meet (cases D114, F156), so text is decomposed by
compatibility, combining marks are dropped, and the rest is case-folded.
"""

from __future__ import annotations

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


def fold(text: str) -> str:
    """`text` without accents, case, compatibility forms and typographic punctuation, and with single spaces."""
    mapped = text.translate(_MAPPED)  # before decomposition, which would turn the acute accent into a space
    decomposed = unicodedata.normalize("NFKD", mapped)
    bare = "".join(character for character in decomposed if not unicodedata.combining(character))
    return " ".join(unicodedata.normalize("NFKC", bare.translate(_MAPPED)).casefold().split())
