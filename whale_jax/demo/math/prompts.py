"""What the made-up harnesses of the mathematics text tell the model; `whale_jax.demo.prompts` is SearchQA's."""

import random
from enum import StrEnum

from whale_jax.demo.conversation import sentences
from whale_jax.demo.spans import Told


class Axis(StrEnum):
    """What a sentence of a prompt is about."""

    CODE = "code"
    PRINT = "print"
    BOX = "box"
    NUMBER = "number"
    REPAIR = "repair"
    SHORT = "short"
    CALL = "call"


SENTENCES: dict[Axis, tuple[str, ...]] = {
    Axis.CODE: (
        "Use the Python tool.",
        "Run Python before answering.",
        "Compute with code, not by hand.",
        "Never calculate in your head: call the interpreter.",
        "You must run code at least once.",
        "First run code, then answer.",
        "Solve it with a short program.",
        "Use code_interpreter for every calculation.",
    ),
    Axis.PRINT: (
        "Print the result.",
        "The code has to print its result with print(...).",
        "Only what is printed can be seen.",
        "Remember to print the value at the end.",
        "Use print for the answer.",
        "A program that prints nothing is of no use.",
    ),
    Axis.BOX: (
        "Put the final answer in \\boxed{}.",
        "Give the answer as \\boxed{...}.",
        "Write the answer inside \\boxed{}.",
        "End with \\boxed{answer}.",
        "Finish with the answer in \\boxed{}, for example \\boxed{7}.",
        "The final reply has to contain \\boxed{answer}.",
        "Only \\boxed{...} is read.",
    ),
    Axis.NUMBER: (
        "The box holds a whole number.",
        "Answer with the number only.",
        "No words inside the box, just the number.",
        "Copy the number from the output exactly.",
        "Give only the number itself.",
        "The answer is one number.",
    ),
    Axis.REPAIR: (
        "If the code fails, fix it and call the tool once more.",
        "On an error, correct the program and try again.",
        "You can run code more than once.",
        "After an error, call the tool again with better code.",
        "Do not give up after an error.",
    ),
    Axis.SHORT: (
        "Think briefly.",
        "Keep your thinking to one sentence.",
        "Do not repeat yourself.",
        "Close your thinking with </think> and then act.",
        "Be brief.",
        "Think in a few words.",
    ),
    Axis.CALL: (
        "Follow the call format exactly.",
        "Pass the whole program as the parameter code.",
        "Write the call as shown above.",
        "The program goes into code, as plain text without marks.",
    ),
}
ROLES = (
    "You are a helpful assistant.",
    "You solve problems.",
    "You solve mathematical problems with Python.",
    "You are a careful mathematician.",
    "You can run Python code.",
    "Answer the question of the user.",
    "You are an assistant with a Python interpreter.",
)
USER_TEMPLATES = (
    "{question}",
    "{question}",
    "{question}",
    "Problem: {question}",
    "Solve: {question}",
    "Question: {question}",
    "Here is a problem. {question}",
    "Solve this problem. {question}",
)
DESCRIPTIONS = (
    "Run Python code.",
    "Runs Python.",
    "Execute a Python program and return its output.",
    "Run a program and see its output.",
    "A Python interpreter.",
)
AFTER_ERROR = (
    "The program failed. Fix it.",
    "Correct the code, then run it.",
    "There was an error: try again.",
    "Fix the error and call the tool again.",
)
AFTER_SILENCE = (
    "Use print to show the result.",
    "Nothing was printed: print the result.",
    "Run it again and print the answer.",
)
LAST_TURN = (
    "This is the last turn. Give the answer in \\boxed{}.",
    "One turn left: answer now in \\boxed{}.",
    "No more code. Answer with \\boxed{...} now.",
    "You have to answer now.",
    "Last turn: write \\boxed{answer}.",
)
NUDGE_BOX = (
    "There is no box. Give the answer in \\boxed{}.",
    "No answer found: write \\boxed{answer}.",
    "Your reply holds no \\boxed{}. Put the answer there.",
    "Please give the final answer in \\boxed{...}.",
)
NUDGE_CODE = (
    "Do not guess. Run code.",
    "No code was run. Use the interpreter.",
    "Please run Python to be sure.",
    "Check it with code.",
)
NUDGE_CALL = (
    "The call was malformed. Use the call format.",
    "Invalid call: pass the program as code.",
    "I could not read the tool call. Try again.",
    "Error: no readable call. Call code_interpreter again.",
)
NO_OUTPUT = (
    "No output: the code ran and printed nothing.",
    "No output: the code ran and printed nothing.",
    "No output.",
    "The code printed nothing.",
)


def system_prompt(rng: random.Random, told: Told) -> str | None:
    """None, a role, or sentences; what they ask for is added to `told`."""
    shape = rng.random()
    if shape < 0.35:
        return None
    if shape < 0.45:
        return rng.choice(ROLES)
    role = [rng.choice(ROLES)] if rng.random() < 0.6 else []
    count = rng.choices((1, 2, 3, 5), (40, 30, 20, 10))[0]
    return " ".join(role + sentences(rng, told, rng.sample(list(Axis), count), SENTENCES))


def user_prompt(rng: random.Random, told: Told, question: str) -> str:
    """The question in a template, mostly with the form of the answer."""
    axes = [Axis.BOX] if rng.random() < 0.7 else []
    axes += [axis for axis in rng.sample(list(Axis), rng.choice((0, 0, 0, 1, 2))) if axis not in axes]
    body = rng.choice(USER_TEMPLATES).format(question=question)
    separator = rng.choice(("\n", "\n", " "))
    extra = " ".join(sentences(rng, told, axes, SENTENCES))
    return separator.join(part for part in (body, extra) if part)


def code_tool(rng: random.Random) -> dict:
    """A JSON schema of the interpreter."""
    properties = {"code": {"type": "string"}}
    if rng.random() < 0.15:
        properties["code"]["description"] = "The program."
    function = {
        "name": "code_interpreter",
        "description": rng.choice(DESCRIPTIONS),
        "parameters": {"type": "object", "properties": properties, "required": ["code"]},
    }
    return {"type": "function", "function": function}
