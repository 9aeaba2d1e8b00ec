"""Edits of chess harnesses for the offline proposers.

Each edit is one mechanism with one falsifiable sentence, written from knowledge of the task alone: none was chosen,
worded or left out for a score. There are enough of useful, useless and harmful ones that a search has something to find
out. None ranks or picks moves, marks one, or looks for an answer. An edit changes named constants and functions of
`h0.py`, so edits compose in any order and apply to every harness that keeps those names.

The signs that edits address know the chat format alone. In chess, where h0 passes the position on as it comes, they
say: `grounded_wrong`: the last move is in the list of legal moves, and wrong; `unused_result`: it is not in the list;
`no_answer`, `format`: no single move could be read; `single_call`: the episode ended at the first position.
"""

from __future__ import annotations

from harness_search.proposers.edits import Edit
from harness_search.proposers.signs import Sign
from whale_jax.domains.changes import append, body, end, lower_to, raise_to, replace, start, with_import

SYSTEM, POSITION, READING = "system prompt", "presentation of the position", "reading of moves"
FEEDBACK, TURNS, CONTEXT = "environment responses and nudges", "stop and turn budget", "context"
RETRIES = ("MAX_UNREADABLE", "MAX_ILLEGAL")

_SYSTEM_EDITS = (
    Edit(
        "copy_from_the_list",
        SYSTEM,
        "Told to copy a move from the list of legal moves, the model names illegal moves less often.",
        "useful",
        (Sign.UNUSED_RESULT, Sign.NO_ANSWER),
        append("SYSTEM_PROMPT", " Copy the move from the list of legal moves, letter by letter."),
    ),
    Edit(
        "explain_the_notation",
        SYSTEM,
        "A model that is told what + and # mean in SAN overlooks fewer of the mates that the notation shows.",
        "useful",
        (Sign.GROUNDED_WRONG,),
        append("SYSTEM_PROMPT", " In SAN, + means check and # means checkmate."),
    ),
    Edit(
        "forcing_moves_first",
        SYSTEM,
        "The advice to look at checks, captures and threats first makes legal but wrong moves rarer.",
        "useful",
        (Sign.GROUNDED_WRONG,),
        append("SYSTEM_PROMPT", " Look at checks, captures and threats first."),
    ),
    Edit(
        "think_briefly",
        SYSTEM,
        "Asking for one short sentence of thinking makes replies without an end of thinking rarer.",
        "useful",
        (Sign.UNFINISHED_THINKING, Sign.CUT_REPLY, Sign.TOKEN_BUDGET),
        append("SYSTEM_PROMPT", " Think in one short sentence."),
    ),
    Edit(
        "think_at_length",
        SYSTEM,
        "Going through every legal move in writing makes legal but wrong moves rarer.",
        "harmful",
        (Sign.GROUNDED_WRONG,),
        append(
            "SYSTEM_PROMPT",
            " Think at great length: go through every legal move, imagine all answers to it, and then start again from"
            " the first one before you decide.",
        ),
    ),
    Edit(
        "grandmaster_role",
        SYSTEM,
        "A grandmaster's role in the system prompt makes moves more often right.",
        "useless",
        (Sign.GROUNDED_WRONG, Sign.NO_ANSWER),
        append("SYSTEM_PROMPT", " You are a world-class grandmaster with many years of experience."),
    ),
)
_POSITION_EDITS = (
    Edit(
        "ask_below_the_position",
        POSITION,
        "The required form, repeated right below the list of moves, makes replies without a readable move rarer.",
        "useful",
        (Sign.NO_ANSWER, Sign.FORMAT),
        end("present", 'observation = observation + "\\nWhich move? Write it as <move>uci</move>."'),
    ),
    Edit(
        "without_the_board",
        POSITION,
        "The drawn board repeats what FEN and list say; without it fewer replies run out of tokens or lose the thread.",
        "useful",
        (Sign.TOKEN_BUDGET, Sign.CUT_REPLY, Sign.UNUSED_RESULT),
        end(
            "present",
            """
            head, found, rest = observation.partition("\\nBoard:\\n")
            if found:
                observation = head + "\\n" + rest.partition("  a b c d e f g h\\n")[2]
            """,
        ),
    ),
    Edit(
        "without_the_fen",
        POSITION,
        "The FEN distracts from the board, so that without it illegal moves are rarer.",
        "useless",
        (Sign.UNUSED_RESULT,),
        end(
            "present",
            """
            lines = observation.split("\\n")
            observation = "\\n".join(line for line in lines if not line.startswith("FEN: "))
            """,
        ),
    ),
    Edit(
        "without_the_list",
        POSITION,
        "Without the list of legal moves the model thinks about the position instead of picking from the list.",
        "harmful",
        (Sign.GROUNDED_WRONG, Sign.TOKEN_BUDGET),
        end("present", 'observation = observation.partition("\\nLegal moves:")[0]'),
    ),
    Edit(
        "without_san",
        POSITION,
        "A list of UCI moves alone, without SAN beside them, is copied from more faithfully.",
        "harmful",
        (Sign.UNUSED_RESULT, Sign.NO_ANSWER),
        with_import("re", end("present", 'observation = re.sub(r" SAN=\\S+", "", observation)')),
    ),
)
_READING_EDITS = (
    Edit(
        "any_spelling",
        READING,
        "Letting the environment read the reply saves moves in SAN or without tags that the strict pattern misses.",
        "useful",
        (Sign.NO_ANSWER, Sign.FORMAT),
        body("read_move", 'return ""'),
    ),
    Edit(
        "san_in_tags",
        READING,
        "Taking whatever stands in the tags saves the replies that give the move in SAN.",
        "useful",
        (Sign.NO_ANSWER, Sign.FORMAT),
        replace("read_move", "([a-h][1-8][a-h][1-8][qrbn]?)", "([^<>]+)"),
    ),
    Edit(
        "fold_case",
        READING,
        "Reading replies in lower case saves the moves that are written in capitals.",
        "useless",
        (Sign.NO_ANSWER, Sign.FORMAT),
        start("read_move", "text = text.lower()"),
    ),
    Edit(
        "tags_alone",
        READING,
        "A reply that says more than its move is confused; sent back, it is followed by a better one.",
        "harmful",
        (Sign.GROUNDED_WRONG,),
        with_import(
            "re",
            start(
                "read_move",
                """
                if not re.fullmatch(r"\\s*<move>[^<>]*</move>\\s*", text):
                    return None
                """,
            ),
        ),
    ),
)
_FEEDBACK_EDITS = (
    Edit(
        "say_why",
        FEEDBACK,
        "Told why its move cannot be played, the model's next move is legal more often.",
        "useful",
        (Sign.UNUSED_RESULT, Sign.NO_ANSWER),
        start(
            "feedback",
            """
            if problem:
                return problem
            """,
        ),
    ),
    Edit(
        "position_again",
        FEEDBACK,
        "The position shown once more after a refused move makes the next move legal more often.",
        "useless",
        (Sign.UNUSED_RESULT, Sign.NO_ANSWER),
        end("after_refusal", "chat.user(present(await env.observe()))"),
    ),
    Edit(
        "example_in_retry",
        FEEDBACK,
        "An example of the form in the reminder makes a second unreadable reply rarer.",
        "useless",
        (Sign.NO_ANSWER, Sign.FORMAT),
        append("RETRY_PROMPT", " For example: <move>g1f3</move>."),
    ),
    Edit(
        "doubt_the_move",
        FEEDBACK,
        "A model that is asked whether it is sure corrects wrong moves before they are played.",
        "harmful",
        (Sign.GROUNDED_WRONG, Sign.SINGLE_CALL),
        start(
            "second_thoughts",
            """
            if doubts == 0:
                return "Are you sure? That may well be wrong. Think about it again."
            """,
        ),
    ),
)
_TURN_EDITS = (
    Edit(
        "more_retries",
        TURNS,
        "Four retries of each kind instead of one let the model find a move that can be played.",
        "useful",
        (Sign.UNUSED_RESULT, Sign.NO_ANSWER, Sign.FORMAT),
        raise_to(4, *RETRIES),
    ),
    Edit(
        "no_retries",
        TURNS,
        "A model that gets no second try names playable moves from the start, and no tokens are lost on retries.",
        "harmful",
        (Sign.TOKEN_BUDGET, Sign.TURN_BUDGET),
        lower_to(0, *RETRIES),
    ),
    Edit(
        "close_thinking",
        TURNS,
        "Thinking that takes a quarter of the tokens, closed by the harness, still leads to a move.",
        "useful",
        (Sign.UNFINISHED_THINKING, Sign.CUT_REPLY, Sign.TOKEN_BUDGET),
        body(
            "ask",
            """
            reply = await chat.reply(max_tokens=max(model.budgets.assistant_tokens // 4, 16))
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
        (Sign.TOKEN_BUDGET, Sign.UNFINISHED_THINKING),
        body("ask", "return await chat.reply(max_tokens=max(model.budgets.assistant_tokens // 16, 1))"),
    ),
    Edit(
        "one_turn",
        TURNS,
        "One turn is enough: what is not found at once is not found later.",
        "harmful",
        (Sign.TURN_BUDGET, Sign.TOKEN_BUDGET),
        lower_to(1, "MAX_TURNS"),
    ),
)
_CONTEXT_EDITS = (
    Edit(
        "fresh_chat_per_position",
        CONTEXT,
        "Each position in a chat of its own leaves no earlier list to copy from, which makes illegal moves rarer.",
        "useful",
        (Sign.UNUSED_RESULT, Sign.TOKEN_BUDGET, Sign.CUT_REPLY),
        body("next_chat", "return model.chat(system=SYSTEM_PROMPT)"),
    ),
    Edit(
        "forget_the_retry",
        CONTEXT,
        "A refused move that stays out of the conversation is not repeated.",
        "useful",
        (Sign.UNUSED_RESULT, Sign.NO_ANSWER),
        start(
            "after_refusal",
            """
            chat = model.chat(system=SYSTEM_PROMPT)
            chat.user(present(await env.observe()))
            """,
        ),
    ),
)

CATALOGUE: tuple[Edit, ...] = (
    *_SYSTEM_EDITS,
    *_POSITION_EDITS,
    *_READING_EDITS,
    *_FEEDBACK_EDITS,
    *_TURN_EDITS,
    *_CONTEXT_EDITS,
)
