"""Units, strong harness by hand: asks for a conversion, then for tags, in up to four turns."""

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "convert",
            "description": "Convert an amount of one unit into another unit.",
            "parameters": {
                "type": "object",
                "properties": {
                    "amount": {"type": "integer"},
                    "unit": {"type": "string"},
                    "to": {"type": "string"},
                },
                "required": ["amount", "unit", "to"],
            },
        },
    }
]
SYSTEM_PROMPT = "Call convert once with plural units, then copy its number into the tags."
USER_PROMPT = "{question}\nPut the number in <answer>...</answer>."

NO_CALL_PROMPT = "Call convert first."
NO_TAGS_PROMPT = "Put the number alone in <answer>...</answer>."

MAX_TURNS = 4


def nudge(reply, nudges):
    """What to answer to a reply without a call; None takes it as the last one."""
    if nudges == 0 and "<answer>" not in reply.text:
        return NO_CALL_PROMPT
    return None if "<answer>" in reply.text else NO_TAGS_PROMPT


async def run(task, model, env):
    chat = model.chat(system=SYSTEM_PROMPT or None, tools=TOOLS)
    chat.user(USER_PROMPT.format(question=task.question))
    reply = await chat.reply()
    nudges = 0
    for _ in range(MAX_TURNS - 1):
        call = next((call for call in reply.tool_calls if call.name == "convert"), None)
        if call is not None:
            wanted = call.arguments
            chat.tool(await env.convert(wanted.get("amount"), wanted.get("unit"), wanted.get("to")))
        else:
            message = nudge(reply, nudges)
            if message is None:
                break
            chat.user(message)
            nudges += 1
        reply = await chat.reply()
    return reply
