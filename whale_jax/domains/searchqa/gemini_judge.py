"""The judge's model over `google-genai` 3.x: the one module of this domain that imports the package.

The package has neither a timeout nor tries of its own unless it is told: here each request has a timeout (the package
counts it in milliseconds), and it is tried once, because `judge.LlmJudge` counts every try. `base_url` sends the same
client to another server.
"""

from __future__ import annotations

import logging
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whale_jax.domains.searchqa.backoff import retry_after
from whale_jax.domains.searchqa.judge import Completion, LlmJudge, ModelFailure
from whale_jax.domains.searchqa.judge_cache import VerdictCache
from whale_jax.domains.searchqa.judge_prompt import read_template
from whale_jax.domains.task import TaskError, canonical_json

_log = logging.getLogger(__name__)

KEY_VARIABLES = ("GEMINI_API_KEY", "GOOGLE_API_KEY")
_LATER = frozenset({408, 425, 429, 499, 500, 502, 503, 504})


@dataclass(frozen=True)
class GeminiSettings:
    """Which model is asked, and how.

    Attributes:
        model: its name at the service.
        thinking_budget: tokens of thinking; 0 turns it off, None leaves the model's default.
        max_output_tokens: bound of a reply, thinking included.
        timeout_seconds: for each of connecting, writing and the next bytes of the answer.
        base_url: another server than Google's.
    """

    model: str
    thinking_budget: int | None = 0
    max_output_tokens: int = 1_024
    timeout_seconds: float = 60.0
    base_url: str | None = None

    def __post_init__(self) -> None:
        if not self.model.strip():
            raise ValueError("GeminiSettings.model must name a model")
        if self.max_output_tokens < 1:
            raise ValueError(f"GeminiSettings.max_output_tokens must be >= 1, got {self.max_output_tokens}")
        if not 0 < self.timeout_seconds < math.inf:
            raise ValueError(f"GeminiSettings.timeout_seconds must be > 0, got {self.timeout_seconds}")


class GeminiModel:
    """Implements `judge.Model`, at temperature 0."""

    def __init__(self, settings: GeminiSettings, *, api_key: str | None = None) -> None:
        """Args:
            settings: which model, and how it is asked.
            api_key: None takes it from the environment (`KEY_VARIABLES`).

        Raises:
            TaskError: the package is not installed, or there is no key.
        """
        try:
            import httpx2
            from google import genai
            from google.genai import errors, types
        except ImportError as error:
            hint = "pip install 'whale-jax[gemini]'"
            raise TaskError(f"the LLM judge needs google-genai 3.x: {hint} ({error})") from error
        key = api_key or next((os.environ[name] for name in KEY_VARIABLES if os.environ.get(name)), None)
        if key is None:
            raise TaskError(f"the LLM judge needs a key in the environment: {' or '.join(KEY_VARIABLES)}")
        self._settings = settings
        self._api_error = errors.APIError
        self._network_error = httpx2.HTTPError
        thinking = None
        if settings.thinking_budget is not None:
            thinking = types.ThinkingConfig(thinking_budget=settings.thinking_budget)
        self._config = types.GenerateContentConfig(
            temperature=0.0, max_output_tokens=settings.max_output_tokens, thinking_config=thinking
        )
        self._http = httpx2.Client(timeout=settings.timeout_seconds)
        self._client = genai.Client(
            vertexai=False,
            api_key=key,
            http_options=types.HttpOptions(
                base_url=settings.base_url,
                timeout=math.ceil(settings.timeout_seconds * 1000),
                retry_options=types.HttpRetryOptions(attempts=1),
                httpx_client=self._http,
            ),
        )

    @property
    def name(self) -> str:
        """See `Model.name`."""
        settings = self._settings
        return canonical_json([settings.model, 0.0, settings.thinking_budget, settings.max_output_tokens])

    def complete(self, prompt: str) -> Completion:
        """See `Model.complete`."""
        try:
            response = self._client.models.generate_content(
                model=self._settings.model, contents=prompt, config=self._config
            )
        except self._api_error as error:
            _log.warning("%s: status %s: %s", self._settings.model, error.code, error.message)
            wait = retry_after(_header(error.response, "Retry-After"))
            raise ModelFailure(f"status {error.code}", again=error.code in _LATER, wait=wait) from error
        except self._network_error as error:
            raise ModelFailure(f"no answer from the service ({type(error).__name__})", again=True) from error
        except ValueError as error:  # JSON and pydantic errors: an answer that is none
            raise ModelFailure("the service's answer cannot be read", again=True) from error
        usage = response.usage_metadata
        return Completion(
            text=_text(response),
            prompt_tokens=(usage and usage.prompt_token_count) or 0,
            output_tokens=(usage and usage.candidates_token_count) or 0,
            thinking_tokens=(usage and usage.thoughts_token_count) or 0,
        )

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()


def make_judge(settings: GeminiSettings, *, prompt: Path | None, cache: Path | None) -> LlmJudge:
    """A judge on a Gemini model.

    Args:
        settings: which model, and how it is asked.
        prompt: a user's prompt (see `judge_prompt.read_template`); None takes this project's.
        cache: file of verdicts; None keeps none.

    Raises:
        TaskError: the package, the key, the prompt or the cache cannot be used.
    """
    template = None if prompt is None else read_template(prompt)
    return LlmJudge(GeminiModel(settings), template=template, cache=None if cache is None else VerdictCache(cache))


def _text(response: Any) -> str:
    """The text of the first candidate, thoughts left out; empty when it was blocked or is cut."""
    candidates = response.candidates or []
    if not candidates or candidates[0].finish_reason not in (None, "STOP"):
        return ""
    content = candidates[0].content
    return "".join(part.text or "" for part in (content.parts or [] if content else []) if not part.thought)


def _header(response: Any, name: str) -> str | None:
    headers = getattr(response, "headers", None)
    return None if headers is None else headers.get(name)
