"""Units: the domain as a whole. A run finds it as `--domain=tests.toy_domain.domain:load`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness_search.contract import Budgets, EndReason
from tests.toy_domain.catalogue import CATALOGUE
from tests.toy_domain.tasks import NAME, demo_tasks, parse_row
from tests.toy_domain.tool import ConvertEnv
from tests.toy_domain.verifier import verify
from whale_jax.domains.domain import CountTokens, TraceCodec, VerifierProtocol
from whale_jax.domains.splits import Splits, data_hash, read_splits
from whale_jax.domains.task import BadRow, Split, Task, TaskFile, load_tasks
from whale_jax.domains.verdict import Verdict
from whale_jax.rollout.trace import Trace

HERE = Path(__file__).parent
FIGURES = {"converted": "episodes that called convert", "answered": "episodes with a number in answer tags"}


@dataclass(frozen=True)
class Units:
    """Implements `Domain`. Make one with `load`."""

    splits: Splits
    data_hash: str
    bad_rows: tuple[BadRow, ...] = ()
    name = NAME
    tool_names = ConvertEnv.names
    budgets = Budgets(assistant_tokens=192, turns=6, tool_calls=6, wall_seconds=60.0)
    h0 = (HERE / "h0.py").read_text(encoding="utf-8")
    strong = (HERE / "strong.py").read_text(encoding="utf-8")
    skill = (HERE / "skill.md").read_text(encoding="utf-8")
    catalogue = CATALOGUE
    figures = FIGURES
    scripted_replies = (
        "I convert.\n</think>\n\n<tool_call>\n<function=convert>\n<parameter=amount>\n7\n</parameter>\n"
        "<parameter=unit>\nfeet\n</parameter>\n<parameter=to>\ninches\n</parameter>\n</function>\n</tool_call>",
        "I do not know.\n</think>\n\nI do not know.",
        "It is 84.\n</think>\n\n<answer>84</answer>",
    )
    scripted_result = "7 feet are 84 inches."

    def tasks(self, split: Split) -> Sequence[Task]:
        return self.splits[split]

    def env(self, task: Task) -> ConvertEnv:
        return ConvertEnv()

    def verify(self, task: Task, answer_text: str | None, *, protocol: VerifierProtocol = "honest") -> Verdict:
        return verify(answer_text, task.reference["answer"])

    def behaviour(self, tasks: Sequence[Task], traces: Sequence[Trace], codec: TraceCodec) -> Mapping[str, float]:
        counted = [trace for trace in traces if trace.end is not EndReason.INFRASTRUCTURE]
        if not counted:
            return {}
        return {
            "converted": sum(trace.tool_calls > 0 for trace in counted) / len(counted),
            "answered": sum(trace.verdict.answer is not None for trace in counted) / len(counted),
        }


def load(
    *,
    task_dir: str | None = None,
    max_bad_rows: float = 0.0,
    allow_overlap: bool = False,
    count_tokens: CountTokens = len,
) -> Units:
    """The domain: the made tasks, or those of a folder with weight, harness, validation and test files.

    Raises:
        TaskError: a file cannot be used, or splits overlap.
    """
    if task_dir is None:
        return Units(demo_tasks(), data_hash(demo_tasks()))

    def read(path: Path, split: Split) -> TaskFile:
        return load_tasks(path, domain=NAME, split=split, parse=parse_row, max_bad_rows=max_bad_rows)

    folder = read_splits(Path(task_dir), read, allow_overlap=allow_overlap)
    return Units(folder.splits, data_hash(folder.splits), tuple(folder.bad_rows))
