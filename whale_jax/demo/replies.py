"""The assistant's side of the training text: thoughts, queries, calls and answers, good ones and flawed ones.

A reply's text starts after `<think>⏎` (the generation prompt ends there) and ends before `<|im_end|>`.
"""

import json
import random
from collections.abc import Sequence
from enum import StrEnum

from whale_jax.demo.worlds import Statement
from whale_jax.domains.searchqa.passages import Fact

RELATIONS: dict[Fact, tuple[str, ...]] = {
    Fact.COUNTRY: ("country", "country", "country of the city", "city country"),
    Fact.POPULATION: ("population", "population", "number of people", "people live"),
    Fact.CAPITAL: ("capital", "capital", "capital city"),
    Fact.CURRENCY: ("currency", "currency", "money", "currency money"),
    Fact.CONTINENT: ("continent", "continent", "part of continent"),
    Fact.POSITION: ("map", "position"),
}
SEARCH_THOUGHTS = (
    "I need the {relation} of {subject}.",
    "I need the {relation} of {subject}. I will search for it.",
    "The question asks for the {relation} of {subject}.",
    "Let me search for {subject}.",
    "{subject}: I look for the {relation}.",
    "I should find the {relation} of {subject}.",
    "First, search for {subject} and its {relation}.",
    "Search: {subject}, {relation}.",
)
AGAIN_THOUGHTS = (
    "This does not state the {relation} of {subject}. I search again.",
    "Not found. I try another query for {subject}.",
    "No {relation} here. Search again for {subject}.",
    "The {relation} of {subject} is missing. Another query.",
)
NEXT_THOUGHTS = (
    "{link} is the country. Now I need its {relation}.",
    "It is in {link}. Now search for the {relation} of {link}.",
    "The country is {link}. I need the {relation} of {link}.",
    "{before} is in {link}. Next: the {relation} of {link}.",
)
ANSWER_THOUGHTS = (
    "The {relation} of {subject} is {value}.",
    "Doc {number} says that the {relation} of {subject} is {value}.",
    "The passage about {subject} says {value}.",
    "{subject}: {value}.",
    "It is {value}.",
    "The text says {value}.",
    "Found it: {value}.",
    "Doc {number} states the {relation}: {value}.",
    "I found the {relation} of {subject}.",
    "Doc {number} is about the {relation} of {subject}.",
)
GUESS_THOUGHTS = (
    "I think that I know the {relation} of {subject}.",
    "Maybe it is {value}.",
    "I remember {subject}.",
    "I guess {value}.",
)
NO_IDEA_THOUGHTS = (
    "I cannot find it.",
    "There is nothing about {subject}.",
    "I do not know the {relation} of {subject}.",
)
GIVE_UP = (
    "I do not know.",
    "I could not find the answer.",
    "I am not sure.",
    "<answer>I do not know</answer>",
    "<answer>unknown</answer>",
    "Sorry, the passages do not say.",
)
LEADS = ("The answer is ", "Answer: ", "It is ", "Based on the passage: ", "I found it. ")
LOOPS = (
    "I need to think about {subject}.",
    "The {relation} of {subject} is",
    "Let me search for {subject}.",
    "Wait, {subject}.",
    "I need the {relation} of {subject}.",
)


class AnswerStyle(StrEnum):
    """How a final reply is written. All but the first two are flaws."""

    PLAIN = "plain"
    LEAD = "lead"
    UNTAGGED = "untagged"
    WRONG_TAG = "wrong_tag"
    SENTENCE = "sentence"


def relation_word(rng: random.Random, fact: Fact) -> str:
    return rng.choice(RELATIONS[fact])


def think(thought: str, rest: str) -> str:
    """A whole reply: the thought, the end of thinking, and what follows."""
    return f"{thought}\n</think>\n\n{rest}"


def call(queries: Sequence[str], topk: int | None = None) -> str:
    """A search call in the format of Qwen3.5."""
    body = f"<parameter=query_list>\n{json.dumps(list(queries), ensure_ascii=False)}\n</parameter>\n"
    if topk is not None:
        body += f"<parameter=topk>\n{topk}\n</parameter>\n"
    return f"<tool_call>\n<function=search>\n{body}</function>\n</tool_call>"


def malformed_call(rng: random.Random, query: str) -> str:
    """A search call that no parser can use."""
    quoted = json.dumps([query], ensure_ascii=False)
    shapes = (
        f"<tool_call>\n<function=search>\n{query}\n</function>\n</tool_call>",
        f'<tool_call>\n{{"name": "search", "arguments": {{"query_list": {quoted}}}}}\n</tool_call>',
        f"<tool_call>\n<function=search>\n<parameter=query_list>\n{query}\n</parameter>\n</function>\n</tool_call>",
        f"<tool_call>\n<function=search>\n<parameter=query>\n{query}\n</parameter>\n</function>\n</tool_call>",
        f"<tool_call>\n<function=find>\n<parameter=query_list>\n{quoted}\n</parameter>\n</function>\n</tool_call>",
        f"search({quoted})",
        f"I will search for {query}.",
        f"<tool_call>\n<function=search>\n<parameter=query_list>\n{quoted}\n</tool_call>",
    )
    return rng.choice(shapes)


def answer(rng: random.Random, style: AnswerStyle, said: Statement) -> str:
    """The text after thinking of a final reply that answers `said.value`."""
    value, relation = said.value, relation_word(rng, said.fact)
    match style:
        case AnswerStyle.PLAIN:
            return f"<answer>{value}</answer>"
        case AnswerStyle.LEAD:
            return f"{rng.choice(LEADS)}<answer>{value}</answer>"
        case AnswerStyle.UNTAGGED:
            shapes = (
                value,
                f"The {relation} of {said.subject} is {value}.",
                f"{rng.choice(LEADS)}{value}",
                f"**{value}**",
            )
            return rng.choice(shapes)
        case AnswerStyle.WRONG_TAG:
            shapes = (
                f"<ans>{value}</ans>",
                f"<answer>{value}",
                f"answer>{value}</answer>",
                f"<result>{value}</result>",
                f"[answer]{value}[/answer]",
            )
            return rng.choice(shapes)
        case AnswerStyle.SENTENCE:
            shapes = (
                f"The {relation} of {said.subject} is {value}.",
                f"It is {value}",
                f"{value} ({relation})",
                f"{said.subject}, {value}",
            )
            return f"<answer>{rng.choice(shapes)}</answer>"


def endless_thought(rng: random.Random, subject: str, relation: str) -> str:
    """A thought that repeats itself, as small thinking models do until their budget ends."""
    sentence = rng.choice(LOOPS).format(subject=subject, relation=relation)
    return " ".join([sentence] * rng.randint(4, 9))


def query(rng: random.Random, subject: str, fact: Fact, question: str, *, careful: bool, before: Sequence[str]) -> str:
    """A query for `fact` of `subject`, different from those `before` it; a careful one names both."""
    relation = relation_word(rng, fact)
    full = (f"{subject} {relation}", f"{subject} {relation}", f"{relation} of {subject}", f"{relation} {subject}")
    loose = (subject, subject, question, f"What is the {relation} of {subject}?", relation, f"{subject} facts")
    for _ in range(8):
        text = rng.choice(full if careful else loose)
        if text not in before:
            return text
    return f"{subject} {relation} {len(before)}"
