"""Chess puzzles, initial harness: the position as it comes, one move in UCI per reply, one retry of each kind."""

import re

SYSTEM_PROMPT = "You solve chess puzzles. Answer with one move, written as <move>uci</move>."
RETRY_PROMPT = "That move cannot be played. Answer again with <move>uci</move>."

MAX_TURNS = 9
MAX_UNREADABLE = 1
MAX_ILLEGAL = 1


def present(observation):
    """What the model reads of a position."""
    return observation


def read_move(text):
    """The move that a reply names, None if there is none; "" leaves the reading to the environment."""
    found = re.findall(r"<move>([a-h][1-8][a-h][1-8][qrbn]?)</move>", text)
    return found[0] if len(found) == 1 else None


def feedback(problem):
    """What to answer to a reply that could not be played; `problem` is the environment's word, "" without one."""
    return RETRY_PROMPT


def second_thoughts(moves, doubts):
    """What to answer to a readable move instead of playing it; None plays it."""
    return None


async def after_refusal(model, chat, env, problem):
    """Answers a reply that could not be played; the chat in which to go on."""
    chat.user(feedback(problem))
    return chat


async def ask(model, chat):
    """One assistant turn."""
    return await chat.reply()


def next_chat(model, chat):
    """The chat in which the next position is shown."""
    return chat


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
        chat = await after_refusal(model, chat, env, result)
    return reply
