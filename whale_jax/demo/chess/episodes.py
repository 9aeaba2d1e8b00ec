"""Whole conversations about puzzles, with the flaws of a small base model.

The assistant mostly names a move of the list, and the one that mates if the list shows one. At rates that depend on
what the conversation told it, it overlooks the mate, names a move that is not there, writes SAN or no tags, names two
moves, or never ends a thought. Where no move mates, it knows the right one at times.
"""

import random
import re
from dataclasses import dataclass

from whale_jax.demo.chess import prompts
from whale_jax.demo.chess.prompts import Axis, Layout
from whale_jax.demo.conversation import PROMPT_WEIGHT, Conversation
from whale_jax.demo.spans import Rates, Span, Told
from whale_jax.domains.chess.game import NO_MOVE, OVER, Game
from whale_jax.domains.chess.puzzle import Puzzle
from whale_jax.qwen3_5.template import ChatTemplate

LIST_WEIGHT = 0.03
"""Loss weight of a position."""

_MOVE = re.compile(r"\[(\w+)\] SAN=(\S+)")
_SQUARES = [f"{file}{rank}" for file in "abcdefgh" for rank in "12345678"]
_READ = re.compile(r"<move>([a-h][1-8][a-h][1-8][qrbn]?)</move>")

MATE_THOUGHTS = ("{san} is mate.", "{san} mates.", "There is a mate: {san}.", "The list shows {san}.", "{uci} is mate.")
PLAIN_THOUGHTS = (
    "I play {san}.",
    "{san} looks good.",
    "Maybe {san}.",
    "{uci} is possible.",
    "I see no mate. {san} then.",
    "I take a move from the list.",
    "Hard to say.",
)
RETRY_THOUGHTS = ("I try again: {san}.", "Then {san}.", "Another move: {uci}.", "Now with tags: {uci}.")
LOOPS = (
    "I look at the board.",
    "What does the king do?",
    "Let me think again.",
    "Wait, is that a check?",
    "First, the king.",
)
GIVE_UP = ("I do not know.", "I see no good move.", "No move.", "I am not sure.")


@dataclass(frozen=True)
class Move:
    """A line of the list."""

    uci: str
    san: str


@dataclass(frozen=True)
class Manner:
    """One assistant; each pair of rates is (untold, told).

    Attributes:
        flaws: scale of all rates.
        overlooks: plays another move where one mates.
        quiet: plays no check where the list shows one and no mate.
        ignorant: does not know the right move where none mates.
        illegal: names a move that is not in the list.
        untagged: no tags.
        san: SAN in the tags.
        several: two moves.
        gives_up: no move.
        loses_itself: never ends a thought.
    """

    flaws: float = 1.0
    overlooks: Rates = (0.50, 0.25)
    quiet: Rates = (0.70, 0.40)
    ignorant: Rates = (0.65, 0.65)
    illegal: Rates = (0.12, 0.05)
    untagged: Rates = (0.30, 0.12)
    san: Rates = (0.30, 0.16)
    several: Rates = (0.06, 0.03)
    gives_up: Rates = (0.05, 0.02)
    loses_itself: Rates = (0.05, 0.01)


BASE = Manner()


@dataclass(kw_only=True)
class _Episode(Conversation):
    game: Game
    line: tuple[str, ...]
    """The solver's moves."""
    manner: Manner
    layout: Layout
    strict: bool
    """The harness takes UCI in tags alone."""

    def open(self, template: ChatTemplate, system: str | None) -> None:
        user = self.layout(self.game.observe(), self.rng, self.told)
        messages = ([{"role": "system", "content": system}] if system else []) + [{"role": "user", "content": user}]
        rendered = template.render(messages, tools=[], thinking=self.thinking, generation_prompt=True)
        text = "".join(span.text for span in rendered)
        head, found, tail = text.partition(user)
        self.spans += [Span(head, PROMPT_WEIGHT), Span(found, LIST_WEIGHT), Span(tail, PROMPT_WEIGHT)]

    def acts(self, *, retry: bool) -> str | None:
        """One assistant turn: the text after its thinking; None when the thought never ended."""
        rng, manner = self.rng, self.manner
        if self.thinking and self.happens(Axis.SHORT, manner.loses_itself) and not self.loses_itself(LOOPS):
            return None
        moves = [Move(*found) for found in _MOVE.findall(self.game.observe())]
        if self.happens(Axis.COPY, manner.gives_up):
            text = rng.choice(GIVE_UP)
            self.say("I do not see it.", text)
            return text
        chosen = self.chooses(moves)
        thoughts = RETRY_THOUGHTS if retry else MATE_THOUGHTS if chosen.san.endswith("#") else PLAIN_THOUGHTS
        thought = rng.choice(thoughts).format(san=chosen.san, uci=chosen.uci)
        text = self.written(chosen, moves)
        self.say(thought, text)
        return text

    def chooses(self, moves: list[Move]) -> Move:
        """The move that is played."""
        rng, manner = self.rng, self.manner
        if self.happens(Axis.COPY, manner.illegal):
            uci = "".join(rng.sample(_SQUARES, 2))
            return Move(uci, rng.choice("QRKN") + uci[2:])
        mates = [move for move in moves if move.san.endswith("#")]
        if mates:
            return rng.choice(moves if self.happens(Axis.MATE, manner.overlooks) else mates)
        if not self.happens(Axis.FORCING, manner.ignorant):
            return next(move for move in moves if move.uci == self.line[self.game.found])
        checks = [move for move in moves if move.san.endswith("+")]
        return rng.choice(moves if not checks or self.happens(Axis.FORCING, manner.quiet) else checks)

    def written(self, move: Move, moves: list[Move]) -> str:
        """The move as the reply gives it."""
        rng, manner = self.rng, self.manner
        if self.happens(Axis.FORMAT, manner.untagged):
            return rng.choice((move.uci, move.san, f"I play {move.san}.", f"**{move.uci}**", f"<m>{move.uci}</m>"))
        if self.happens(Axis.FORMAT, manner.san):
            return f"<move>{move.san}</move>"
        if self.happens(Axis.FORMAT, manner.several):
            return f"<move>{move.uci}</move> or <move>{rng.choice(moves).uci}</move>"
        return f"<move>{move.uci}</move>"

    def plays(self) -> None:
        """The conversation, to its end."""
        refused = 0
        while True:
            text = self.acts(retry=refused > 0)
            if text is None:
                return
            problem, result = "", NO_MOVE
            if not self.strict or len(_READ.findall(text)) == 1:
                result = self.game.play(text)
                problem = self.game.problem or ""
            if result.startswith(OVER):
                return
            if not problem and not result.startswith(NO_MOVE):
                self.hear(self.layout(result, self.rng, self.told), LIST_WEIGHT)
                refused = 0
                continue
            refused += 1
            if refused > 2 or self.rng.random() < 0.3:
                return
            self.hear(prompts.refusal(self.rng, self.told, problem))


def chat_episode(rng: random.Random, puzzle: Puzzle, template: ChatTemplate, *, manner: Manner = BASE) -> list[Span]:
    """One conversation about one puzzle, from its head to where it ends or is cut."""
    told = Told({}, manner.flaws)
    game = Game(puzzle)
    line = puzzle.moves[1::2]
    episode = _Episode(
        rng=rng,
        thinking=rng.random() > 0.03,
        told=told,
        game=game,
        line=line,
        manner=manner,
        layout=Layout(rng),
        strict=rng.random() < 0.6,
    )
    system = prompts.system_prompt(rng, told)
    if len(line) > 1 and rng.random() < 0.4:  # a harness that gives each position a chat of its own
        game.play(f"<move>{line[0]}</move>")
    episode.open(template, system)
    episode.plays()
    return episode.spans
