"""SearchQA, initial harness: the first query, one passage, two assistant turns."""

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Search for passages.",
            "parameters": {
                "type": "object",
                "properties": {
                    "query_list": {"type": "array", "items": {"type": "string"}},
                    "topk": {"type": "integer"},
                    "max_doc_tokens": {"type": "integer"},
                },
                "required": ["query_list"],
            },
        },
    }
]
SYSTEM_PROMPT = "You are a helpful assistant."
USER_PROMPT = "{question}\nPut the answer in <answer>...</answer>."

MAX_TURNS = 2
TOPK = 1
MAX_DOC_TOKENS = 200


def select_queries(arguments):
    """The queries that are sent, out of the arguments of a call."""
    queries = arguments.get("query_list") or []
    if isinstance(queries, str):
        queries = [queries]
    return queries[:1]


def format_result(result, turns_left):
    """What the model reads of a search result."""
    return result


def nudge(reply, searches, nudges):
    """What to tell the model when it neither searched nor may stop; None accepts the reply as the last one."""
    return None


def first_call(reply):
    """The reply's first search call, or None."""
    for call in reply.tool_calls:
        if call.name == "search":
            return call
    return None


async def ask(chat):
    """One assistant turn."""
    return await chat.reply()


async def search(env, queries):
    """One search."""
    return await env.search(queries, topk=TOPK, max_doc_tokens=MAX_DOC_TOKENS)


async def run(task, model, env):
    chat = model.chat(system=SYSTEM_PROMPT, tools=TOOLS)
    chat.user(USER_PROMPT.format(question=task.question))
    reply = await ask(chat)
    searches = 0
    nudges = 0
    for turn in range(2, MAX_TURNS + 1):
        turns_left = MAX_TURNS - turn + 1
        call = first_call(reply)
        if call is not None:
            result = await search(env, select_queries(call.arguments))
            chat.tool(format_result(result, turns_left))
            searches += 1
        else:
            message = nudge(reply, searches, nudges)
            if message is None:
                break
            chat.user(message)
            nudges += 1
        reply = await ask(chat)
    return reply
