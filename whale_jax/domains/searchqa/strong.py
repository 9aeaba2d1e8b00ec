"""SearchQA, a strong harness written by hand: the yardstick for harnesses that a search finds.

It asks for three passages per query and runs every query, shows no passage twice, allows several searches, tells the
model when its last turn has come, and talks back to a reply that neither searches nor answers.
"""

import json

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Search for passages.",
            "parameters": {
                "type": "object",
                "properties": {"query_list": {"type": "array", "items": {"type": "string"}}},
                "required": ["query_list"],
            },
        },
    }
]
SYSTEM_PROMPT = (
    "You answer questions with the help of a search tool. Always search before you answer. "
    "It can take more than one search: where a fact depends on another, look up that other one before. "
    "Think in one short sentence."
)
USER_PROMPT = "{question}\nPut the answer in <answer>...</answer>. It is a name or a number, copied from a passage."
LAST_TURN_PROMPT = "No turn is left after this one: reply with <answer>...</answer>."
NO_ANSWER_PROMPT = "There is no answer in your reply. Search once more, or write it as <answer>...</answer>."
NO_SEARCH_PROMPT = "No search has been made. Look it up with a tool call, then answer."
BAD_CALL_PROMPT = "That tool call has a mistake. Call search with query_list, a JSON list of texts."

MAX_TURNS = 4
TOPK = 3
MAX_DOC_TOKENS = 200
MAX_QUERIES = 3


def question_text(task):
    """The question as the model reads it."""
    return task.question


def select_queries(arguments, question):
    """All distinct queries of a search call; the question itself when there is none."""
    queries = arguments.get("query_list") or []
    if not isinstance(queries, list):
        queries = [queries]
    queries = [str(query).strip() for query in queries]
    queries = list(dict.fromkeys(query for query in queries if query))[:MAX_QUERIES]
    return queries or [question]


def new_documents(result, shown):
    """The text of a search result without documents that the model has seen; `shown` collects them."""
    text = json.loads(result)["result"]
    if not text.startswith("Doc "):
        return text + " Try other words."
    documents = []
    for document in text.split("\n\n"):
        body = document.partition(" ")[2].partition(" ")[2]
        if body not in shown:
            shown.add(body)
            documents.append(document)
    return "\n\n".join(documents) or "Nothing new was found. Try other words."


def format_result(result, turns_left):
    """What the model reads of a search result; `turns_left` assistant turns follow."""
    result = json.dumps({"result": result}, ensure_ascii=False)
    if turns_left == 1:
        result = result + "\n" + LAST_TURN_PROMPT
    return result


def nudge(reply, searches, nudges):
    """What to answer to a reply without a search call; None takes it as the last one."""
    if "<tool_call>" in reply.raw:
        return BAD_CALL_PROMPT
    if searches == 0 and nudges == 0:
        return NO_SEARCH_PROMPT
    if "</answer>" not in reply.text:
        return NO_ANSWER_PROMPT
    return None


def search_call(reply):
    """The reply's first search call, or None."""
    for call in reply.tool_calls:
        if call.name == "search":
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
    searches = 0
    nudges = 0
    shown = set()
    for turns_left in range(MAX_TURNS - 1, 0, -1):
        call = search_call(reply)
        if call is not None:
            queries = select_queries(call.arguments, task.question)
            result = await env.search(queries, topk=TOPK, max_doc_tokens=MAX_DOC_TOKENS)
            chat.tool(format_result(new_documents(result, shown), turns_left))
            searches += 1
        else:
            message = nudge(reply, searches, nudges)
            if message is None:
                break
            chat.user(message)
            nudges += 1
        if reply.remaining is not None and (reply.remaining.tokens == 0 or reply.remaining.turns == 0):
            break
        reply = await ask(model, chat)
    return reply
