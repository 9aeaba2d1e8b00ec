"""A small run directory, made up: real writers where the package has them, invented numbers."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness_search.archive import Archive, TraceRecord
from harness_search.canonical import sha256
from harness_search.records import Decision, IterationRecord, ProposalRecord, SessionState, SlotRecord, SlotState
from harness_search.scoring import EpisodeResult, Score, ScoreTag
from whale_jax.journal import Journal

H0 = 'SYSTEM_PROMPT = "Answer."\nTOPK = 1\n\n\nasync def run(task, model, env):\n    return None\n'
SETTINGS = {
    "domain": "searchqa", "schedule": "adaptive", "seed": 3, "search_space": "full", "proposer": "offline",
    "prompts_per_step": 4, "samples_per_prompt": 2, "weight_tasks": 40, "patience_epochs": 0.2,
    "weight_phase_epochs": 0.5, "search_phase_iterations": 1, "min_iterations": 1, "max_iterations": 9,
    "patience_iterations": 2, "count_incoming_as_iteration": False, "harness": None, "select_on": "validation",
    "sandbox": "bubblewrap", "allow_overlap": False, "task_dir": None, "max_bad_rows": 0.0, "test_schedule": "end",
}  # fmt: skip

Trace = dict[str, Any]


def trace(task: str, reward: int | None = 1, *, texts: Sequence[tuple[str, str]] = (), **more: Any) -> Trace:
    """A public trace; `texts` are (source, text) in place of the usual two turns with a call."""
    usual = [
        ("prompt", "<|im_start|>"),
        ("harness", f"user\nWhat is {task}?<|im_end|>"),
        ("prompt", "\n<|im_start|>assistant\n<think>\n"),
        ("sampled", 'I look.\n</think>\n\n<tool_call>\n<function=search>\n["x"]\n</function>\n</tool_call><|im_end|>'),
        ("tool", '<|im_start|>user\n<tool_response>\n{"result": "Doc 1 of ' + task + '"}\n</tool_response><|im_end|>'),
        ("sampled", "So it is.\n</think>\n\n<answer>Yes</answer><|im_end|>"),
    ]
    segments, turn = [], -1
    for source, text in texts or usual:
        segment: dict[str, Any] = {"source": source, "text": text}
        if source == "sampled":
            turn += 1
            segment |= {"turn": turn, "tokens": 9, "finish": "stop"}
        segments.append(segment)
    head = {"task_id": task, "sample": 0, "end": "answered", "reward": reward, "answer": "Yes", "reason": "match"}
    tail = {"returned": [0, turn], "error": None, "turns": turn + 1, "tool_calls": 1, "sampled_tokens": 9 * (turn + 1)}
    return {**head, **tail, "chats": [segments], **more}


@dataclass
class MadeRun:
    """A run directory under construction.

    Attributes:
        directory: where it is made.
        settings: of config.json.
        tasks: ids of D_harness.
        trace_of: (task id, reward) → public trace.
        data: hash of the tasks.
        rollouts: training and search rollouts so far.
        text: a text that the proposer and the run write where they may write anything.
    """

    directory: Path
    settings: dict[str, Any] = field(default_factory=lambda: dict(SETTINGS))
    tasks: Sequence[str] = tuple(f"task-{number}" for number in range(6))
    trace_of: Callable[[str, int | None], Trace] = trace
    text: Callable[[str], str] = lambda name: f"the {name}"
    data: str = "d" * 64
    rollouts: int = 0

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True)
        inputs = {"weights": "w" * 64, "harness": sha256(H0.encode()), "data": self.data}
        record = {
            "settings": self.settings,
            "inputs": inputs,
            "environment": {"jax": "0.0", "machine": self.text("machine")},
        }
        (self.directory / "config.json").write_text(json.dumps(record))
        self.journal = Journal(self.directory / "journal")

    def evaluation(self, label: str, split: str, rewards: Sequence[Sequence[int]], *, step: int = 0) -> None:
        """An evaluation of six tasks or so with its evidence."""
        by_task = {f"{split}-{number}": list(samples) for number, samples in enumerate(rewards)}
        mean = sum(map(sum, rewards)) / sum(map(len, rewards))
        summary = {
            "mean_at_k": mean, "k": len(rewards[0]), "tasks": len(rewards),
            "ci95": [max(0.0, mean - 0.1), min(1.0, mean + 0.1)],
            "episodes": sum(map(len, rewards)), "unscored": 0, "ends": {"answered": 12}, "sampled_tokens": 100,
        }  # fmt: skip
        number = len(self.journal.entries)
        behaviour = {"answered": 0.5 + step / 100, "right_when_answered": mean, "turns": 2.0, "cut": None}
        evals = self.directory / "evals"
        evals.mkdir(exist_ok=True)
        (evals / f"{number:06d}.json").write_text(json.dumps({**summary, "rewards": by_task, "behaviour": behaviour}))
        (evals / f"{number:06d}.behaviour.json").write_text(json.dumps({"retrieved": 0.25 + step / 100}))
        self.journal.append(
            "evaluation", {"label": label, "split": split, "step": step, "harness": "h", "weights": "w", **summary}
        )

    def weights(
        self, cycle: int, rewards: Sequence[float], *, first_step: int, reason: str = "phase length reached"
    ) -> None:
        """A weight phase in one commit."""
        steps = []
        for offset, reward in enumerate(rewards):
            accepted = round(8 * reward)
            steps.append({
                "step": first_step + offset, "reward": reward, "rollouts_so_far": self.rollouts + 8 * (offset + 1),
                "accepted": accepted, "unscored": 0, "ends": {"answered": 8}, "sampled_tokens": 50, "updates": 1,
            })  # fmt: skip
        self.rollouts += 8 * len(steps)
        self.journal.append("weight", {
            "cycle": cycle, "first_step": first_step, "step": steps[-1]["step"], "steps": steps,
            "decision": {"stop": True, "reason": reason, "signals": {"steps": len(steps)}}, "weights": f"{cycle}" * 64,
            "sampler": {"epoch": 0, "position": 4 * steps[-1]["step"], "deferred": [], "seed": 3, "tasks": "t"},
            "rollouts": 8 * len(steps), "version": 1, "harness": "h",
        })  # fmt: skip

    def search(self, cycle: int, candidates: Mapping[str, Sequence[int | None] | None]) -> None:
        """A search of one iteration: candidate "000" and those after it, None for one that did not pass validation."""
        archive = Archive(self.directory / f"cycle_{cycle:03d}" / "search")
        slots: list[SlotRecord] = []
        rates: dict[str, float] = {}
        for place, (name, rewards) in enumerate(candidates.items()):
            source = H0 if place == 0 else H0.replace("TOPK = 1", f"TOPK = {place + 1}  # {self.text('source')}")
            proposal = ProposalRecord("incoming", 0)
            if place:
                hypothesis = f"{self.text('hypothesis')} {place}"
                proposal = ProposalRecord(
                    "offline", 1, place - 1, "000", hypothesis, self.text("axis"), (self.text("edit"),)
                )
            if rewards is None:
                added = archive.add_invalid(source, proposal, [self.text("error")])
                slots.append(SlotRecord(place - 1, SlotState.INVALID, name, added.hash, detail=self.text("detail")))
                continue
            traces = [self.trace_of(task, reward) for task, reward in zip(self.tasks, rewards, strict=True)]
            rows = [EpisodeResult(one["task_id"], 0, one["reward"], one["end"], one["turns"], 18) for one in traces]
            score = Score(ScoreTag("m", "t", "v", "s"), sha256(source.encode("utf-8", "surrogatepass")), tuple(rows))
            added = archive.add_scored(source, proposal, score, [TraceRecord(one["task_id"], 0, one) for one in traces])
            rates[name] = float(score.success_rate)
            slots.append(
                SlotRecord(max(0, place - 1), SlotState.SCORED, name, added.hash, rates[name], float(score.mean_turns))
            )
        best = max(rates, key=lambda name: rates[name])
        self._commit(archive, cycle, 0, slots[:1], None, "000", rates["000"], Decision.GO_ON)
        self._commit(archive, cycle, 1, slots[1:], "000", best, rates[best], Decision.STOP)

    def _commit(
        self, archive: Archive, cycle: int, iteration: int, slots: Sequence[SlotRecord], before: str | None,
        incumbent: str, best: float, decision: Decision,
    ) -> None:  # fmt: skip
        scored = sum(slot.state is SlotState.SCORED for slot in slots)
        record = IterationRecord(
            iteration=iteration, session=SessionState.COMPLETED if iteration else SessionState.INCOMING,
            slots=tuple(slots), rule="archive_max", incumbent_before=before, incumbent=incumbent, best_score=best,
            rollouts=scored * len(self.tasks), missing=0, sampled_tokens=30,
            ends={"answered": scored * len(self.tasks)}, decision=decision,
            session_error=self.text("session error") if iteration else None,
            usage={"calls": 2, "input_tokens": 900, "output_tokens": 100, "dollars": 0.25} if iteration else {},
        )  # fmt: skip
        archive.commit_iteration(record)
        self.rollouts += record.rollouts
        self.journal.append("search", {"cycle": cycle, **record.to_json(), "weights": f"{cycle}" * 64, "incoming": "h"})

    def branch_of(self, parent: Path, entry: int) -> None:
        """Says in config.json that the run left another one after an entry."""
        path = self.directory / "config.json"
        fork = {"run_dir": str(parent.resolve()), "entry": entry, "journal": "j" * 64, "steps": []}
        path.write_text(json.dumps({**json.loads(path.read_bytes()), "fork": fork}))

    def metrics(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Lines of metrics.jsonl."""
        (self.directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def warn(self, *lines: str) -> None:
        """Lines of warnings.txt."""
        (self.directory / "warnings.txt").write_text("".join(f"{line}\n" for line in lines), "utf-8", "surrogatepass")

    def finish(self, label: str) -> None:
        """summary.json, as far as a report reads it."""
        figures = {"retrieved": f"episodes with a good document {self.text('meaning')}"}
        summary = {
            "returned": {"label": label},
            "journal": self.journal.hash,
            "figures": figures,
            "seconds": 90.5,
            "warnings": [],
        }
        (self.directory / "summary.json").write_text(json.dumps(summary))


def two_cycles(directory: Path, **options: Any) -> MadeRun:
    """A finished run of two cycles: evaluations, an invalid candidate, one that broke and fixed tasks, accounts."""
    run = MadeRun(directory, **options)
    count = len(run.tasks)
    low, high = [1, 0] * (count // 2), [1, 1, 0] * (count // 3)
    run.evaluation("initial", "validation", [[0, 1], [0, 0], [0, 1], [0, 0]])
    run.weights(0, [0.25, 0.5, 0.375], first_step=1, reason="no better smoothed reward within patience")
    run.evaluation("cycle 1, weights", "validation", [[1, 1], [0, 0], [0, 1], [0, 0]], step=3)
    run.search(0, {"000": low, "001": high, "002": None, "003": [0] * count})
    run.evaluation("cycle 1, search", "validation", [[1, 1], [0, 1], [0, 1], [0, 0]], step=3)
    run.weights(1, [0.5, 0.0], first_step=4, reason="weight budget used")
    run.search(1, {"000": low, "001": [1] * (count - 1) + [None]})
    run.evaluation("cycle 2, search", "validation", [[1, 1], [1, 1], [1, 1], [0, 1]], step=5)
    run.evaluation("initial", "test", [[0, 1], [0, 0], [0, 0], [0, 0]])
    run.evaluation("cycle 2, search", "test", [[1, 1], [1, 1], [1, 1], [1, 0]], step=5)
    lines: list[dict[str, Any]] = [
        {"kind": "account", "entry": entry["entry"], "seconds": 10.0, "busy_seconds": 8.0, "computed_tokens": 500,
         "trained_tokens": 10, "flops": 1e9, "start_seconds": 0.0, "rollout_seconds": 7.0, "train_seconds": 2.0}
        for entry in run.journal.entries
    ]  # fmt: skip
    run.metrics([*lines, {"kind": "weight", "step": 8, "mismatch_mean": 1e-6}])
    run.finish("cycle 2, search")
    return run
