"""What the made-up harnesses of the chess text tell the model, and how they lay a position out."""

import random
import re
from enum import StrEnum

from whale_jax.demo.conversation import sentences
from whale_jax.demo.spans import Told


class Axis(StrEnum):
    """What a sentence of a prompt is about."""

    FORMAT = "format"
    COPY = "copy"
    MATE = "mate"
    FORCING = "forcing"
    SHORT = "short"


SENTENCES: dict[Axis, tuple[str, ...]] = {
    Axis.FORMAT: (
        "Write the move as <move>e2e4</move>.",
        "Answer with one move in <move> tags.",
        "Put your move between <move> and </move>.",
        "Give one move in UCI, inside <move></move>.",
        "Reply with <move>...</move>.",
        "End with the move as <move>uci</move>.",
        "Only a move in <move>...</move> tags is read.",
    ),
    Axis.COPY: (
        "Only moves of the list are legal.",
        "Choose from the legal moves.",
        "Take a move that is in the list.",
        "Your move has to be one of the listed moves.",
        "Copy the squares exactly.",
    ),
    Axis.MATE: (
        "# marks checkmate.",
        "A move that ends with # is mate.",
        "In the list, + is check and # is mate.",
        "If a move mates, play it.",
        "Look for a move with #.",
    ),
    Axis.FORCING: (
        "Try checks first.",
        "Prefer forcing moves.",
        "Look at every check.",
        "Checks and captures come first.",
    ),
    Axis.SHORT: (
        "Think briefly.",
        "Keep your thinking to one sentence.",
        "Do not repeat yourself.",
        "Close your thinking with </think> and then act.",
        "Be brief.",
        "Think in a few words.",
    ),
}
ROLES = (
    "You are a helpful assistant.",
    "You play chess.",
    "You solve chess puzzles.",
    "You are a chess player.",
    "Find the best move.",
    "You find the best move in a position.",
)
REFUSED = (
    "This move is not possible.",
    "Try another move.",
    "I could not play that.",
    "That is not playable. Answer once more.",
    "Not possible. Try again.",
)
DOUBTS = ("Is that really best? Look again.", "Are you certain? Check it.")
ASKS = ("Which move do you play?", "Your move?", "What is the best move?", "Your answer:")
_BOARD = re.compile(r"Board:\n.*?a b c d e f g h\n", re.DOTALL)


def system_prompt(rng: random.Random, told: Told) -> str | None:
    """None, a role, or sentences; what they ask for is added to `told`."""
    shape = rng.random()
    if shape < 0.1:
        return None
    role = [rng.choice(ROLES)] if rng.random() < 0.75 else []
    axes = [Axis.FORMAT] if rng.random() < 0.65 else []
    count = rng.choices((0, 1, 2, 4), (35, 30, 25, 10))[0]
    axes += [axis for axis in rng.sample(list(Axis), count) if axis not in axes]
    return " ".join(role + sentences(rng, told, axes, SENTENCES)) or rng.choice(ROLES)


class Layout:
    """How one harness shows positions: as they come, or without some of their parts, with or without a question."""

    def __init__(self, rng: random.Random) -> None:
        shape = rng.random()
        self.board = shape < 0.6
        self.fen = shape < 0.5 or shape > 0.9
        self.san = rng.random() > 0.04
        self.list = rng.random() > 0.03
        self.asks = rng.random() < 0.3

    def __call__(self, observation: str, rng: random.Random, told: Told) -> str:
        """The position as the model reads it."""
        text = observation if self.board else _BOARD.sub("", observation)
        if not self.fen:
            text = "\n".join(line for line in text.split("\n") if not line.startswith("FEN: "))
        if not self.san:
            text = re.sub(r"\] SAN=\S+", "]", text)
        if not self.list:
            text = text.partition("\nLegal moves:")[0]
        if self.asks:
            text = f"{text}\n{rng.choice(ASKS)} {sentences(rng, told, [Axis.FORMAT], SENTENCES)[0]}"
        return text


def refusal(rng: random.Random, told: Told, problem: str) -> str:
    """What a harness says to a reply that could not be played; `problem` is the environment's word, "" without one."""
    parts = [problem] if problem and rng.random() < 0.5 else []
    if not parts or rng.random() < 0.5:
        parts.append(rng.choice(REFUSED))
    axes = [axis for axis in (Axis.FORMAT, Axis.COPY) if rng.random() < 0.6]
    return " ".join(parts + sentences(rng, told, axes, SENTENCES))
