"""What the made-up harnesses of the training text tell the model: system prompts, user templates, tools, nudges.

Every prompt is put together from sentences, and each sentence belongs to one axis of behaviour (`spans.Told`).
"""

import json
import random
from collections.abc import Sequence
from enum import StrEnum

from whale_jax.demo.spans import Told
from whale_jax.domains.searchqa.tool import EMPTY_QUERY, NOTHING_FOUND, SEARCH_ERROR


class Axis(StrEnum):
    """What a sentence of a prompt is about."""

    FORMAT = "format"
    SEARCH = "search"
    RETRY = "retry"
    EXACT = "exact"
    HOPS = "hops"
    SHORT = "short"
    CALL = "call"


SENTENCES: dict[Axis, tuple[str, ...]] = {
    Axis.FORMAT: (
        "Put the final answer inside <answer> and </answer>.",
        "Give your answer as <answer>...</answer>.",
        "Write the answer between <answer> and </answer> tags.",
        "Answer inside <answer></answer>.",
        "End with <answer>your answer</answer>.",
        "The last reply must hold the answer in <answer>…</answer> tags.",
        "Your final reply must contain <answer>answer</answer>.",
        "Always finish with the answer in <answer> tags, for example <answer>Kalo</answer>.",
        "Reply with <answer>the answer</answer> when you know it.",
        "Only text in <answer>...</answer> is read.",
    ),
    Axis.SEARCH: (
        "Use the search tool before you answer.",
        "Always search first.",
        "Do not guess: search for the fact.",
        "You must call search at least once.",
        "Look the fact up with the search tool.",
        "Never answer from memory; call the search tool.",
        "Call the tool to find the information.",
        "First search, then answer.",
    ),
    Axis.RETRY: (
        "If the result does not hold the answer, search again with other words.",
        "Search again when the passages do not help.",
        "If you did not find it, try another query.",
        "When nothing useful is found, change the query and search again.",
        "You can search more than once.",
        "Keep searching until a passage states the answer.",
        "Several searches are allowed; never give up after one.",
    ),
    Axis.EXACT: (
        "Copy the answer exactly as it is written in the passage.",
        "The answer is a short name or number, copied from the text.",
        "Answer with the name or number only, no other words.",
        "Be exact: copy names letter by letter.",
        "Give only the answer itself, not a sentence.",
        "Check that the passage is about the right place before you answer.",
        "Use only the document whose title is the entity that was asked for.",
        "Read every document; take the one that states the fact.",
    ),
    Axis.HOPS: (
        "Some questions need two searches: first find the country, then search for the country.",
        "If the question is about the country of a city, first find out which country it is.",
        "Work step by step: one search for each fact.",
        "Break the question into steps.",
        "Some questions need more than one step.",
        "Find the linking fact first, then search for the second fact.",
    ),
    Axis.SHORT: (
        "Think briefly.",
        "Keep your thinking to one sentence.",
        "Do not repeat yourself.",
        "Close your thinking with </think> and then act.",
        "Think in a few words, then act.",
        "Be brief.",
    ),
    Axis.CALL: (
        'Pass the queries as a JSON list, such as ["Kalo capital"].',
        "A query should hold the name of the place and the fact that you look for.",
        "Write short queries: the name and the relation.",
        "Use the entity name and one keyword as the query.",
        "Put the exact name from the question into the query.",
        "Follow the call format exactly.",
    ),
}
ROLES = (
    "You are a helpful assistant.",
    "You answer questions.",
    "You answer questions about places with the help of a search tool.",
    "You are a careful researcher.",
    "Answer the question of the user.",
    "You can search a collection of short passages.",
    "You are an assistant that can search.",
    "Answer questions with the search tool.",
    "You answer short questions about cities and countries.",
)
USER_TEMPLATES = (
    "{question}",
    "{question}",
    "Question: {question}",
    "Answer the question: {question}",
    "Please answer: {question}",
    "Q: {question}",
    "Here is a question. {question}",
    "Answer this question. Question: {question}",
    "Find the answer. {question}",
)
TOOL_DESCRIPTIONS = (
    "Search the corpus.",
    "Search for passages.",
    "Searches a collection of passages.",
    "Search short passages about places.",
    "Find passages for a list of queries.",
    "Search a text corpus and return passages.",
)
QUERY_DESCRIPTIONS = ("The queries.", "A list of queries.", "Search queries.", "What to search for.")
REMINDERS: dict[Axis, tuple[str, ...]] = {
    Axis.FORMAT: (
        "Answer inside <answer></answer>.",
        "Reply with <answer>...</answer>.",
        "Now give the answer in <answer> tags.",
        "Remember: <answer>answer</answer>.",
    ),
    Axis.RETRY: (
        "If the answer is not here, search again.",
        "Not found? Search again with other words.",
        "You may search again.",
    ),
    Axis.EXACT: (
        "Copy the answer exactly.",
        "Use the passage with the right title.",
        "Answer with the name or number only.",
    ),
}
LAST_TURN = (
    "You have one turn left; answer now.",
    "This is your last turn. Answer now in <answer> tags.",
    "No more searches. Give your final answer in <answer></answer>.",
    "Answer now.",
    "You must answer now: <answer>...</answer>.",
    "Turns left: 1. Give the answer.",
)
NUDGE_FORMAT = (
    "Your reply had no <answer> tags. Give the answer in <answer> tags.",
    "No answer found. Reply with <answer>...</answer>.",
    "Your reply has no <answer> tags; write the answer inside <answer></answer>.",
    "Please put the final answer inside <answer> and </answer>.",
    "I could not read an answer. Use <answer>answer</answer>.",
)
NUDGE_SEARCH = (
    "Do not guess. Search first.",
    "You have not searched yet. Use the search tool.",
    "Please call the search tool before you answer.",
    "That was not looked up. Search for it.",
)
NUDGE_CALL = (
    "Error: the tool call could not be read. Use the call format.",
    "Invalid tool call. Pass query_list as a JSON list of strings.",
    "The call was malformed; try again.",
    "Error: query_list must be a list of strings.",
    "Your tool call was not valid. Call search again.",
)
NUDGE_GIVE_UP = (
    "Please search again with another query.",
    "Do not give up. Try another search.",
    "Search again.",
    "Try again with other words.",
)
NUDGE_CHECK = (
    "Check your answer against the passages.",
    "Are you sure? Check the passage and answer again.",
    "Read the passages again and give the answer in <answer> tags.",
)
FAILED_RESULTS = (
    NOTHING_FOUND,
    NOTHING_FOUND,
    NOTHING_FOUND,
    EMPTY_QUERY,
    SEARCH_ERROR.format(reason="the index is busy"),
    f"{NOTHING_FOUND} Try another query.",
    "Nothing found.",
    "Search failed. Try again.",
    "No passage matches the query.",
)


def _sentences(rng: random.Random, told: Told, axes: Sequence[Axis]) -> list[str]:
    for axis in axes:
        told.add(axis)
    return [rng.choice(SENTENCES[axis]) for axis in axes]


def _some_axes(rng: random.Random, count: int) -> list[Axis]:
    return rng.sample(list(Axis), count)


def system_prompt(rng: random.Random, told: Told) -> str | None:
    """None, one sentence, or several; what they ask for is added to `told`."""
    shape = rng.random()
    if shape < 0.15:
        return None
    if shape < 0.35:
        return rng.choice(ROLES)
    role = [rng.choice(ROLES)] if rng.random() < 0.6 else []
    count = 1 if shape < 0.6 else 2 if shape < 0.78 else rng.randint(3, 5)
    return ("\n" if rng.random() < 0.15 else " ").join(role + _sentences(rng, told, _some_axes(rng, count)))


def user_prompt(rng: random.Random, told: Told, question: str) -> str:
    """The question in a template, mostly with the answer format, at times with other instructions, in either order."""
    axes: list[Axis] = [Axis.FORMAT] if rng.random() < 0.65 else []
    axes += [axis for axis in _some_axes(rng, rng.choice((0, 0, 0, 1, 2))) if axis not in axes]
    body = rng.choice(USER_TEMPLATES).format(question=question)
    extra = " ".join(_sentences(rng, told, axes))
    parts = [body, extra] if rng.random() < 0.55 else [extra, body]
    return rng.choice(("\n", " ", "\n\n")).join(part for part in parts if part)


def search_tool(rng: random.Random) -> dict:
    """One JSON schema of the search tool, with or without the optional parameters and descriptions."""
    described = rng.random() < 0.4
    queries: dict = {"type": "array", "items": {"type": "string"}}
    properties: dict = {"query_list": queries}
    if described:
        queries["description"] = rng.choice(QUERY_DESCRIPTIONS)
    if rng.random() < 0.5:
        properties["topk"] = {"type": "integer"}
    if rng.random() < 0.4:
        properties["max_doc_tokens"] = {"type": "integer"}
    function = {
        "name": "search",
        "description": rng.choice(TOOL_DESCRIPTIONS),
        "parameters": {"type": "object", "properties": properties, "required": ["query_list"]},
    }
    return {"type": "function", "function": function}


def result_text(
    rng: random.Random, documents: Sequence[tuple[str, str]], told: Told, *, last_turn: bool
) -> tuple[str, bool]:
    """A tool result: (title, text) documents in one of several layouts, at times with a reminder after it.

    Returns the text, and whether it says that the next turn is the last.
    """
    layout = rng.random()
    if layout < 0.15:
        body = "\n".join(f"[{number}] {title}: {text}" for number, (title, text) in enumerate(documents, 1))
    else:
        body = "\n\n".join(
            f"Doc {number} (Title: {title})\n{text}" for number, (title, text) in enumerate(documents, 1)
        )
        if layout < 0.7:
            body = json.dumps({"result": body}, ensure_ascii=False)
    notes: list[str] = []
    announced = last_turn and rng.random() < 0.6
    if announced:
        notes.append(rng.choice(LAST_TURN))
        told.add(Axis.FORMAT)
    for axis, sentences in REMINDERS.items():
        if rng.random() < 0.06 and not (last_turn and axis is Axis.RETRY):
            notes.append(rng.choice(sentences))
            told.add(axis)
    return "\n".join([body, *notes]), announced


def failed_text(rng: random.Random) -> str:
    """A tool result without any document."""
    text = rng.choice(FAILED_RESULTS)
    return json.dumps({"result": text}, ensure_ascii=False) if rng.random() < 0.6 else text
