"""An LLM judge of short answers: tries, concurrency, cache and account. What talks to a model is `gemini_judge`."""

from __future__ import annotations

import hashlib
import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from typing import Protocol

from whale_jax.domains.searchqa.backoff import Backoff
from whale_jax.domains.searchqa.judge_cache import VerdictCache
from whale_jax.domains.searchqa.judge_prompt import build_prompt, default_template, parse_verdict
from whale_jax.domains.task import canonical_json

_log = logging.getLogger(__name__)

_BACKOFF = Backoff(attempts=3, first_seconds=1.0, longest_seconds=30.0)


@dataclass(frozen=True)
class Judgement:
    """What the judge says. `correct` is None when there is no verdict; `reason` then says why."""

    correct: bool | None
    reason: str


class Judge(Protocol):
    """Decides whether an answer is one of the accepted ones. Called from several threads."""

    @property
    def identity(self) -> str:
        """A digest of what decides its verdicts."""
        ...

    def judge(self, question: str, references: Sequence[str], answer: str) -> Judgement:
        """The verdict; never raises for what a judge can do wrong."""
        ...


@dataclass(frozen=True)
class Completion:
    """A model's reply to one prompt, with what it cost.

    Attributes:
        text: the reply; empty when the model gave none.
        prompt_tokens: tokens of the prompt.
        output_tokens: tokens of the reply, thinking left out.
        thinking_tokens: tokens of thinking.
    """

    text: str
    prompt_tokens: int = 0
    output_tokens: int = 0
    thinking_tokens: int = 0


class ModelFailure(Exception):
    """A model could not be asked.

    Attributes:
        again: whether the same request may succeed later.
        wait: seconds that the service asked to wait; None when it did not.
    """

    def __init__(self, reason: str, *, again: bool, wait: float | None = None) -> None:
        super().__init__(reason)
        self.again = again
        self.wait = wait


class Model(Protocol):
    """A language model behind a service. Called from several threads."""

    @property
    def name(self) -> str:
        """The model and all settings that decide what it says: part of the cache's key."""
        ...

    def complete(self, prompt: str) -> Completion:
        """The reply to one prompt. Raises ModelFailure."""
        ...


@dataclass(frozen=True)
class Prices:
    """US dollars per million tokens; thinking is billed as output."""

    input: float
    output: float


@dataclass
class Usage:
    """The judge's account since it was made.

    Attributes:
        questions: answers to be judged.
        cached: of these, verdicts that the cache knew.
        shared: of these, verdicts that another thread was asking for already.
        unscored: of these, ones that got no verdict.
        requests: requests to the model.
        failed: of these, ones that got no reply.
        unreadable: of these, ones whose reply was no verdict.
        prompt_tokens, output_tokens, thinking_tokens: of all replies.
    """

    questions: int = 0
    cached: int = 0
    shared: int = 0
    unscored: int = 0
    requests: int = 0
    failed: int = 0
    unreadable: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    thinking_tokens: int = 0

    def cost(self, prices: Prices) -> float:
        """US dollars."""
        output = self.output_tokens + self.thinking_tokens
        return (self.prompt_tokens * prices.input + output * prices.output) / 1e6

    def to_json(self) -> dict[str, int]:
        """JSON-able form."""
        return asdict(self)


@dataclass(frozen=True)
class JudgeSettings:
    """How a model is asked.

    Attributes:
        backoff: tries per answer, and waits between them.
        concurrency: requests at the same time.
    """

    backoff: Backoff = field(default=_BACKOFF)
    concurrency: int = 64

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise ValueError(f"JudgeSettings.concurrency must be >= 1, got {self.concurrency}")


class LlmJudge:
    """Implements `Judge` on a `Model`. The same answer is asked for once, however many episodes give it."""

    def __init__(
        self,
        model: Model,
        *,
        template: str | None = None,
        cache: VerdictCache | None = None,
        settings: JudgeSettings = JudgeSettings(),
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Args:
        model: what is asked.
        template: the prompt with its placeholders (see `read_template`); None takes this project's.
        cache: verdicts that are kept; None keeps none beyond the requests in flight.
        settings: tries and concurrency.
        sleep: waits between tries.
        """
        self._model = model
        self._template = default_template() if template is None else template
        self._cache = cache
        self._settings = settings
        self._sleep = sleep
        self._chance = random.Random()
        self._free = threading.BoundedSemaphore(settings.concurrency)
        self._lock = threading.Lock()
        self._asking: dict[str, Future[Judgement]] = {}
        self._usage = Usage()

    @property
    def identity(self) -> str:
        """A digest of what decides the verdicts: the model, its settings and the prompt."""
        return hashlib.sha256(canonical_json([self._model.name, self._template]).encode()).hexdigest()

    @property
    def usage(self) -> Usage:
        """The account so far."""
        with self._lock:
            return Usage(**self._usage.to_json())

    def judge(self, question: str, references: Sequence[str], answer: str) -> Judgement:
        """See `Judge.judge`."""
        prompt = build_prompt(self._template, question, references, answer)
        key = hashlib.sha256(canonical_json([self._model.name, prompt]).encode()).hexdigest()
        with self._lock:
            self._usage.questions += 1
            other = self._asking.get(key)
            mine: Future[Judgement] = Future()
            if other is None:
                self._asking[key] = mine
            else:
                self._usage.shared += 1
        if other is not None:
            return self._counted(other.result())
        try:
            judgement = self._known(key) or self._ask(prompt)
            if self._cache is not None and judgement.correct is not None:
                self._cache.put(key, judgement.correct)
            mine.set_result(judgement)
        except BaseException as error:
            mine.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._asking[key]
        return self._counted(judgement)

    def _known(self, key: str) -> Judgement | None:
        correct = None if self._cache is None else self._cache.get(key)
        if correct is None:
            return None
        self._add(cached=1)
        return Judgement(correct, "judge")

    def _ask(self, prompt: str) -> Judgement:
        backoff = self._settings.backoff
        failures = 0
        while True:
            again, wait = True, None
            try:
                with self._free:
                    self._add(requests=1)
                    completion = self._model.complete(prompt)
            except ModelFailure as failure:
                self._add(failed=1)
                again, wait, reason = failure.again, failure.wait, str(failure)
            else:
                correct = parse_verdict(completion.text)
                self._add(
                    unreadable=int(correct is None),
                    prompt_tokens=completion.prompt_tokens,
                    output_tokens=completion.output_tokens,
                    thinking_tokens=completion.thinking_tokens,
                )
                if correct is not None:
                    return Judgement(correct, "judge")
                reason = "its reply was no verdict" if completion.text else "its reply was empty"
                _log.warning("the judge's reply is no verdict: %r", completion.text[:200])
            failures += 1
            if not again or failures >= backoff.attempts:
                _log.warning("the judge gave no verdict after %d tries: %s", failures, reason)
                return Judgement(None, f"the judge gave no verdict: {reason}")
            self._sleep(backoff.seconds(failures, self._chance, asked=wait))

    def _counted(self, judgement: Judgement) -> Judgement:
        self._add(unscored=int(judgement.correct is None))
        return judgement

    def _add(self, **amounts: int) -> None:
        with self._lock:
            for name, amount in amounts.items():
                setattr(self._usage, name, getattr(self._usage, name) + amount)
