"""Edits of `h0.py` for the offline proposers: each changes what is named there, so that they compose in any order."""

from harness_search.proposers.edits import Edit
from harness_search.proposers.signs import Sign
from whale_jax.domains.changes import append, lower_to, raise_to, start

CATALOGUE = (
    Edit(
        "convert_first",
        "system prompt",
        "A system prompt that tells the model to convert before it answers makes answers without a call rarer.",
        "useful",
        (Sign.NO_TOOL_CALL, Sign.UNUSED_RESULT),
        append("SYSTEM_PROMPT", "Always call convert before you answer."),
    ),
    Edit(
        "ask_for_tags",
        "environment responses and nudges",
        "A reply without tags that is sent back with a reminder is followed by one with tags.",
        "useful",
        (Sign.NO_ANSWER,),
        start(
            "nudge",
            """
            if "<answer>" not in reply.text and nudges == 0:
                return "Put the number in <answer>...</answer>."
            """,
        ),
    ),
    Edit(
        "more_turns",
        "stop and turn budget",
        "Four turns instead of two leave room for a second conversion, and for the answer after it.",
        "useful",
        (Sign.UNRUN_CALL, Sign.NO_ANSWER),
        raise_to(4, "MAX_TURNS"),
    ),
    Edit(
        "expert_role",
        "system prompt",
        "An expert's role in the system prompt makes answers more often right.",
        "useless",
        (Sign.GROUNDED_WRONG,),
        append("SYSTEM_PROMPT", " You are a world-class metrologist."),
    ),
    Edit(
        "single_turn",
        "stop and turn budget",
        "One turn is enough, and none is lost on a conversion that is not used.",
        "harmful",
        (Sign.UNUSED_RESULT,),
        lower_to(1, "MAX_TURNS"),
    ),
)
