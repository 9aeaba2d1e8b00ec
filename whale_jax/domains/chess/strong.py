"""Chess puzzles, a strong harness written by hand: the yardstick for harnesses that a search finds.

It explains the notation, shows each position in a chat of its own without the redundant board, takes a move however it
is spelled, says what was wrong with one that cannot be played, allows several retries, and closes thinking that takes
too long. It neither ranks nor picks moves: those are the model's.
"""

SYSTEM_PROMPT = (
    "You solve chess puzzles. Think in one short sentence, then write one move as <move>uci</move>. "
    "Copy the move from the list of legal moves. In SAN, + means check and # means checkmate."
)
ASK_PROMPT = "Which move? Write it as <move>uci</move>."
RETRY_PROMPT = "Answer with one move of the list, written as <move>uci</move>."

MAX_TURNS = 16
MAX_UNREADABLE = 4
MAX_ILLEGAL = 4


def present(observation):
    """What the model reads of a position."""
    head, found, rest = observation.partition("\nBoard:\n")
    if found:
        observation = head + "\n" + rest.partition("  a b c d e f g h\n")[2]
    observation = observation + "\n" + ASK_PROMPT
    return observation


def read_move(text):
    """The move that a reply names, None if there is none; "" leaves the reading to the environment."""
    return ""


def feedback(problem):
    """What to answer to a reply that could not be played; `problem` is the environment's word, "" without one."""
    return (problem + "\n" + RETRY_PROMPT).strip()


def second_thoughts(moves, doubts):
    """What to answer to a readable move instead of playing it; None plays it."""
    return None


async def after_refusal(model, chat, env, problem):
    """Answers a reply that could not be played; the chat in which to go on."""
    chat.user(feedback(problem))
    return chat


async def ask(model, chat):
    """One assistant turn. Thinking that takes a quarter of the episode's tokens is closed, and the turn goes on."""
    reply = await chat.reply(max_tokens=max(model.budgets.assistant_tokens // 4, 16))
    if reply.finish == "length" and "</think>" not in reply.raw and (reply.remaining is None or reply.remaining.tokens):
        reply = await chat.extend_reply("\n</think>\n\n")
    return reply


def next_chat(model, chat):
    """The chat in which the next position is shown."""
    return model.chat(system=SYSTEM_PROMPT)


async def run(task, model, env):
    chat = model.chat(system=SYSTEM_PROMPT)
    chat.user(present(await env.observe()))
    unreadable = 0
    illegal = 0
    moves = 0
    doubts = 0
    for _ in range(MAX_TURNS):
        reply = await ask(model, chat)
        move = read_move(reply.text)
        if move is not None:
            doubt = second_thoughts(moves, doubts)
            if doubt is not None:
                doubts += 1
                chat.user(doubt)
                continue
            result = await env.play(reply, move or None)
            if result.startswith("Puzzle over: "):
                break
            if not result.startswith(("Illegal move: ", "No move read: ")):
                moves += 1
                chat = next_chat(model, chat)
                chat.user(present(result))
                continue
            if result.startswith("Illegal move: "):
                illegal += 1
            else:
                unreadable += 1
        else:
            result = ""
            unreadable += 1
        if unreadable > MAX_UNREADABLE or illegal > MAX_ILLEGAL:
            break
        if reply.remaining is not None and (reply.remaining.tokens == 0 or reply.remaining.turns == 0):
            break
        chat = await after_refusal(model, chat, env, result)
    return reply
