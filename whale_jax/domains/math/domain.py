"""Math: problems with a short answer, a code interpreter, and a verifier that reads the last box."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import resources
from pathlib import Path

from harness_search.contract import Budgets
from harness_search.proposers.edits import Edit
from harness_search.sandbox.backends import detect
from harness_search.sandbox.code import CodeInterpreter
from harness_search.sandbox.code_server import CodeLimits
from whale_jax.domains.domain import CountTokens, TraceCodec, VerifierProtocol, defined_figures
from whale_jax.domains.math.behaviour import FIGURES, MathBehaviour
from whale_jax.domains.math.catalogue import CATALOGUE
from whale_jax.domains.math.demo import demo_tasks
from whale_jax.domains.math.rows import NAME, read_problems
from whale_jax.domains.math.symbolic import SymbolicComparer
from whale_jax.domains.math.tool import CodeEnv
from whale_jax.domains.math.verifier import paper_rule, symbolic_rule
from whale_jax.domains.splits import Splits, data_hash, read_splits
from whale_jax.domains.task import BadRow, Split, Task, TaskError, TaskFile, content_hash
from whale_jax.domains.verdict import Verdict
from whale_jax.rollout.trace import Trace

DEMO_BUDGETS = Budgets(assistant_tokens=256, turns=6, tool_calls=12, wall_seconds=120.0)
"""Sized for a demo model; the paper's own are `PAPER_BUDGETS`."""
PAPER_BUDGETS = Budgets(assistant_tokens=8_192, turns=16, tool_calls=24, wall_seconds=3_600.0)
"""PAPER section 5: 8,192 assistant tokens, at most 16 turns. Tool calls and seconds are open there: every call of an
episode may wait as long as its limits allow, so that slow code is never taken for a slow host."""
DEMO_CODE_LIMITS = CodeLimits(cpu_seconds=3, wall_seconds=10.0)
PAPER_CODE_LIMITS = CodeLimits(cpu_seconds=30, wall_seconds=60.0)
"""PAPER section 5: 30 s and 1,024 MB. The seconds are of computing; waiting is bounded by twice as many."""
DEMO_OUTPUT_TOKENS = 128
PAPER_OUTPUT_TOKENS = 4_096

SCRIPTED_REPLIES = (
    "I run code.\n</think>\n\n<tool_call>\n<function=code_interpreter>\n<parameter=code>\n"
    "x = 6 * 7\nprint(x)\n</parameter>\n</function>\n</tool_call>",
    "I do not know.\n</think>\n\nI do not know.",
    "It is 42.\n</think>\n\n\\boxed{42}",
)
SCRIPTED_RESULT = "42\n"


def count_words(text: str) -> int:
    """White-space separated words: a stand-in for tokens where no tokenizer is at hand."""
    return len(text.split())


def _source(file_name: str) -> str:
    return resources.files("whale_jax.domains.math").joinpath(file_name).read_text(encoding="utf-8")


@dataclass(frozen=True)
class Math:
    """Implements `Domain`. Make one with `load`. Its processes start with the first call and end with `close`, or with
    the object."""

    splits: Splits = field(repr=False)
    interpreter: CodeInterpreter
    comparer: SymbolicComparer
    count_tokens: CountTokens
    budgets: Budgets
    max_output_tokens: int
    data_hash: str
    copies: int = 0
    """Rows of the data files that repeat an earlier one."""
    bad_rows: Sequence[BadRow] = ()
    name: str = NAME
    tool_names: frozenset[str] = CodeEnv.names
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

    def env(self, task: Task) -> CodeEnv:
        """See `Domain.env`. The interpreter keeps nothing from one call to the next."""
        return CodeEnv(self.interpreter, self.count_tokens, self.max_output_tokens)

    def verify(self, task: Task, answer_text: str | None, *, protocol: VerifierProtocol = "honest") -> Verdict:
        """See `Domain.verify`; the two protocols read and compare differently (`verifier`).

        Raises:
            SandboxUnavailable: the sandbox of the symbolic comparison failed.
        """
        if protocol == "paper":
            return paper_rule(answer_text, task.reference["answer"])
        return symbolic_rule(answer_text, task.reference["answer"], self.comparer)

    def behaviour(self, tasks: Sequence[Task], traces: Sequence[Trace], codec: TraceCodec) -> Mapping[str, float]:
        """See `Domain.behaviour`."""
        return defined_figures(FIGURES, MathBehaviour.from_traces(traces))

    def close(self) -> None:
        """Ends the processes."""
        self.interpreter.close()
        self.comparer.close()


def load(
    *,
    task_dir: str | Path | None = None,
    max_bad_rows: float = 0.0,
    allow_overlap: bool = False,
    count_tokens: CountTokens = count_words,
    sandbox: str = "auto",
) -> Math:
    """The Math domain.

    Args:
        task_dir: folder with weight.jsonl, harness.jsonl, validation.jsonl and test.jsonl (each also .zst, .gz or
            .parquet); None means the embedded demo.
        max_bad_rows: the share of a file's rows that may be unusable.
        allow_overlap: let D_weight and D_harness share tasks (the paper's Math setting).
        count_tokens: the policy's token count, for the cap on output.
        sandbox: backend of the code interpreter and of the symbolic comparison, looked for when first needed.

    Raises:
        TaskError: a file cannot be used, or splits overlap.
    """
    backend = partial(detect, sandbox)
    comparer = SymbolicComparer(backend)
    if task_dir is None:
        interpreter = CodeInterpreter(backend, limits=DEMO_CODE_LIMITS)
        splits = demo_tasks()
        return Math(splits, interpreter, comparer, count_tokens, DEMO_BUDGETS, DEMO_OUTPUT_TOKENS, data_hash(splits))
    folder = read_splits(Path(task_dir), partial(_read, max_bad_rows=max_bad_rows), allow_overlap=allow_overlap)
    return Math(
        folder.splits,
        CodeInterpreter(backend, limits=PAPER_CODE_LIMITS),
        comparer,
        count_tokens,
        PAPER_BUDGETS,
        PAPER_OUTPUT_TOKENS,
        data_hash(folder.splits),
        folder.copies,
        folder.bad_rows,
    )


def _read(path: Path, split: Split, *, max_bad_rows: float) -> TaskFile:
    file = read_problems(path, max_bad_rows=max_bad_rows)
    tasks: dict[str, Task] = {}
    for problem in file.problems:
        task_id = problem.id or content_hash(NAME, problem.inputs)
        if task_id in tasks:
            raise TaskError(f"{path}: two different problems have the id {task_id!r}; make ids unique or drop them")
        tasks[task_id] = Task(task_id, NAME, problem.inputs, problem.reference, split)
    return TaskFile(list(tasks.values()), file.bad_rows, file.copies)
