"""The `run_code` primitive behind the model's `code_interpreter` tool: code in, what it printed out.

Ends that look alike stay apart in what the model reads: an error, no output, no time, no memory, a crash, an exit, too
much output, nothing to run. What is printed comes first, the end's own line last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from harness_search.contract import CallRefused
from harness_search.sandbox.code import CodeEnd, CodeInterpreter, CodeResult
from harness_search.sandbox.code_server import CodeLimits
from whale_jax.domains.domain import CountTokens

NOTHING_PRINTED = "No output: the code ran and printed nothing."
TIMEOUT = "Timeout: the code was stopped, for it did not end within {seconds} s."
MEMORY = "Out of memory: the code may use {mebibytes} MiB."
CRASH = "Crash: the interpreter died ({detail})."
EXITED = "Exit: the code ended the interpreter ({detail})."
FLOOD = "Output flood: the code was stopped after printing {limit} bytes."
EMPTY_CODE = "Empty code: there is nothing to run."
REFUSED = "Code error: {detail}."
CUT = "\n[output cut: {count} characters are left out here]\n"


class CodeEnv:
    """Implements `DomainEnv` with one primitive, `run_code(code)`.

    Each call is on its own: nothing is left for the next. What is printed is cut in its middle to `max_output_tokens`.
    """

    names = frozenset({"run_code"})

    def __init__(self, interpreter: CodeInterpreter, count_tokens: CountTokens, max_output_tokens: int) -> None:
        self._interpreter = interpreter
        self._count_tokens = count_tokens
        self._max_output_tokens = max_output_tokens

    async def call(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """See `DomainEnv.call`.

        Raises:
            SandboxUnavailable: the sandbox failed; nothing can be said about the code.
        """
        if name not in self.names:
            raise CallRefused(f"env has no {name!r}; it has: run_code")
        try:
            answer = self.run_code(*args, **kwargs)
        except TypeError as error:
            raise CallRefused(f"env.{error}") from error
        return await answer

    async def run_code(self, code: Any) -> str:
        """What the code printed and how it ended; never raises for bad code."""
        if not isinstance(code, str):
            return REFUSED.format(detail=f"code must be a text, got {type(code).__name__}")
        if not code.strip():
            return EMPTY_CODE
        result = await self._interpreter.run_async(code)
        return await asyncio.to_thread(self._described, result)

    def _described(self, result: CodeResult) -> str:
        printed = cut(result.output, self._max_output_tokens, self._count_tokens)
        end = describe_end(result, self._interpreter.limits)
        if not end:
            return printed if printed.strip() else NOTHING_PRINTED
        gap = "\n" if printed and not printed.endswith("\n") else ""
        return f"{printed}{gap}{end}"


def describe_end(result: CodeResult, limits: CodeLimits) -> str:
    """The line that tells an end other than plain ones; an exception has told itself by its traceback."""
    texts = {
        CodeEnd.TIMEOUT: TIMEOUT.format(seconds=limits.cpu_seconds),
        CodeEnd.MEMORY: MEMORY.format(mebibytes=limits.memory_bytes >> 20),
        CodeEnd.CRASH: CRASH.format(detail=result.detail),
        CodeEnd.EXITED: EXITED.format(detail=result.detail),
        CodeEnd.OUTPUT: FLOOD.format(limit=limits.output_bytes),
        CodeEnd.REFUSED: REFUSED.format(detail=result.detail),
    }
    return texts.get(result.end, "")


def cut(text: str, limit: int, count_tokens: CountTokens) -> str:
    """`text` with so much of its middle left out that about `limit` tokens remain, never more.

    A byte-level tokenizer never makes more tokens than bytes, so short texts are not counted at all.
    """
    if len(text.encode("utf-8", "surrogatepass")) <= limit:
        return text
    tokens = count_tokens(text)
    if tokens <= limit:
        return text
    keep = len(text) * limit // tokens
    while True:
        half = keep // 2
        shown = text[:half] + CUT.format(count=len(text) - 2 * half) + text[len(text) - half :]
        if half == 0 or count_tokens(shown) <= limit:
            return shown
        keep = min(keep - 2, keep * 9 // 10)
