"""The `search` primitive: arguments as a model writes them in, a JSON object `{"result": "…"}` out (PAPER section 5).

Three things that look alike stay apart in what the model reads: an empty query, nothing found, a search that failed. A
search service that is down can, instead of being told to the model, end the episode as a failure of infrastructure.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any, Literal

from harness_search.contract import CallRefused, EndReason, EpisodeEnded
from whale_jax.domains.domain import CountTokens
from whale_jax.domains.searchqa.corpus import Document
from whale_jax.domains.searchqa.retrieval import RetrievalError, Retriever, search_many

MAX_TOPK = 10
MAX_QUERIES = 8
MAX_QUERY_CHARS = 2_000
MAX_DOC_TOKENS = 200

EMPTY_QUERY = "Empty query: give at least one query with words in it."
NOTHING_FOUND = "No results found."
SEARCH_ERROR = "Search error: {reason}"


SearchFailures = Literal["told", "unscored"]
"""What a failed search does. `told`: the model reads `SEARCH_ERROR`, as in the paper. `unscored`: the episode ends as
infrastructure, is tried again, and is missing data in the end: a service that is down teaches nothing (case F157)."""


class _BadValue(ValueError):
    """A value that the model may have written; its message goes back to it."""


class SearchEnv:
    """Implements `DomainEnv` with one primitive, `search(query_list, topk=1, max_doc_tokens=200)`.

    `query_list` is a list of texts; one text alone is a list of one. The hits of each query follow one another; a
    document that an earlier query gave is not repeated. `topk` is limited to 1 … `MAX_TOPK`, passages to
    `max_doc_tokens` tokens of whole words. At most `MAX_QUERIES` queries of `MAX_QUERY_CHARS` characters are looked at.
    """

    names = frozenset({"search"})

    def __init__(
        self,
        retriever: Retriever,
        count_tokens: CountTokens,
        *,
        executor: Executor | None = None,
        failures: SearchFailures = "told",
    ) -> None:
        """Args:
        retriever: finds the documents.
        count_tokens: the policy's token count, for the cap on passages.
        executor: where searches run; None runs them in the caller's thread, which suits a small corpus in memory.
        failures: what becomes of a search that fails.
        """
        self._retriever = retriever
        self._count_tokens = count_tokens
        self._executor = executor
        self._failures: SearchFailures = failures

    async def call(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """See `DomainEnv.call`. Raises EpisodeEnded too, when a search fails and failures are `unscored`."""
        if name not in self.names:
            raise CallRefused(f"env has no {name!r}; it has: search")
        try:
            if self._executor is None:
                return self.search(*args, **kwargs)
            search = partial(self.search, *args, **kwargs)
            return await asyncio.get_running_loop().run_in_executor(self._executor, search)
        except TypeError as error:
            raise CallRefused(f"env.{error}") from error

    def search(self, query_list: Any, topk: Any = 1, max_doc_tokens: Any = MAX_DOC_TOKENS) -> str:
        """The result text for these arguments; never raises for a bad value. Raises EpisodeEnded as `call` does."""
        try:
            text = self._found(_queries(query_list), _whole("topk", topk), _whole("max_doc_tokens", max_doc_tokens))
        except RetrievalError as error:
            if self._failures == "unscored":
                raise EpisodeEnded(EndReason.INFRASTRUCTURE, str(error)) from error
            text = SEARCH_ERROR.format(reason=error)
        except _BadValue as error:
            text = SEARCH_ERROR.format(reason=error)
        return json.dumps({"result": text}, ensure_ascii=False)

    def _found(self, queries: list[str], topk: int, max_doc_tokens: int) -> str:
        if not queries:
            return EMPTY_QUERY
        topk = min(max(topk, 1), MAX_TOPK)
        limit = min(max(max_doc_tokens, 1), MAX_DOC_TOKENS)
        found: dict[str, Document] = {}
        for hits in search_many(self._retriever, queries, topk):
            for hit in hits:
                found.setdefault(hit.document.id, hit.document)
        if not found:
            return NOTHING_FOUND
        return "\n\n".join(
            f"Doc {number} (Title: {document.title})\n{capped(document.text, limit, self._count_tokens)}"
            for number, document in enumerate(found.values(), start=1)
        )


def _queries(query_list: Any) -> list[str]:
    """The queries that hold anything at all, cut to the limits."""
    items = [query_list] if isinstance(query_list, str) else query_list
    if items is None:
        return []
    if not isinstance(items, list):
        raise _BadValue(f"query_list must be a list of texts, got {type(query_list).__name__}")
    wrong = [item for item in items if not isinstance(item, str | int | float | None)]
    if wrong:
        raise _BadValue(f"query_list must hold texts, got {type(wrong[0]).__name__}")
    texts = [str(item)[:MAX_QUERY_CHARS] for item in items if item is not None]
    return [text for text in texts if text.strip()][:MAX_QUERIES]


def _whole(name: str, value: Any) -> int:
    """`value` as a whole number; 3, 3.0, "3" and "3.0" are the same."""
    try:
        number = float(value)
        if not isinstance(value, bool) and number.is_integer():
            return int(number)
    except (TypeError, ValueError, OverflowError):
        pass
    raise _BadValue(f"{name} must be a whole number, got {str(value)[:40]!r}")


def capped(text: str, limit: int, count_tokens: CountTokens) -> str:
    """The longest run of whole words at the start of `text` that has at most `limit` tokens, with its white space.

    A byte-level tokenizer never makes more tokens than bytes, so short texts are not counted at all.
    """
    if len(text.encode("utf-8", "surrogatepass")) <= limit or count_tokens(text) <= limit:
        return text
    ends = [index for index in range(len(text)) if text[index].isspace() and index and not text[index - 1].isspace()]
    low, high = 0, len(ends)  # ends[:low] fit, ends[high:] do not
    while low < high:
        middle = (low + high) // 2
        if count_tokens(text[: ends[middle]]) <= limit:
            low = middle + 1
        else:
            high = middle
    return text[: ends[low - 1]] if low else ""
