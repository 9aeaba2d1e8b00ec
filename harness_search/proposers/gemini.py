"""The `gemini` proposer: a hosted Gemini model works over the workspace with the project's own tools.

Needs google-genai 3.x (the extra `gemini`), which is imported when a proposer is made. The client library sends the
requests and nothing else: its automatic function calling and continuation are off, it is given a time-out (it has none
of its own), and repeats are the tool loop's, so that every one of them is counted. Keys come from the environment,
cross to the client alone, and are cut out of every text that leaves this module.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from email.utils import parsedate_to_datetime
from typing import Any, NoReturn

from harness_search.proposers.base import (
    EmptySlot,
    Proposal,
    ProposerSettingsError,
    ProposerUnreachable,
    ProposerUsage,
)
from harness_search.proposers.limits import Account, Prices, SessionLimits
from harness_search.proposers.redact import Redactor
from harness_search.proposers.session_log import SessionLog
from harness_search.proposers.tool_loop import (
    Content,
    Retries,
    ToolLoop,
    Transport,
    TransportError,
    opening,
    system_text,
)
from harness_search.proposers.toolbox import TOOLS, Check, Toolbox
from harness_search.sandbox.backends import Backend, BackendName
from harness_search.workspace import Workspace, total_usage

KEY_VARIABLES = ("GEMINI_API_KEY", "GOOGLE_API_KEY")
THINKING_LEVELS = ("default", "minimal", "low", "medium", "high")
_RETRYABLE = frozenset({408, 425, 429, 500, 502, 503, 504})
_MAX_ERROR_CHARS = 500
_MAX_REPLY_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class GeminiSettings:
    """Which model, where, and how hard it thinks.

    Attributes:
        model: its name at the endpoint.
        vertex: use Vertex AI with the application default credentials, instead of an API key.
        project, location: of Vertex AI.
        base_url: another address of the API; None: the endpoint's own.
        thinking_level: one of `THINKING_LEVELS`; "default" leaves it to the model.
    """

    model: str
    vertex: bool = False
    project: str | None = None
    location: str | None = None
    base_url: str | None = None
    thinking_level: str = "default"

    def __post_init__(self) -> None:
        if self.thinking_level not in THINKING_LEVELS:
            raise ProposerSettingsError(
                f"the thinking level must be one of {', '.join(THINKING_LEVELS)}, got {self.thinking_level!r}"
            )
        if self.vertex and not (self.project and self.location):
            raise ProposerSettingsError("Vertex AI needs a project and a location")


class GeminiProposer:
    """One tool-loop session per iteration. See `tool_loop` for its course and `limits` for its bounds."""

    name = "gemini"

    def __init__(
        self,
        settings: GeminiSettings,
        *,
        manual: str,
        skill: str,
        backend: Backend,
        check: Check,
        limits: SessionLimits | None = None,
        retries: Retries | None = None,
        prices: Prices | None = None,
    ) -> None:
        """Raises ProposerSettingsError: google-genai or the key is missing, or a money limit has no prices."""
        self._settings, self._backend, self._check = settings, backend, check
        self._limits, self._retries, self._prices = limits or SessionLimits(), retries or Retries(), prices
        self._system = system_text(manual, skill)
        self._tools = [tool.declaration() for tool in TOOLS]
        self._usage: dict[int, Account] = {}
        try:
            Account(self._limits, prices, {})
        except ValueError as error:
            raise ProposerSettingsError(str(error)) from None
        self._endpoint = GeminiEndpoint(settings, self._retries.call_seconds)

    async def propose(
        self, workspace: Workspace, *, iteration: int, slots: int, seed: int
    ) -> AsyncGenerator[Proposal | EmptySlot, None]:
        account = Account(self._limits, self._prices, total_usage(workspace.history))
        self._usage[iteration] = account
        start = {
            "event": "start",
            "proposer": self.name,
            "model": self._settings.model,
            "thinking_level": self._settings.thinking_level,
            "limits": asdict(self._limits),
            "prices": asdict(self._prices) if self._prices else None,
            "slots": slots,
            "system": self._system,
            "tools": self._tools,
            "opening": opening(iteration, slots),
        }
        # Without a sandbox a script of the model's could write; then the workspace is made anew from the archive.
        before = workspace.fingerprint() if self._backend.name is BackendName.NONE else None
        try:
            async with self._endpoint.connect() as transport:
                loop = self._loop(workspace, iteration, slots, account, start, transport)
                async for proposal in loop.run(slots):
                    yield proposal
        finally:
            if before is not None and workspace.fingerprint() != before:
                workspace.discard()

    def _loop(
        self,
        workspace: Workspace,
        iteration: int,
        slots: int,
        account: Account,
        start: Mapping[str, Any],
        transport: Transport,
    ) -> ToolLoop:
        chars = self._limits.result_chars
        return ToolLoop(
            transport=transport,
            toolbox=Toolbox(workspace, slots=slots, backend=self._backend, check=self._check, result_chars=chars),
            log=SessionLog(workspace.session_directory(iteration)),
            account=account,
            start=start,
            retries=self._retries,
        )

    def usage(self, iteration: int) -> ProposerUsage:
        return self._usage[iteration].usage


class GeminiEndpoint:
    """Where the model is, and the right to talk to it."""

    def __init__(self, settings: GeminiSettings, call_seconds: float) -> None:
        """Raises ProposerSettingsError: google-genai or the key is missing."""
        try:
            from google import genai
            from google.genai import types
        except ImportError as error:
            raise ProposerSettingsError(
                f"the gemini proposer needs google-genai: pip install 'whale-jax[gemini]' ({error})"
            ) from None
        self.settings, self._call_seconds = settings, call_seconds
        self.genai, self.types = genai, types
        self.redact = Redactor.of_environment(KEY_VARIABLES)
        self._key: str | None = None
        if not settings.vertex:
            self._key = next((os.environ[name] for name in KEY_VARIABLES if os.environ.get(name)), None)
            if self._key is None:
                raise ProposerSettingsError(
                    f"the gemini proposer needs a key in the environment variable {' or '.join(KEY_VARIABLES)}"
                )

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Transport]:
        """A client for one session; it belongs to the event loop that it is made on."""
        http, network_errors = _http_library()
        hooks = {"response": [_check_body]}
        async with http.AsyncClient(timeout=self._call_seconds, event_hooks=hooks) as connection:
            options = self.types.HttpOptions(
                base_url=self.settings.base_url,
                timeout=int(self._call_seconds * 1000),
                httpx_async_client=connection,
            )
            where: dict[str, Any] = {"vertexai": False, "api_key": self._key}
            if self.settings.vertex:
                where = {"vertexai": True, "project": self.settings.project, "location": self.settings.location}
            try:
                client = self.genai.Client(**where, http_options=options)
            except (ValueError, *network_errors) as error:
                raise ProposerUnreachable(self.text(f"the gemini client cannot be made: {error}")) from None
            try:
                yield _Transport(self, client, network_errors)
            finally:
                client.close()

    def text(self, text: str) -> str:
        """An error's text on one line, bounded, without the key."""
        return self.redact(" ".join(text.split()))[:_MAX_ERROR_CHARS]


class _Transport:
    """The real client behind `tool_loop.Transport`."""

    def __init__(self, endpoint: GeminiEndpoint, client: Any, network_errors: tuple[type[Exception], ...]) -> None:
        self._endpoint, self._client, self._network_errors = endpoint, client, network_errors

    async def generate(
        self, system: str, tools: Sequence[Mapping[str, Any]], contents: Sequence[Content], max_output_tokens: int
    ) -> dict[str, Any]:
        endpoint = self._endpoint
        content = endpoint.types.Content
        try:
            response = await self._client.aio.models.generate_content(
                model=endpoint.settings.model,
                contents=[content.model_validate_json(json.dumps(one)) for one in contents],
                config=self._config(system, tools, max_output_tokens),
            )
            reply = response.model_dump(mode="json", by_alias=True, exclude_none=True)
            return {name: value for name, value in reply.items() if name not in _NOT_THE_MODELS}
        except endpoint.genai.errors.APIError as error:
            raise self._api_error(error) from None
        except self._network_errors as error:
            raise TransportError(endpoint.text(f"{type(error).__name__}: {error}")) from None
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            # The library reads whatever JSON came without checking its shape; all of these are its stumbling.
            raise TransportError(endpoint.text(f"a reply that cannot be read: {error}")) from None

    def _config(self, system: str, tools: Sequence[Mapping[str, Any]], max_output_tokens: int) -> Any:
        types = self._endpoint.types
        level = self._endpoint.settings.thinking_level
        declarations = [
            types.FunctionDeclaration(
                name=tool["name"],
                description=tool["description"],
                parameters_json_schema=tool["parametersJsonSchema"],
            )
            for tool in tools
        ]
        return types.GenerateContentConfig(
            system_instruction=system,
            tools=[types.Tool(function_declarations=declarations)],
            max_output_tokens=max_output_tokens,
            thinking_config=None if level == "default" else types.ThinkingConfig(thinking_level=level.upper()),
            automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
            automatic_continuation=False,
        )

    def _api_error(self, error: Any) -> TransportError:
        text = self._endpoint.text(f"HTTP {error.code} {error.status or ''}: {error.message or 'no message'}")
        return TransportError(
            text, status=error.code, retryable=error.code in _RETRYABLE, retry_after=_retry_after(error)
        )


_NOT_THE_MODELS = ("sdkHttpResponse", "automaticFunctionCallingHistory", "parsed")


def _http_library() -> tuple[Any, tuple[type[Exception], ...]]:
    """The HTTP library that google-genai works with here, and what goes wrong on the way to the server and back."""
    from google.auth import exceptions

    try:
        import httpx2 as http
    except ImportError:
        import httpx as http  # pyright: ignore[reportMissingImports]
    return http, (http.HTTPError, exceptions.GoogleAuthError, OSError)


async def _check_body(response: Any) -> None:
    """Refuses a body that is not one JSON object in UTF-8: the client would repair it in silence."""
    if int(response.headers.get("content-length") or 0) > _MAX_REPLY_BYTES:
        raise ValueError(f"a reply of more than {_MAX_REPLY_BYTES} bytes")
    if response.status_code != 200:
        return
    body = await response.aread()
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=_refuse)
    except ValueError as error:
        raise ValueError(f"{len(body)} bytes that are not JSON in UTF-8: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"JSON that is no object but {type(value).__name__}")


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _retry_after(error: Any) -> float | None:
    """Seconds that the server asked to wait: its Retry-After header, or the API's own RetryInfo."""
    header = getattr(error.response, "headers", {}).get("retry-after")
    if header is not None:
        try:
            return float(header)
        except ValueError:
            return _until(header)
    body = error.details if isinstance(error.details, dict) else {}
    outer = body.get("error")
    details = outer.get("details") if isinstance(outer, dict) else None
    for detail in details if isinstance(details, list) else ():
        delay = detail.get("retryDelay") if isinstance(detail, dict) else None
        if isinstance(delay, str) and delay.endswith("s"):
            try:
                return float(delay[:-1])
            except ValueError:
                return None
    return None


def _until(date: str) -> float | None:
    from datetime import UTC, datetime

    try:
        return max(0.0, (parsedate_to_datetime(date) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return None
