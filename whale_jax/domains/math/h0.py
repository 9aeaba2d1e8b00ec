"""Math, initial harness: runs the code of the first call, two assistant turns."""

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "code_interpreter",
            "description": "Run Python code.",
            "parameters": {
                "type": "object",
                "properties": {"code": {"type": "string"}},
                "required": ["code"],
            },
        },
    }
]
SYSTEM_PROMPT = ""
USER_PROMPT = "{question}\nPut the final answer in \\boxed{{}}."

MAX_TURNS = 2


def question_text(task):
    """The question as the model reads it."""
    return task.question


def clean_code(code):
    """The code without what is no code."""
    return code


def show_last(code):
    """The code with a bare last expression wrapped in print."""
    lines = code.rstrip().split("\n")
    last = lines[-1].strip()
    if last and "=" not in last and not last.startswith(("print", "import", "from", "#")):
        lines[-1] = lines[-1].replace(last, "print(" + last + ")")
    return "\n".join(lines)


def extract_code(arguments):
    """The code that is run, out of the arguments of a call: the first fenced block if there is one."""
    code = str(arguments.get("code") or "")
    if "```" in code:
        code = code.split("```")[1]
        code = code.removeprefix("python")
    return show_last(clean_code(code))


def format_result(result, turns_left):
    """What the model reads of a result; `turns_left` assistant turns follow."""
    return result


def nudge(reply, calls, nudges):
    """What to answer to a reply without a call; None takes it as the last one."""
    return None


def code_call(reply):
    """The reply's first call of the interpreter, or None."""
    for call in reply.tool_calls:
        if call.name == "code_interpreter":
            return call
    return None


async def ask(model, chat):
    """One assistant turn."""
    return await chat.reply()


async def run(task, model, env):
    chat = model.chat(system=SYSTEM_PROMPT or None, tools=TOOLS)
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
        reply = await ask(model, chat)
    return reply
