"""Exact match on the answer tag of the returned reply (PAPER section 5).

Tag rule: the last `</answer>` is paired with the nearest `<answer>` before it. Tags are lower case and without spaces;
an answer that is never closed, or spelled otherwise, is no answer. A tool call in the same reply does not matter: it is
the harness that decides whether a reply with a call is the last one, and the last one's call is not run.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence

from whale_jax.domains.searchqa.normalise import fold
from whale_jax.domains.verdict import Verdict

THINK_END = "</think>"
OPEN, CLOSE = "<answer>", "</answer>"
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def tagged_answer(text: str) -> str | None:
    """What the last pair of answer tags encloses, stripped; None without such a pair. Linear in the text.

    Only what follows the last `</think>` is read, should the text hold one.
    """
    visible = text.rpartition(THINK_END)[2]
    end = visible.rfind(CLOSE)
    start = visible.rfind(OPEN, 0, max(end, 0))
    return None if start < 0 else visible[start + len(OPEN) : end].strip()


def normal_form(text: str) -> str:
    """Folded words of a text: apostrophes, full stops and commas inside numbers vanish, other punctuation parts words.

    A full stop between digits stays: 1.5 is not 15.
    """
    characters = []
    folded = fold(text)
    for index, character in enumerate(folded):
        inside_number = folded[index - 1 : index].isdigit() and folded[index + 1 : index + 2].isdigit()
        if character == "." and inside_number:
            characters.append(character)
        elif character in ".'" or (character == "," and inside_number):
            continue
        elif unicodedata.category(character).startswith("P"):
            characters.append(" ")
        else:
            characters.append(character)
    return " ".join("".join(characters).split())


def _without_articles(form: str) -> str:
    return " ".join(_ARTICLES.sub(" ", form).split())


def _forms(text: str) -> frozenset[str]:
    """All spellings under which a text may meet another: never the empty one (case D116: "the" is no empty answer)."""
    form = normal_form(text)
    return frozenset({fold(text), form, _without_articles(form)} - {""})


def same_answer(answer: str, references: Iterable[str]) -> bool:
    """Whether `answer` is one of `references` after normalisation. Nothing equals an empty answer.

    Meant to be strict: dates, units and numbers in words are a judge's business, not this function's (case D119).
    """
    forms = _forms(answer)
    return any(forms & _forms(reference) for reference in references)


def has_reference(references: Iterable[str]) -> bool:
    """Whether any accepted answer holds something to compare with (case D117)."""
    return any(_forms(reference) for reference in references)


def exact_match(answer_text: str | None, references: Sequence[str]) -> Verdict:
    """Scores the text of a returned reply against the accepted answers, the primary one first.

    `answer_text` is None when there is no text to read, for instance because thinking never ended.
    """
    answer = None if answer_text is None else tagged_answer(answer_text)
    if not has_reference(references):
        return Verdict(0, answer, "data error: the task has no reference answer")
    if answer is None:
        return Verdict(0, None, "no reply to read" if answer_text is None else "no answer tag")
    if not answer:
        return Verdict(0, answer, "empty answer")
    if same_answer(answer, references):
        return Verdict(1, answer, "exact match")
    return Verdict(0, answer, "no match")
