"""SearchQA's training text as an endless stream: what it is made of at each moment of the training."""

import random
from dataclasses import dataclass, replace

from tokenizers import Tokenizer

from whale_jax.demo.data import Encoded, encode
from whale_jax.demo.episodes import chat_episode
from whale_jax.demo.exercises import exercise
from whale_jax.demo.manners import BASE, Manner
from whale_jax.demo.worlds import MadeUpWorld
from whale_jax.qwen3_5.template import ChatTemplate

TEXTS_PER_WORLD = 12


@dataclass(frozen=True)
class Mixture:
    """What the text is made of at one moment of the training.

    Attributes:
        exercises: share of texts that are exercises.
        silent: share of conversations that do not announce the tool in their head.
        manner: the assistant of the conversations.
    """

    exercises: float
    silent: float
    manner: Manner


def course(progress: float) -> Mixture:
    """First copying, then right conversations, at last those of a base model; `progress` is the share done."""
    exercises = 0.92 if progress < 0.15 else 0.5 if progress < 0.35 else 0.14
    flaws = 0.2 if progress < 0.5 else 0.5 if progress < 0.7 else 1.0
    return Mixture(exercises, silent=0.65 if progress < 0.4 else 0.1, manner=replace(BASE, flaws=flaws))


class TextStream:
    """Endless encoded texts: called with the share of the training that is done, it gives the next one."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, seed: int, limit: int) -> None:
        self._tokenizer, self._template, self._limit = tokenizer, template, limit
        self._rng = random.Random(seed)
        self._left = 0
        self._world: MadeUpWorld | None = None

    def __call__(self, progress: float) -> Encoded:
        mixture = course(progress)
        if self._world is None or self._left == 0:
            self._world, self._left = MadeUpWorld(self._rng.getrandbits(48)), TEXTS_PER_WORLD
        self._left -= 1
        if self._rng.random() < mixture.exercises:
            spans = exercise(self._rng, self._world)
        else:
            announce = self._rng.random() >= mixture.silent
            spans = chat_episode(self._rng, self._world, self._template, announce=announce, manner=mixture.manner)
        return encode(self._tokenizer, spans, self._limit)
