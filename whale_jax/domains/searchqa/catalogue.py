"""Edits of SearchQA harnesses for the offline proposers.

Each edit is one mechanism with one falsifiable sentence, written from knowledge of the task alone: none was chosen,
worded or left out for a score. There are enough of useful, useless and harmful ones that a search has something to find
out. An edit changes named constants and functions of `h0.py`, so edits compose in any order and apply to every harness
that keeps those names.
"""

from __future__ import annotations

from collections.abc import Callable

from harness_search.proposers.edits import Edit
from harness_search.proposers.signs import Sign
from whale_jax.domains.source_edits import (
    append_text,
    constant,
    ensure_import,
    insert_at_start,
    insert_before_return,
    replace_in_function,
    set_body,
    set_constant,
)

Apply = Callable[[str], str | None]

SYSTEM, USER = "system prompt", "user template"
QUERY, RETRIEVAL = "query rewriting", "retrieval parameters and feedback"
NUDGES, TURNS = "environment responses and nudges", "stop and turn budget"


def _append(name: str, text: str) -> Apply:
    return lambda source: append_text(source, name, text)


def _start(function: str, block: str) -> Apply:
    return lambda source: insert_at_start(source, function, block)


def _end(function: str, block: str) -> Apply:
    return lambda source: insert_before_return(source, function, block)


def _raise_to(name: str, value: int) -> Apply:
    def apply(source: str) -> str | None:
        now = constant(source, name)
        return set_constant(source, name, value) if isinstance(now, int) and now < value else None

    return apply


def _lower_to(name: str, value: int) -> Apply:
    def apply(source: str) -> str | None:
        now = constant(source, name)
        return set_constant(source, name, value) if isinstance(now, int) and now > value else None

    return apply


def _with_import(module: str, apply: Apply) -> Apply:
    def both(source: str) -> str | None:
        changed = apply(source)
        return None if changed is None else ensure_import(changed, module)

    return both


_SYSTEM_EDITS = (
    Edit(
        "search_first",
        SYSTEM,
        "A system prompt that tells the model to search before answering makes answers without a search rarer.",
        "useful",
        (Sign.NO_TOOL_CALL, Sign.UNUSED_RESULT),
        _append("SYSTEM_PROMPT", " Always search before you answer."),
    ),
    Edit(
        "two_steps",
        SYSTEM,
        "Explaining that a linking fact may have to be found first makes the model search once more where needed.",
        "useful",
        (Sign.SINGLE_CALL, Sign.UNUSED_RESULT, Sign.GROUNDED_WRONG),
        _append(
            "SYSTEM_PROMPT",
            " It can take more than one search: where a fact depends on another, look up that other one before.",
        ),
    ),
    Edit(
        "think_briefly",
        SYSTEM,
        "Asking for one short sentence of thinking makes replies without an end of thinking rarer.",
        "useful",
        (Sign.UNFINISHED_THINKING, Sign.CUT_REPLY, Sign.TOKEN_BUDGET),
        _append("SYSTEM_PROMPT", " Think in one short sentence."),
    ),
    Edit(
        "think_at_length",
        SYSTEM,
        "Long, thorough thinking makes wrong answers drawn from a passage rarer.",
        "harmful",
        (Sign.GROUNDED_WRONG, Sign.UNUSED_RESULT),
        _append(
            "SYSTEM_PROMPT",
            " Think at great length: list every possibility, argue for and against each, and repeat your reasoning"
            " from the start before you do anything else.",
        ),
    ),
    Edit(
        "from_memory",
        SYSTEM,
        "Letting the model answer from memory saves the turn that a search costs.",
        "harmful",
        (Sign.TURN_BUDGET, Sign.UNRUN_CALL, Sign.THIN_RESULT),
        _append("SYSTEM_PROMPT", " If you remember the answer, give it at once without any tool."),
    ),
    Edit(
        "expert_role",
        SYSTEM,
        "An expert's role in the system prompt makes answers more often right.",
        "useless",
        (Sign.GROUNDED_WRONG, Sign.NO_ANSWER),
        _append("SYSTEM_PROMPT", " You are a world-class expert with many years of experience."),
    ),
)
_USER_EDITS = (
    Edit(
        "copy_the_answer",
        USER,
        "Saying that the answer is a name or number to be copied makes long or misspelt answers rarer.",
        "useful",
        (Sign.LONG_ANSWER, Sign.UNUSED_RESULT),
        _append("USER_PROMPT", " It is a name or a number, copied exactly from a passage."),
    ),
    Edit(
        "always_answer",
        USER,
        "Saying that a reply without answer tags is worth nothing makes replies without an answer rarer.",
        "useful",
        (Sign.NO_ANSWER, Sign.UNRUN_CALL),
        _append("USER_PROMPT", " A reply without answer tags counts for nothing."),
    ),
    Edit(
        "repeat_question",
        USER,
        "A model that reads the question twice answers the question that was asked more often.",
        "useless",
        (Sign.GROUNDED_WRONG, Sign.UNUSED_RESULT),
        _append("USER_PROMPT", "\nThe question again: {question}"),
    ),
    Edit(
        "explain_in_tags",
        USER,
        "An answer that explains itself inside its tags is wrong less often.",
        "harmful",
        (Sign.GROUNDED_WRONG, Sign.NO_ANSWER),
        _append("USER_PROMPT", " Inside the tags, explain the answer in a full sentence."),
    ),
    Edit(
        "lower_case_question",
        USER,
        "A question in lower case is easier to turn into a query.",
        "harmful",
        (Sign.THIN_RESULT, Sign.MALFORMED_CALL),
        lambda source: replace_in_function(
            source, "question_text", "return task.question\n", "return task.question.lower()\n"
        ),
    ),
)
_QUERY_EDITS = (
    Edit(
        "all_queries",
        QUERY,
        "Sending every query of a call, not the first alone, brings back the passage that the first one missed.",
        "useful",
        (Sign.SEVERAL_QUERIES,),
        lambda source: replace_in_function(source, "select_queries", "queries[:1]", "queries[:4]"),
    ),
    Edit(
        "question_as_query",
        QUERY,
        "The question itself as one more query brings back passages that the model's own words miss.",
        "useful",
        (Sign.UNUSED_RESULT, Sign.THIN_RESULT, Sign.SINGLE_DOCUMENT),
        _end("select_queries", "queries = [*queries, question]"),
    ),
    Edit(
        "names_alone",
        QUERY,
        "Words without a capital letter lead retrieval astray, so a query of names alone finds the right passage.",
        "useless",
        (Sign.GROUNDED_WRONG, Sign.UNUSED_RESULT),
        _end(
            "select_queries",
            """
            names = [" ".join(word for word in str(query).split() if word[:1].isupper()) for query in queries]
            queries = [name or query for name, query in zip(names, queries)]
            """,
        ),
    ),
    Edit(
        "first_word_only",
        QUERY,
        "The first word of a query is its rarest, and the rest adds noise.",
        "harmful",
        (Sign.THIN_RESULT, Sign.UNUSED_RESULT),
        _end("select_queries", 'queries = [str(query).strip().split(" ")[0] for query in queries]'),
    ),
)
_RETRIEVAL_EDITS = (
    Edit(
        "three_passages",
        RETRIEVAL,
        "Three passages per query instead of one make answers that no passage supports rarer.",
        "useful",
        (Sign.SINGLE_DOCUMENT, Sign.UNUSED_RESULT),
        _raise_to("TOPK", 3),
    ),
    Edit(
        "plain_result",
        RETRIEVAL,
        "A result shown as plain text instead of JSON is copied from more faithfully.",
        "useless",
        (Sign.GROUNDED_WRONG, Sign.UNUSED_RESULT),
        _with_import(
            "json",
            _start(
                "format_result",
                """
                if result.startswith("{"):
                    result = json.loads(result)["result"]
                """,
            ),
        ),
    ),
    Edit(
        "reverse_documents",
        RETRIEVAL,
        "The best passage placed last, nearest to the reply, is used more often.",
        "useless",
        (Sign.UNUSED_RESULT, Sign.GROUNDED_WRONG),
        _with_import(
            "json",
            _start(
                "format_result",
                """
                wrapped = result.startswith("{")
                documents = (json.loads(result)["result"] if wrapped else result).split("\\n\\n")
                result = "\\n\\n".join(reversed(documents))
                if wrapped:
                    result = json.dumps({"result": result}, ensure_ascii=False)
                """,
            ),
        ),
    ),
    Edit(
        "short_passages",
        RETRIEVAL,
        "Passages cut to a few words leave the model less to misread.",
        "harmful",
        (Sign.GROUNDED_WRONG, Sign.TOKEN_BUDGET),
        _lower_to("MAX_DOC_TOKENS", 6),
    ),
)
_NUDGE_EDITS = (
    Edit(
        "ask_for_tags",
        NUDGES,
        "A reply without answer tags that is sent back with a reminder is followed by one with tags.",
        "useful",
        (Sign.NO_ANSWER,),
        _start(
            "nudge",
            """
            if "</answer>" not in reply.text and nudges < 2:
                return "There is no answer in your reply. Write it as <answer>...</answer>."
            """,
        ),
    ),
    Edit(
        "ask_for_search",
        NUDGES,
        "A reply that did not search, sent back with the request to search, is followed by a search.",
        "useful",
        (Sign.NO_TOOL_CALL,),
        _start(
            "nudge",
            """
            if searches == 0 and nudges == 0:
                return "No search has been made. Look it up with a tool call, then answer."
            """,
        ),
    ),
    Edit(
        "explain_call_format",
        NUDGES,
        "A call that could not be read, answered with the right format, is followed by a readable one.",
        "useful",
        (Sign.MALFORMED_CALL, Sign.NO_TOOL_CALL),
        _start(
            "nudge",
            """
            if "<tool_call>" in reply.raw and nudges < 2:
                return "That tool call has a mistake. Call search with query_list, a JSON list of texts."
            """,
        ),
    ),
    Edit(
        "suggest_other_words",
        NUDGES,
        "A hint to use other words, added to an empty result, is followed by a search that finds something.",
        "useful",
        (Sign.THIN_RESULT, Sign.REPEATED_CALL),
        _end(
            "format_result",
            """
            if "No results found." in result:
                result = result + "\\nSearch again with other words."
            """,
        ),
    ),
    Edit(
        "doubt_every_answer",
        NUDGES,
        "A model that is asked whether it is sure corrects wrong answers.",
        "harmful",
        (Sign.GROUNDED_WRONG, Sign.UNUSED_RESULT),
        _start(
            "nudge",
            """
            if "</answer>" in reply.text and nudges == 0:
                return "Are you sure? That may well be wrong. Think about it again."
            """,
        ),
    ),
)
_TURN_EDITS = (
    Edit(
        "more_turns",
        TURNS,
        "Four turns instead of two let the model search again after a poor result, and answer in the end.",
        "useful",
        (Sign.UNRUN_CALL, Sign.SINGLE_CALL, Sign.NO_ANSWER),
        _raise_to("MAX_TURNS", 4),
    ),
    Edit(
        "announce_last_turn",
        TURNS,
        "A last turn that is announced is used for the answer instead of another search.",
        "useful",
        (Sign.UNRUN_CALL, Sign.NO_ANSWER),
        _end(
            "format_result",
            """
            if turns_left == 1:
                result = result + "\\nNo turn is left after this one: reply with <answer>...</answer>."
            """,
        ),
    ),
    Edit(
        "close_thinking",
        TURNS,
        "Thinking that takes a third of the tokens, closed by the harness, still leads to a call or an answer.",
        "useful",
        (Sign.UNFINISHED_THINKING, Sign.CUT_REPLY, Sign.TOKEN_BUDGET),
        lambda source: set_body(
            source,
            "ask",
            """
            reply = await chat.reply(max_tokens=max(model.budgets.assistant_tokens // 3, 16))
            if reply.finish == "length" and "</think>" not in reply.raw:
                reply = await chat.extend_reply("\\n</think>\\n\\n")
            return reply
            """,
        ),
    ),
    Edit(
        "tight_replies",
        TURNS,
        "Replies held to a sixteenth of the tokens keep the model from wandering off.",
        "harmful",
        (Sign.TOKEN_BUDGET, Sign.LONG_ANSWER, Sign.UNFINISHED_THINKING),
        lambda source: set_body(
            source,
            "ask",
            "return await chat.reply(max_tokens=max(model.budgets.assistant_tokens // 16, 1))",
        ),
    ),
    Edit(
        "single_turn",
        TURNS,
        "One turn is enough for most questions, and no turn is wasted on a search that is never used.",
        "harmful",
        (Sign.TURN_BUDGET, Sign.UNUSED_RESULT),
        _lower_to("MAX_TURNS", 1),
    ),
)

CATALOGUE: tuple[Edit, ...] = (
    *_SYSTEM_EDITS,
    *_USER_EDITS,
    *_QUERY_EDITS,
    *_RETRIEVAL_EDITS,
    *_NUDGE_EDITS,
    *_TURN_EDITS,
)
