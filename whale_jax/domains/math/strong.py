"""Math, a strong harness written by hand: the yardstick for harnesses that a search finds.

It cleans code up before it runs it and prints a last expression only where that is sound, keeps errors short and says
what to do about them, allows several runs, tells the model when its last turn has come, and talks back to a reply that
neither runs code nor boxes an answer.
"""

import ast
import textwrap

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "code_interpreter",
            "description": "Run Python code and read what it prints. numpy, sympy and mpmath are installed.",
            "parameters": {
                "type": "object",
                "properties": {"code": {"type": "string"}},
                "required": ["code"],
            },
        },
    }
]
SYSTEM_PROMPT = (
    "You solve mathematics problems with the help of a Python interpreter. Think in one short sentence, then run code "
    "that prints the answer. Nothing is kept from one run to the next."
)
USER_PROMPT = "{question}\nPut the final answer in \\boxed{{}}: a number, without words."
LAST_TURN_PROMPT = "This is your last turn: put the final answer in \\boxed{}."
NO_ANSWER_PROMPT = "Your reply has no answer. Run code, or put the final answer in \\boxed{}."
NO_CODE_PROMPT = "Check the answer by running code first."
BAD_CALL_PROMPT = "Your tool call could not be read. Call code_interpreter with code, a Python program."
ERROR_PROMPT = "The code failed. Correct it, and run it again."
NO_OUTPUT_PROMPT = "The code printed nothing. Run it again with print(...) around the answer."

MAX_TURNS = 4
MAX_ERROR_LINES = 4


def question_text(task):
    """The question as the model reads it."""
    return task.question


def clean_code(code):
    """The code without common indentation and without the marks of an interactive session."""
    lines = textwrap.dedent(code.strip("\n")).split("\n")
    return "\n".join(line.removeprefix(">>> ").removeprefix("... ") for line in lines).rstrip()


def show_last(code):
    """The code with a bare last expression wrapped in print, if it parses and does not print already."""
    try:
        body = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return code
    if not body or not isinstance(body[-1], ast.Expr) or "print(" in code:
        return code
    lines = code.split("\n")
    at = body[-1].lineno - 1
    last = "\n".join(lines[at:]).rstrip().rstrip(";")
    if body[-1].col_offset or "#" in last:
        return code
    return "\n".join([*lines[:at], "print(" + last + ")"])


def fenced(code):
    """The text of all fenced blocks; the whole code where there is none."""
    parts = code.split("```")
    blocks = [part.partition("\n")[2] if "\n" in part else part for part in parts[1::2]]
    return "\n".join(blocks) or code


def extract_code(arguments):
    """The code that is run, out of the arguments of a call."""
    code = str(arguments.get("code") or "")
    return show_last(clean_code(fenced(code)))


def format_result(result, turns_left):
    """What the model reads of a result; `turns_left` assistant turns follow."""
    lines = result.rstrip().split("\n")
    if "Traceback (most recent call last):" in lines:
        result = "\n".join(lines[-MAX_ERROR_LINES:]) + "\n" + ERROR_PROMPT
    elif result.startswith("No output"):
        result = NO_OUTPUT_PROMPT
    if turns_left == 1:
        result = result.rstrip("\n") + "\n" + LAST_TURN_PROMPT
    return result


def nudge(reply, calls, nudges):
    """What to answer to a reply without a call; None takes it as the last one."""
    if "<tool_call>" in reply.raw:
        return BAD_CALL_PROMPT
    if calls == 0 and nudges == 0:
        return NO_CODE_PROMPT
    if "\\boxed{" not in reply.text:
        return NO_ANSWER_PROMPT
    return None


def code_call(reply):
    """The reply's first call of the interpreter, or None."""
    for call in reply.tool_calls:
        if call.name == "code_interpreter":
            return call
    return None


async def ask(model, chat):
    """One assistant turn. Thinking that takes a third of the episode's tokens is closed, and the turn goes on."""
    reply = await chat.reply(max_tokens=max(model.budgets.assistant_tokens // 3, 16))
    if reply.finish == "length" and "</think>" not in reply.raw and (reply.remaining is None or reply.remaining.tokens):
        reply = await chat.extend_reply("\n</think>\n\n")
    return reply


async def run(task, model, env):
    chat = model.chat(system=SYSTEM_PROMPT, tools=TOOLS)
    chat.user(USER_PROMPT.format(question=question_text(task)))
    reply = await ask(model, chat)
    calls = 0
    nudges = 0
    for turns_left in range(MAX_TURNS - 1, 0, -1):
        call = code_call(reply)
        if call is not None:
            result = await env.run_code(extract_code(call.arguments))
            chat.tool(format_result(result, turns_left))
            calls += 1
        else:
            message = nudge(reply, calls, nudges)
            if message is None:
                break
            chat.user(message)
            nudges += 1
        if reply.remaining is not None and (reply.remaining.tokens == 0 or reply.remaining.turns == 0):
            break
        reply = await ask(model, chat)
    return reply
