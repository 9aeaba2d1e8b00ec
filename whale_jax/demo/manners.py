"""How the assistant of the training text behaves: the rates of its flaws, as data.

A pair of rates is (where the conversation never asked for better, where it did). See `spans.Told`.
"""

from dataclasses import dataclass

from whale_jax.demo.spans import Rates


@dataclass(frozen=True)
class Manner:
    """One assistant.

    Attributes:
        flaws: scale of all rates below that are flaws.
        untagged, wrong_tag, sentence: how a final reply is written (`replies.AnswerStyle`).
        wrong_fact: answers with another shown fact than the right one.
        loses_itself: never ends a thought.
        guesses_first: answers before any search.
        quits: gives up or guesses after a search that did not help.
        malformed: writes a call that no parser can use.
        careless: writes a query without the name or without the relation.
        shortcut: asks about a city what only its country has.
        link_as_answer: answers a two-hop question with the country.
        assured: share of results into which the needed passage is put if the search missed it.
        two_hops: share of episodes whose question is drawn from the two-hop ones alone.
    """

    flaws: float
    untagged: Rates
    wrong_tag: Rates
    sentence: Rates
    wrong_fact: Rates
    loses_itself: Rates
    guesses_first: Rates
    quits: Rates
    malformed: Rates
    careless: Rates
    shortcut: Rates
    link_as_answer: Rates
    assured: float
    two_hops: float


BASE = Manner(
    flaws=1.0,
    untagged=(0.35, 0.07),
    wrong_tag=(0.06, 0.02),
    sentence=(0.08, 0.02),
    wrong_fact=(0.06, 0.03),
    loses_itself=(0.03, 0.01),
    guesses_first=(0.10, 0.03),
    quits=(0.20, 0.05),
    malformed=(0.06, 0.02),
    careless=(0.20, 0.08),
    shortcut=(0.20, 0.08),
    link_as_answer=(0.25, 0.08),
    assured=0.6,
    two_hops=0.2,
)
"""The assistant of the training text: a small base model that goes on searching while it gets somewhere."""
