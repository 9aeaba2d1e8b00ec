"""SearchQA: short questions, a search tool over a corpus of passages, exact match on the answer tag."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from harness_search.contract import Budgets
from harness_search.proposers.edits import Edit
from whale_jax.domains.domain import CountTokens, VerifierProtocol
from whale_jax.domains.searchqa.catalogue import CATALOGUE
from whale_jax.domains.searchqa.corpus import Document, load_corpus
from whale_jax.domains.searchqa.demo import demo_documents, demo_tasks
from whale_jax.domains.searchqa.retrieval import Bm25Retriever, Retriever
from whale_jax.domains.searchqa.tool import SearchEnv
from whale_jax.domains.searchqa.verifier import exact_match
from whale_jax.domains.task import (
    BadRow,
    ParsedTask,
    RowError,
    Split,
    Task,
    TaskError,
    canonical_json,
    check_disjoint,
    load_tasks,
)
from whale_jax.domains.verdict import Verdict

NAME = "searchqa"
DEMO_BUDGETS = Budgets(assistant_tokens=192, turns=6, tool_calls=12, wall_seconds=120.0)
"""Sized for the demo model; the paper's own are `PAPER_BUDGETS`."""
PAPER_BUDGETS = Budgets(assistant_tokens=8_192, turns=16, tool_calls=32, wall_seconds=600.0)
"""PAPER section 5: 8,192 assistant tokens, at most 16 turns. Tool calls and seconds are open there."""

SCRIPTED_REPLIES = (
    "I need the country.\n</think>\n\n<tool_call>\n<function=search>\n<parameter=query_list>\n"
    '["Kalo country", "Kalo"]\n</parameter>\n</function>\n</tool_call>',
    "I do not know.\n</think>\n\nI do not know.",
    "It is Veland.\n</think>\n\n<answer>Veland</answer>",
)
SCRIPTED_RESULT = '{"result": "Doc 1 (Title: Kalo)\\nKalo is a city in Veland."}'


def count_words(text: str) -> int:
    """White-space separated words: a stand-in for tokens where no tokenizer is at hand."""
    return len(text.split())


def _source(file_name: str) -> str:
    return resources.files("whale_jax.domains.searchqa").joinpath(file_name).read_text(encoding="utf-8")


@dataclass(frozen=True)
class SearchQA:
    """Implements `Domain`. Make one with `load`."""

    splits: Mapping[Split, Sequence[Task]]
    retriever: Retriever
    count_tokens: CountTokens
    budgets: Budgets
    data_hash: str
    bad_rows: Sequence[BadRow] = ()
    name: str = NAME
    tool_names: frozenset[str] = SearchEnv.names
    catalogue: Sequence[Edit] = field(default=CATALOGUE, repr=False)

    @property
    def h0(self) -> str:
        """See `Domain.h0`."""
        return _source("h0.py")

    @property
    def strong(self) -> str:
        """See `Domain.strong`."""
        return _source("strong.py")

    @property
    def skill(self) -> str:
        """See `Domain.skill`."""
        return _source("skill.md")

    @property
    def scripted_replies(self) -> Sequence[str]:
        """See `Domain.scripted_replies`."""
        return SCRIPTED_REPLIES

    @property
    def scripted_result(self) -> str:
        """See `Domain.scripted_result`."""
        return SCRIPTED_RESULT

    def tasks(self, split: Split) -> Sequence[Task]:
        """See `Domain.tasks`."""
        return self.splits[split]

    def env(self, task: Task) -> SearchEnv:
        """See `Domain.env`. A search environment keeps nothing of its task."""
        return SearchEnv(self.retriever, self.count_tokens)

    def verify(self, task: Task, answer_text: str | None, *, protocol: VerifierProtocol = "honest") -> Verdict:
        """See `Domain.verify`. Exact match is the same in both protocols; they part ways in the judge's failures."""
        return exact_match(answer_text, task.reference["answers"])


def parse_row(row: Mapping[str, Any]) -> ParsedTask:
    """A row in the layout of the public sets: `question`, and `golden_answers` or `answers`, a text or a list of texts.

    Raises:
        RowError: the question or every answer is missing or empty, or the id is no string or whole number.
    """
    question = row.get("question")
    if not isinstance(question, str) or not question.strip():
        raise RowError("`question` must be a text that is not empty")
    answers = row.get("golden_answers", row.get("answers"))
    answers = [answers] if isinstance(answers, str) else answers
    if not isinstance(answers, list) or not all(isinstance(answer, str) for answer in answers):
        raise RowError("`golden_answers` must be a text or a list of texts")
    usable = list(dict.fromkeys(answer.strip() for answer in answers if answer.strip()))
    if not usable:
        raise RowError("`golden_answers` holds no answer that is not empty")
    row_id = row.get("id")
    if row_id is not None and (not isinstance(row_id, str | int) or isinstance(row_id, bool)):
        raise RowError("`id` must be a string or a whole number")
    return ParsedTask({"question": question.strip()}, {"answers": usable}, None if row_id is None else str(row_id))


def load(
    *,
    task_dir: str | Path | None = None,
    max_bad_rows: float = 0.0,
    allow_overlap: bool = False,
    count_tokens: CountTokens = count_words,
) -> SearchQA:
    """The SearchQA domain.

    Args:
        task_dir: folder with weight.jsonl, harness.jsonl, validation.jsonl, test.jsonl and corpus.jsonl; None means the
            embedded demo.
        max_bad_rows: the share of a file's rows that may be unusable.
        allow_overlap: let D_weight and D_harness share tasks.
        count_tokens: the policy's token count, for the cap on passages.

    Raises:
        TaskError: a file cannot be used, or splits overlap.
    """
    if task_dir is None:
        return SearchQA(demo_tasks(), _demo_retriever(), count_tokens, DEMO_BUDGETS, _demo_hash())
    folder = Path(task_dir)
    bad_rows: list[BadRow] = []
    splits = {}
    for split in Split:
        loaded = load_tasks(
            folder / f"{split}.jsonl", domain=NAME, split=split, parse=parse_row, max_bad_rows=max_bad_rows
        )
        splits[split] = sorted(loaded.tasks, key=lambda task: hashlib.sha256(task.id.encode()).digest())
        bad_rows += loaded.bad_rows
    check_disjoint(splits, allow_overlap=allow_overlap)
    corpus, bad_documents = load_corpus(folder / "corpus.jsonl", max_bad_rows=max_bad_rows)
    bad_rows += bad_documents
    try:
        retriever = Bm25Retriever(corpus)
    except ValueError as error:
        raise TaskError(f"{folder / 'corpus.jsonl'}: {error}") from error
    return SearchQA(splits, retriever, count_tokens, PAPER_BUDGETS, _data_hash(splits, corpus), bad_rows=bad_rows)


@functools.cache
def _demo_retriever() -> Bm25Retriever:
    return Bm25Retriever(demo_documents())


@functools.cache
def _demo_hash() -> str:
    return _data_hash(demo_tasks(), demo_documents())


def _data_hash(splits: Mapping[Split, Sequence[Task]], corpus: Sequence[Document]) -> str:
    digest = hashlib.sha256()
    for split in Split:
        for task in splits[split]:
            digest.update(canonical_json(asdict(task)).encode() + b"\n")
    for document in corpus:
        digest.update(canonical_json([document.id, document.contents]).encode() + b"\n")
    return digest.hexdigest()
