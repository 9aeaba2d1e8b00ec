"""SearchQA: short questions, a search tool over a corpus of passages, exact match or a judge on the answer tag."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from harness_search.contract import Budgets
from harness_search.proposers.edits import Edit
from whale_jax.domains.domain import CountTokens, TraceCodec, VerifierProtocol, defined_figures
from whale_jax.domains.searchqa.catalogue import CATALOGUE
from whale_jax.domains.searchqa.corpora import Corpus, local_corpus, memory_corpus, remote_corpus
from whale_jax.domains.searchqa.demo import demo_documents, demo_tasks
from whale_jax.domains.searchqa.gemini_judge import GeminiSettings, make_judge
from whale_jax.domains.searchqa.hit_rate import FIGURES, hit_rate
from whale_jax.domains.searchqa.judge import Judge
from whale_jax.domains.searchqa.judged_verifier import judged
from whale_jax.domains.searchqa.question_rows import parse_row
from whale_jax.domains.searchqa.tool import SearchEnv
from whale_jax.domains.searchqa.verifier import exact_match
from whale_jax.domains.splits import Splits, data_hash, read_splits
from whale_jax.domains.task import BadRow, Split, Task, TaskError, TaskFile, load_tasks
from whale_jax.domains.verdict import Verdict
from whale_jax.rollout.trace import Trace

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

    splits: Splits
    corpus: Corpus
    count_tokens: CountTokens
    budgets: Budgets
    data_hash: str
    judge: Judge | None = None
    bad_rows: Sequence[BadRow] = ()
    name: str = NAME
    tool_names: frozenset[str] = SearchEnv.names
    catalogue: Sequence[Edit] = field(default=CATALOGUE, repr=False)

    # The same for all; see `Domain`.
    h0 = _source("h0.py")
    strong = _source("strong.py")
    skill = _source("skill.md")
    scripted_replies = SCRIPTED_REPLIES
    scripted_result = SCRIPTED_RESULT
    figures = FIGURES

    def tasks(self, split: Split) -> Sequence[Task]:
        """See `Domain.tasks`."""
        return self.splits[split]

    def env(self, task: Task) -> SearchEnv:
        """See `Domain.env`. A search environment keeps nothing of its task."""
        corpus = self.corpus
        return SearchEnv(corpus.retriever, self.count_tokens, executor=corpus.executor, failures=corpus.failures)

    def verify(self, task: Task, answer_text: str | None, *, protocol: VerifierProtocol = "honest") -> Verdict:
        """See `Domain.verify`. Exact match is the same in both protocols; they part ways in the judge's failures."""
        references = task.reference["answers"]
        if self.judge is None:
            return exact_match(answer_text, references)
        return judged(answer_text, task.inputs["question"], references, self.judge, protocol=protocol)

    def behaviour(self, tasks: Sequence[Task], traces: Sequence[Trace], codec: TraceCodec) -> Mapping[str, float]:
        """See `Domain.behaviour`."""
        return defined_figures(FIGURES, hit_rate(traces, {task.id: task for task in tasks}, codec))


def load(
    *,
    task_dir: str | Path | None = None,
    max_bad_rows: float = 0.0,
    allow_overlap: bool = False,
    count_tokens: CountTokens = count_words,
    retriever_url: str | None = None,
    judge_model: str | None = None,
    judge_prompt: str | None = None,
    judge_cache: str | None = None,
) -> SearchQA:
    """The SearchQA domain.

    Args:
        task_dir: folder with weight.jsonl, harness.jsonl, validation.jsonl, test.jsonl (each also .zst, .gz or
            .parquet) and the corpus: an index in `index/`, or corpus.jsonl; None means the embedded demo.
        max_bad_rows: the share of a file's rows that may be unusable.
        allow_overlap: let D_weight and D_harness share tasks.
        count_tokens: the policy's token count, for the cap on passages.
        retriever_url: a retrieval service in place of the folder's corpus; an episode whose search it does not answer
            is unscored.
        judge_model: a Gemini model that judges answers; None means normalised exact match.
        judge_prompt: file of the judge's prompt; None means this project's.
        judge_cache: file that keeps the judge's verdicts; None keeps none.

    Raises:
        TaskError: a file cannot be used, splits overlap, the service does not answer, or the judge cannot be set up.
    """
    judge = None
    if judge_model is not None:
        prompt, cache = (None if path is None else Path(path) for path in (judge_prompt, judge_cache))
        judge = make_judge(GeminiSettings(judge_model), prompt=prompt, cache=cache)
    if task_dir is None:
        if retriever_url is not None:
            raise TaskError("--retriever_url needs --task_dir: the demo's questions are about the demo's corpus")
        return SearchQA(demo_tasks(), _demo_corpus(), count_tokens, DEMO_BUDGETS, _identity(_demo_hash(), judge), judge)

    def read(path: Path, split: Split) -> TaskFile:
        return load_tasks(path, domain=NAME, split=split, parse=parse_row, max_bad_rows=max_bad_rows)

    folder = read_splits(Path(task_dir), read, allow_overlap=allow_overlap)
    if retriever_url is None:
        corpus = local_corpus(Path(task_dir), max_bad_rows=max_bad_rows)
    else:
        corpus = remote_corpus(retriever_url)
    identity = _identity(data_hash(folder.splits, corpus.add_to), judge)
    bad_rows = [*folder.bad_rows, *corpus.bad_rows]
    return SearchQA(folder.splits, corpus, count_tokens, PAPER_BUDGETS, identity, judge, bad_rows=bad_rows)


@functools.cache
def _demo_corpus() -> Corpus:
    return memory_corpus(demo_documents())


@functools.cache
def _demo_hash() -> str:
    return data_hash(demo_tasks(), _demo_corpus().add_to)


def _identity(data: str, judge: Judge | None) -> str:
    """The hash of the data; with a judge, of the data and what decides its verdicts."""
    return data if judge is None else hashlib.sha256(f"{data} {judge.identity}".encode()).hexdigest()
