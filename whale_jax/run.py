"""One run: its parts, its budget, and what it has measured so far. The phases and the outer loop work on it."""

import contextlib
import dataclasses
import hashlib
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from harness_search.contract import Budgets
from harness_search.proposers.base import Proposer
from harness_search.scoring import ScoreTag
from harness_search.validate import Validator
from whale_jax.config import RunConfig
from whale_jax.domains.domain import Domain
from whale_jax.domains.task import Split, Task
from whale_jax.evaluation.evaluate import Evaluation, evaluation_from_traces, evaluation_requests
from whale_jax.evaluation.evidence import read_evidence, write_evidence
from whale_jax.expected import expected_work
from whale_jax.hosts.rollouts import HostsRunner
from whale_jax.journal import Journal, JournalError, canonical
from whale_jax.pair import Pair
from whale_jax.policy import Policy
from whale_jax.qwen3_5.chat import ChatCodec
from whale_jax.report.account import KIND as ACCOUNT
from whale_jax.report.account import Meter
from whale_jax.report.metrics import MetricsWriter
from whale_jax.report.picture import Span
from whale_jax.report.progress import Progress
from whale_jax.rollout.ledger import Ledger
from whale_jax.rollout.runner import EpisodeRequest, RolloutRunner
from whale_jax.rollout.trace import Trace
from whale_jax.rundir import inherited
from whale_jax.schedule import Schedule
from whale_jax.serving.driver import Driver
from whale_jax.stages import Stage, StageClock, memory
from whale_jax.storage.home import Home, LocalHome
from whale_jax.swap import Swap
from whale_jax.training.checkpoint import CheckpointError, Saved
from whale_jax.training.step import TrainingDiverged
from whale_jax.training.weight_step import StepReport

COVERAGE_FLOOR = 0.9
"""Smallest share of a step's or an evaluation's episodes that must be scored."""


class InfrastructureError(RuntimeError):
    """Too many episodes could not be scored: the run stops at its last commit, and can be resumed."""


@dataclasses.dataclass(frozen=True)
class Milestone:
    """An evaluated pair.

    Attributes:
      label: what was just done.
      pair: what was evaluated.
      rollouts: training and search rollouts spent before it.
      seconds: wall time of this process's part of the run before it.
      validation: its validation figures.
      test: its test figures, where the protocol has opened the test set.
      selecting_mean: mean@k on the split that picks the returned pair.
    """

    label: str
    pair: Pair
    rollouts: int
    seconds: float
    validation: Evaluation
    test: Evaluation | None
    selecting_mean: float


def require_coverage(ledger: Ledger, where: str, remedy: str) -> None:
    """Raises InfrastructureError when too many episodes are unscored for a figure that anybody should read.

    Args:
        where, remedy: what stands before and after the count in the message.
    """
    if ledger.unscored > (1 - COVERAGE_FLOOR) * ledger.episodes:
        raise InfrastructureError(
            f"{where}{ledger.unscored} of {ledger.episodes} episodes could not be scored, and at least "
            f"{COVERAGE_FLOOR:.0%} must be; {remedy}"
        )


MakeScratch = Callable[[Path, RunConfig, Schedule], contextlib.AbstractContextManager["Run"]]
"""(directory, settings, schedule) → a run of its own on the same engine, which tells the user nothing."""


class Run:
    """The parts of a run and its account. Built by `assemble.assemble`."""

    def __init__(
        self,
        *,
        config: RunConfig,
        directory: Path,
        domain: Domain,
        splits: Mapping[Split, Sequence[Task]],
        schedule: Schedule,
        policy: Policy,
        initial_pair: Pair,
        driver: Driver,
        codec: ChatCodec,
        runner: RolloutRunner | HostsRunner,
        budgets: Budgets,
        proposer: Proposer,
        validator: Validator,
        progress: Progress,
        stages: StageClock,
        meter: Meter,
        scratch: "MakeScratch",
        home: Home | None = None,
    ):
        """Args:
        home: of `directory`; default: what is there counts.
        """
        self.home = home or LocalHome(directory)
        self.config, self.dir, self.domain, self.schedule = config, directory, domain, schedule
        self.policy, self.initial_pair, self.driver, self.codec = policy, initial_pair, driver, codec
        self.progress, self.runner, self.budgets = progress, runner, budgets
        self.proposer, self.validator, self.meter, self.scratch = proposer, validator, meter, scratch
        self.splits = splits
        self.weight_tasks = {task.id: task for task in splits[Split.WEIGHT]}
        self.harness_tasks = {task.id: task for task in splits[Split.HARNESS]}
        self.stages = stages
        self.journal = Journal(directory / "journal", inherited=inherited(directory), write=self.home.commit)
        self.metrics = MetricsWriter(directory)
        self.rollouts = 0
        self.milestones: list[Milestone] = []
        self.phases: list[Span] = []
        self.training_curve: list[tuple[int, float]] = []
        self.searches: list[dict[str, Any]] = []
        self.worked = False
        work = expected_work(config, schedule, {split: len(tasks) for split, tasks in splits.items()})
        progress.work_total = work.rollouts + work.evaluations
        self.swap = Swap(policy, driver, jnp.dtype(config.model.compute_dtype), stages)
        self._saves: list[Future[Saved]] = []
        self._phase: tuple[str, int] | None = None

    @property
    def best(self) -> Milestone:
        """The best milestone so far on the selecting split; of equal ones the earliest, which cost least."""
        return max(self.milestones, key=lambda milestone: milestone.selecting_mean)

    # Budget -----------------------------------------------------------------------------------------------------------

    @property
    def rollouts_left(self) -> int | None:
        """Training and search rollouts that the budget still allows; None without a budget."""
        budget = self.config.run.max_rollouts
        return max(0, budget - self.rollouts) if budget else None

    def affords_step(self, pending: int = 0) -> bool:
        """Whether one more training step fits the rollout budget; `pending` rollouts are not yet in the account."""
        rollout = self.config.rollout
        left = self.rollouts_left
        return left is None or left - pending >= rollout.prompts_per_step * rollout.samples_per_prompt

    def affords_search(self) -> bool:
        """Whether the incoming harness, one candidate, and its trial under paired acceptance fit the rollout budget."""
        left = self.rollouts_left
        return left is None or left >= self._search_rollouts(1)

    def affords_probe(self, steps: int) -> bool:
        """Whether `steps` training steps and a whole search iteration fit the rollout budget."""
        rollout, left = self.config.rollout, self.rollouts_left
        trained = steps * rollout.prompts_per_step * rollout.samples_per_prompt
        return left is None or left >= trained + self._search_rollouts(self.config.search.candidates)

    def _search_rollouts(self, candidates: int) -> int:
        search = self.config.search
        trial = 2 * search.confirm_rollouts if search.acceptance == "paired" else 0
        return (1 + candidates + trial) * len(self.harness_tasks)

    def spend(self, rollouts: int) -> None:
        """Adds committed rollouts to the account."""
        self.rollouts += rollouts

    def commit_account(self) -> None:
        """Writes down what the journal entry just committed has cost, and the checkpoints finished since the last."""
        entry = self.journal.entries[-1]["entry"]
        stages, idle = self.stages.since(ACCOUNT), self.runner.idle_since(ACCOUNT)
        finished = [save.result() for save in self._saves if save.done() and save.exception() is None]
        self._saves = [save for save in self._saves if not save.done()]
        saved = {
            "checkpoint_bytes": sum(one.size for one in finished),
            "checkpoint_write_seconds": sum(one.seconds for one in finished),
        }
        spent = {**self.meter.lap(), **stages, **idle, **saved, **memory()}
        self.metrics.write(ACCOUNT, self.rollouts, {"entry": entry, **spent})
        self.home.publish(self.dir / "metrics.jsonl")

    def commits_at(self, step: int) -> bool:
        """Whether a commit follows training step `step`."""
        return step % self.config.training.checkpoint_every == 0 or self.evaluates_at(step)

    def evaluates_at(self, step: int) -> bool:
        """Whether an evaluation inside a weight phase follows training step `step`."""
        every = self.config.evaluation.eval_every
        return every > 0 and step % every == 0

    def save(self) -> tuple[str, Future[Saved]]:
        """Starts to commit a checkpoint of the policy; see `Policy.begin_save`. That of the best pair so far stays."""
        with self.stages.of(Stage.CHECKPOINT):
            weights, saving = self.policy.begin_save(protect=[self.best.pair.step] if self.milestones else [])
        self._saves.append(saving)
        return weights, saving

    def train(self, traces: Sequence[Trace]) -> StepReport:
        """One training step on the rollouts of one step, with the memory of the engines' states; see `Policy.train`.

        Raises:
          TrainingDiverged: names the last commit, which stands.
        """
        started = time.monotonic()
        self.swap.suspend()
        try:
            report = self.policy.train(traces)
        except TrainingDiverged as error:
            last = max((entry["step"] for entry in self.journal.entries if entry["kind"] == "weight"), default=0)
            good = self.dir / "checkpoints" / str(last) if last else "the initial weights"
            raise TrainingDiverged(
                f"training step {self.policy.step + 1}: {error}. The last good checkpoint is {good} (training step "
                f"{last}), and the journal stands there"
            ) from error
        self.stages.add(Stage.PACK, report.pack_seconds)
        self.stages.add(Stage.TRAIN, time.monotonic() - started - report.pack_seconds)
        return report

    @contextlib.contextmanager
    def profiled(self, step: int) -> Iterator[None]:
        """Traces what happens meanwhile, if `step` is the one that `--profile_step` names."""
        if step != self.config.run.profile_step:
            yield
            return
        folder = self.dir / "profile"
        with jax.profiler.trace(str(folder)):
            yield
        self.progress.say(f"training step {step} is profiled in {folder} (TensorBoard, or Perfetto)")

    def close(self) -> None:
        """Commits what only waits for its evidence, and ends what writes. An error that is under way is not replaced
        by one of an entry that then is none."""
        try:
            if sys.exc_info()[0] is None:
                self.journal.settle()
            else:
                with contextlib.suppress(CheckpointError, JournalError, OSError):
                    self.journal.settle()
        finally:
            self.policy.close()
            self.metrics.close()

    # Rollouts ---------------------------------------------------------------------------------------------------------

    def serve(self, step: int) -> None:
        """Gives the engine the weights after training step `step`, in the compute dtype."""
        self.worked = True
        self.swap.serve(step)

    async def stream(self, step: int, harness: str, requests: Sequence[EpisodeRequest]) -> AsyncIterator[Trace]:
        """The episodes of `requests` with the weights after training step `step`, as they finish."""
        self.serve(step)
        with self.stages.of(Stage.ROLLOUT):
            async for trace in self.runner.run(harness, requests, budgets=self.budgets):
                self.progress.advance(1)
                yield trace

    async def rollout(self, step: int, harness: str, requests: Sequence[EpisodeRequest]) -> list[Trace]:
        """The episodes of `requests` with the weights after training step `step`, in their order."""
        place = {(request.task.id, request.sample): index for index, request in enumerate(requests)}
        traces = [trace async for trace in self.stream(step, harness, requests)]
        return sorted(traces, key=lambda trace: place[trace.task_id, trace.sample])

    def score_tag(self, pair: Pair) -> ScoreTag:
        """What search scores of `pair`'s weights depend on, the harness apart."""
        rollout = self.config.rollout
        sampling = {
            "seed": self.config.run.seed,
            "budgets": dataclasses.asdict(self.budgets),
            "max_len": rollout.max_len,
            "extend_chunk": rollout.extend_chunk,
            "thinking": rollout.thinking,
            "sampling": [rollout.temperature, rollout.top_p, rollout.top_k],
            "dtype": self.config.model.compute_dtype,
        }
        verifier = {"domain": self.domain.name, "unclosed_thinking": rollout.unclosed_thinking}
        tasks = {"data": self.domain.data_hash, "ids": list(self.harness_tasks)}
        return ScoreTag(model=pair.weights, task_set=_hash(tasks), verifier=_hash(verifier), sampling=_hash(sampling))

    def require_coverage(self, ledger: Ledger, what: str) -> None:
        """Raises InfrastructureError when too many episodes are unscored."""
        require_coverage(ledger, f"{what}: ", "the run stopped at its last commit and goes on with the same command")

    # Evaluation -------------------------------------------------------------------------------------------------------

    async def milestone(self, label: str, pair: Pair) -> Milestone:
        """Evaluates a pair on validation (and on test where the protocol says always), and remembers it."""
        settings = self.config.evaluation
        validation = await self.evaluate(label, pair, Split.VALIDATION)
        test = await self.evaluate(label, pair, Split.TEST) if settings.test_schedule == "always" else None
        selecting = test if settings.select_on == "test" and test is not None else validation
        milestone = Milestone(label, pair, self.rollouts, self.progress.seconds, validation, test, selecting.mean)
        self.milestones.append(milestone)
        return milestone

    async def test(self, milestone: Milestone) -> Evaluation:
        """Test figures of a milestone's pair, scored now unless they are there; the table shows them from now on."""
        for place, other in enumerate(self.milestones):
            if other.pair == milestone.pair and other.test is not None:
                return other.test
            if other == milestone:
                test = await self.evaluate(milestone.label, milestone.pair, Split.TEST)
                self.milestones[place] = dataclasses.replace(milestone, test=test)
                return test
        raise ValueError(f"{milestone.label} is no milestone of this run")

    async def evaluate(self, label: str, pair: Pair, split: Split) -> Evaluation:
        """mean@k of a pair on a split. Every pair is given the same tasks with the same sampling keys."""
        settings = self.config.evaluation
        samples = settings.test_samples if split is Split.TEST else settings.validation_samples
        where = {"label": label, "split": split.value, "step": pair.step, "harness": pair.harness_hash}
        entry = self.journal.replay("evaluation", **where)
        if entry is None:
            self.progress.show(f"evaluation on {split.value} · {label}")
            started = time.monotonic()
            requests = evaluation_requests(self.splits[split], samples=samples, purpose=split.value)
            traces = await self.rollout(pair.step, pair.harness, requests)
            self.require_coverage(Ledger.from_traces(traces), f"evaluation on {split.value} ({label})")
            figures = self.domain.behaviour(self.splits[split], traces, self.codec)
            evaluation = evaluation_from_traces(traces, k=samples, domain_figures=figures)
            evidence = write_evidence(self.dir, len(self.journal.entries), evaluation)
            self.journal.append(
                "evaluation", {**where, "weights": pair.weights, **evaluation.summary(), "evidence": evidence}
            )
            self.commit_account()
            self._report_evaluation(label, split, evaluation, time.monotonic() - started)
            return evaluation
        self.progress.advance(entry["episodes"], replayed=True)
        return read_evidence(self.dir, entry)

    # What the user sees -----------------------------------------------------------------------------------------------

    def begin_phase(self, kind: str, cycle: int) -> None:
        """Marks the start of a phase."""
        self._phase = (kind, self.rollouts)
        self.worked = False
        self.progress.show(f"cycle {cycle + 1}, {kind}")

    def end_phase(self) -> None:
        """Marks the end of the phase, for the picture."""
        assert self._phase is not None
        kind, start = self._phase
        self.phases.append(Span(kind, start, self.rollouts))
        self._phase = None

    def _report_evaluation(self, label: str, split: Split, evaluation: Evaluation, seconds: float) -> None:
        low, high = evaluation.ci95
        self.progress.say(
            f"{label} · {split.value} mean@{evaluation.k} {100 * evaluation.mean:.1f} % "
            f"(95 % interval {100 * low:.1f} to {100 * high:.1f}, {evaluation.tasks} tasks)"
        )
        values: dict[str, float | str | None] = {
            "mean": evaluation.mean, "low": low, "high": high, "seconds": seconds, "label": label,
            "bf16_changed_share": self.swap.taken_changed_share(),
        }  # fmt: skip
        values |= {f"behaviour_{name}": value for name, value in evaluation.domain_figures.items()}
        self.metrics.write(f"evaluation_{split.value}", self.rollouts, values)


def _hash(value: Any) -> str:
    return hashlib.sha256(canonical(value)).hexdigest()
