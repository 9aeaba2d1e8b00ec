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
SYSTEM_PROMPT = "You answer questions with the help of a search tool."
USER_PROMPT = "{question}\nPut the answer in <answer>...</answer>."

MAX_TURNS = 2
TOPK = 1
MAX_DOC_TOKENS = 200


def question_text(task):
    """The question as the model reads it."""
    return task.question


def select_queries(arguments, question):
    """The queries that are sent, out of the arguments of a search call."""
    queries = arguments.get("query_list") or []
    if not isinstance(queries, list):
        queries = [queries]
    queries = queries[:1]
    return queries


def format_result(result, turns_left):
    """What the model reads of a search result; `turns_left` assistant turns follow."""
    return result


def nudge(reply, searches, nudges):
    """What to answer to a reply without a search call; None takes it as the last one."""
    return None


def search_call(reply):
    """The reply's first search call, or None."""
    for call in reply.tool_calls:
        if call.name == "search":
            return call
    return None


async def ask(model, chat):
    """One assistant turn."""
    return await chat.reply()


async def run(task, model, env):
    chat = model.chat(system=SYSTEM_PROMPT, tools=TOOLS)
    chat.user(USER_PROMPT.format(question=question_text(task)))
    reply = await ask(model, chat)
    searches = 0
    nudges = 0
    for turns_left in range(MAX_TURNS - 1, 0, -1):
        call = search_call(reply)
        if call is not None:
            queries = select_queries(call.arguments, task.question)
            result = await env.search(queries, topk=TOPK, max_doc_tokens=MAX_DOC_TOKENS)
            chat.tool(format_result(result, turns_left))
            searches += 1
        else:
            message = nudge(reply, searches, nudges)
            if message is None:
                break
            chat.user(message)
            nudges += 1
        reply = await ask(model, chat)
    return reply
