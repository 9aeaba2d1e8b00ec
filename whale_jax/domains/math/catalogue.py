"""Edits of Math harnesses for the offline proposers.

Each edit is one mechanism with one falsifiable sentence, written from knowledge of the task alone: none was chosen,
worded or left out for a score. There are enough of useful, useless and harmful ones that a search has something to find
out. An edit changes named constants and functions of `h0.py`, so edits compose in any order and apply to every harness
that keeps those names. None works anything out.
"""

from __future__ import annotations

from harness_search.proposers.edits import Edit
from harness_search.proposers.signs import Sign
from whale_jax.domains.changes import append, body, end, lower_to, raise_to, start, with_import

SYSTEM, USER = "system prompt", "user template"
CODE, FEEDBACK = "code rewriting", "tool feedback"
NUDGES, TURNS = "environment responses and nudges", "stop and turn budget"

_SYSTEM_EDITS = (
    Edit(
        "run_code_first",
        SYSTEM,
        "A system prompt that tells the model to run code before answering makes answers worked out by hand rarer.",
        "useful",
        (Sign.NO_TOOL_CALL, Sign.UNUSED_RESULT),
        append("SYSTEM_PROMPT", " Always run Python code before you answer."),
    ),
    Edit(
        "print_the_answer",
        SYSTEM,
        "Saying that only printed values come back makes results that say nothing rarer.",
        "useful",
        (Sign.THIN_RESULT, Sign.REPEATED_CALL, Sign.UNUSED_RESULT),
        append("SYSTEM_PROMPT", " Code must print the answer: nothing else comes back."),
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
        "Long, thorough thinking makes wrong answers rarer.",
        "harmful",
        (Sign.GROUNDED_WRONG, Sign.UNUSED_RESULT),
        append(
            "SYSTEM_PROMPT",
            " Think at great length: try every method, compare them all, and repeat your reasoning from the start"
            " before you do anything else.",
        ),
    ),
    Edit(
        "work_in_the_head",
        SYSTEM,
        "A model that works in its head saves the turn that a run costs.",
        "harmful",
        (Sign.TURN_BUDGET, Sign.UNRUN_CALL),
        append("SYSTEM_PROMPT", " Work in your head, without any tool, whenever you can."),
    ),
    Edit(
        "expert_role",
        SYSTEM,
        "An expert's role in the system prompt makes answers more often right.",
        "useless",
        (Sign.GROUNDED_WRONG, Sign.NO_ANSWER),
        append("SYSTEM_PROMPT", " You are a world-class mathematician with many years of experience."),
    ),
)
_USER_EDITS = (
    Edit(
        "number_alone",
        USER,
        "Saying that the box holds a number and no words makes boxes with sentences or formulas rarer.",
        "useful",
        (Sign.LONG_ANSWER, Sign.UNUSED_RESULT),
        append("USER_PROMPT", " The box holds one number and no words."),
    ),
    Edit(
        "always_box",
        USER,
        "Saying that a reply without a box is worth nothing makes replies without an answer rarer.",
        "useful",
        (Sign.NO_ANSWER, Sign.UNRUN_CALL),
        append("USER_PROMPT", " Your final reply must hold the box."),
    ),
    Edit(
        "repeat_question",
        USER,
        "A model that reads the question twice answers the question that was asked more often.",
        "useless",
        (Sign.GROUNDED_WRONG, Sign.UNUSED_RESULT),
        append("USER_PROMPT", "\nThe question again: {question}"),
    ),
    Edit(
        "explain_in_box",
        USER,
        "An answer that shows its working inside the box is wrong less often.",
        "harmful",
        (Sign.GROUNDED_WRONG, Sign.NO_ANSWER),
        append("USER_PROMPT", " Inside the box, show the whole working."),
    ),
)
_CODE_EDITS = (
    Edit(
        "print_soundly",
        CODE,
        "A last line that is wrapped in print only if it is an expression by itself makes syntax errors rarer.",
        "useful",
        (Sign.REPEATED_CALL, Sign.UNUSED_RESULT, Sign.NO_ANSWER),
        with_import(
            "ast",
            body(
                "show_last",
                """
                try:
                    body = ast.parse(code).body
                except (SyntaxError, ValueError, RecursionError, MemoryError):
                    return code
                lines = code.rstrip().split("\\n")
                last = body[-1] if body else None
                if not isinstance(last, ast.Expr) or last.lineno != len(lines) or last.col_offset:
                    return code
                if lines[-1].startswith("print(") or "#" in lines[-1]:
                    return code
                return "\\n".join([*lines[:-1], "print(" + lines[-1].rstrip("; ") + ")"])
                """,
            ),
        ),
    ),
    Edit(
        "dedent_code",
        CODE,
        "Code freed of common indentation runs where it failed at its first line.",
        "useful",
        (Sign.REPEATED_CALL, Sign.UNUSED_RESULT),
        with_import("textwrap", start("clean_code", 'code = textwrap.dedent(code.strip("\\n"))')),
    ),
    Edit(
        "drop_prompt_marks",
        CODE,
        "Code without the marks of an interactive session runs where it failed.",
        "useful",
        (Sign.REPEATED_CALL, Sign.UNUSED_RESULT),
        end(
            "clean_code",
            'code = "\\n".join(line.removeprefix(">>> ").removeprefix("... ") for line in code.split("\\n"))',
        ),
    ),
    Edit(
        "drop_comments",
        CODE,
        "Code without lines of comment is run with fewer errors.",
        "useless",
        (Sign.REPEATED_CALL, Sign.GROUNDED_WRONG),
        end(
            "clean_code",
            'code = "\\n".join(line for line in code.split("\\n") if not line.lstrip().startswith("#"))',
        ),
    ),
    Edit(
        "last_line_only",
        CODE,
        "The last line of the code holds what matters, and the rest adds errors.",
        "harmful",
        (Sign.REPEATED_CALL, Sign.UNUSED_RESULT),
        end("clean_code", 'code = code.rstrip().split("\\n")[-1].strip()'),
    ),
)
_FEEDBACK_EDITS = (
    Edit(
        "ask_for_repair",
        FEEDBACK,
        "An error that comes with the request to correct the code is followed by code that runs.",
        "useful",
        (Sign.REPEATED_CALL, Sign.UNUSED_RESULT, Sign.NO_ANSWER),
        end(
            "format_result",
            """
            if "Traceback (most recent call last):" in result:
                result = result + "\\nThe code failed. Correct it, and run it again."
            """,
        ),
    ),
    Edit(
        "short_errors",
        FEEDBACK,
        "An error cut to its last lines leaves tokens for the repair.",
        "useful",
        (Sign.TOKEN_BUDGET, Sign.CUT_REPLY),
        start(
            "format_result",
            """
            if result.startswith("Traceback (most recent call last):"):
                result = "\\n".join(result.rstrip().split("\\n")[-3:])
            """,
        ),
    ),
    Edit(
        "ask_for_print",
        FEEDBACK,
        "A run without output that comes with the request to print is followed by one with output.",
        "useful",
        (Sign.THIN_RESULT, Sign.REPEATED_CALL),
        end(
            "format_result",
            """
            if result.startswith("No output"):
                result = result + "\\nRun it again with print(...) around the answer."
            """,
        ),
    ),
    Edit(
        "frame_result",
        FEEDBACK,
        "A result between marks is copied from more faithfully.",
        "useless",
        (Sign.GROUNDED_WRONG, Sign.UNUSED_RESULT),
        start("format_result", 'result = "[output]\\n" + result.rstrip("\\n") + "\\n[end of output]"'),
    ),
    Edit(
        "hide_errors",
        FEEDBACK,
        "A model that sees no error is not led astray by it.",
        "harmful",
        (Sign.REPEATED_CALL, Sign.GROUNDED_WRONG),
        start(
            "format_result",
            """
            if "Traceback (most recent call last):" in result:
                result = "Done."
            """,
        ),
    ),
)
_NUDGE_EDITS = (
    Edit(
        "ask_for_box",
        NUDGES,
        "A reply without a box that is sent back with a reminder is followed by one with a box.",
        "useful",
        (Sign.NO_ANSWER,),
        start(
            "nudge",
            """
            if "\\\\boxed{" not in reply.text and nudges < 2:
                return "Your reply has no answer. Put the final answer in \\\\boxed{}."
            """,
        ),
    ),
    Edit(
        "ask_for_code",
        NUDGES,
        "A reply that ran no code, sent back with the request to run some, is followed by a run.",
        "useful",
        (Sign.NO_TOOL_CALL,),
        start(
            "nudge",
            """
            if calls == 0 and nudges == 0:
                return "Check the answer by running code first."
            """,
        ),
    ),
    Edit(
        "explain_call_format",
        NUDGES,
        "A call that could not be read, answered with the right format, is followed by a readable one.",
        "useful",
        (Sign.MALFORMED_CALL, Sign.NO_TOOL_CALL),
        start(
            "nudge",
            """
            if "<tool_call>" in reply.raw and nudges < 2:
                return "Your tool call could not be read. Call code_interpreter with code, a Python program."
            """,
        ),
    ),
    Edit(
        "doubt_every_answer",
        NUDGES,
        "A model that is asked whether it is sure corrects wrong answers.",
        "harmful",
        (Sign.GROUNDED_WRONG, Sign.UNUSED_RESULT),
        start(
            "nudge",
            """
            if "\\\\boxed{" in reply.text and nudges == 0:
                return "Are you sure? That may well be wrong. Think about it again."
            """,
        ),
    ),
)
_TURN_EDITS = (
    Edit(
        "more_turns",
        TURNS,
        "Four turns instead of two let the model repair its code, and answer in the end.",
        "useful",
        (Sign.UNRUN_CALL, Sign.SINGLE_CALL, Sign.NO_ANSWER),
        raise_to(4, "MAX_TURNS"),
    ),
    Edit(
        "announce_last_turn",
        TURNS,
        "A last turn that is announced is used for the answer instead of another run.",
        "useful",
        (Sign.UNRUN_CALL, Sign.NO_ANSWER),
        end(
            "format_result",
            """
            if turns_left == 1:
                result = result + "\\nThis is your last turn: put the final answer in \\\\boxed{}."
            """,
        ),
    ),
    Edit(
        "close_thinking",
        TURNS,
        "Thinking that takes a third of the tokens, closed by the harness, still leads to a call or an answer.",
        "useful",
        (Sign.UNFINISHED_THINKING, Sign.CUT_REPLY, Sign.TOKEN_BUDGET),
        body(
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
        body("ask", "return await chat.reply(max_tokens=max(model.budgets.assistant_tokens // 16, 1))"),
    ),
    Edit(
        "single_turn",
        TURNS,
        "One turn is enough for most problems, and no turn is wasted on code that is never used.",
        "harmful",
        (Sign.TURN_BUDGET, Sign.UNUSED_RESULT),
        lower_to(1, "MAX_TURNS"),
    ),
)

CATALOGUE: tuple[Edit, ...] = (
    *_SYSTEM_EDITS,
    *_USER_EDITS,
    *_CODE_EDITS,
    *_FEEDBACK_EDITS,
    *_NUDGE_EDITS,
    *_TURN_EDITS,
)
