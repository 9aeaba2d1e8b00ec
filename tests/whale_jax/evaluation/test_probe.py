"""What a probe finds, what it does to a run, and how `--schedule=probe` follows it."""

import asyncio
import contextlib
import dataclasses
import json
from types import SimpleNamespace

import pytest

from harness_search.contract import EndReason
from whale_jax import alternate, choose
from whale_jax.config import RunConfig
from whale_jax.domains.verdict import Verdict
from whale_jax.evaluation import probe
from whale_jax.evaluation.evaluate import Evaluation, evaluation_from_traces
from whale_jax.evaluation.mean_at_k import Estimate
from whale_jax.evaluation.probe import Component, Findings, Trial, lend_checkpoint, run_trials, trial_schedule
from whale_jax.journal import Journal
from whale_jax.pair import Pair
from whale_jax.rollout.trace import Trace
from whale_jax.run import Milestone
from whale_jax.schedule import Decision, make_schedule
from whale_jax.storage.home import LocalHome

PAIR = Pair(3, "w", "h")


def evaluation(right: int, tasks: int = 40) -> Evaluation:
    """mean@1 over so many tasks, the first `right` of them right."""
    ended = (EndReason.ANSWERED, Verdict(0, "a", ""), None)
    traces = [Trace(f"{task:03d}", 0, (), *ended) for task in range(tasks)]
    return evaluation_from_traces(
        [dataclasses.replace(trace, verdict=Verdict(int(n < right), "a", "")) for n, trace in enumerate(traces)], k=1
    )


def findings(weights: int, search: int, rollouts=(100, 100)) -> Findings:
    before = evaluation(10)
    trials = {}
    for component, right, spent in zip(Component, (weights, search), rollouts, strict=True):
        trials[component] = Trial(spent, evaluation(right).minus(before), evaluation(right))
    return Findings(before, trials)


def test_the_gain_for_each_rollout_decides():
    found = findings(weights=30, search=30, rollouts=(100, 1000))
    assert found.trials[Component.WEIGHTS].per_rollout.mean == pytest.approx(0.005)
    assert found.trials[Component.SEARCH].per_rollout.mean == pytest.approx(0.0005)
    assert (found.better, found.decided, found.rollouts) == (Component.WEIGHTS, True, 1100)
    other = findings(weights=30, search=30, rollouts=(1000, 100))
    assert (other.better, other.decided) == (Component.SEARCH, True)
    assert other.difference.mean == -found.difference.mean
    assert (other.difference.low, other.difference.high) == (-found.difference.high, -found.difference.low)
    assert "bottleneck now: search" in other.text()


def test_equal_or_small_gains_are_never_certain():
    for found in (findings(10, 10), findings(10, 11), findings(40, 40)):
        assert not found.decided
        assert found.difference.low < 0 < found.difference.high
        assert found.to_json()["bottleneck"] is None
        assert "not decided at this budget" in found.text()
    assert findings(10, 10).better is Component.WEIGHTS
    json.dumps(findings(10, 11).to_json(), allow_nan=False)


def test_the_interval_of_the_difference_is_square_and_add():
    trial = lambda low, mean, high: Trial(1, Estimate(mean, low, high, 9, 9), evaluation(1))  # noqa: E731
    found = Findings(evaluation(1), {Component.WEIGHTS: trial(0.2, 0.5, 0.6), Component.SEARCH: trial(0.0, 0.1, 0.5)})
    assert found.difference.mean == pytest.approx(0.4)
    assert found.difference.low == pytest.approx(0.4 - 0.5)  # 0.3 and 0.4
    assert found.difference.high == pytest.approx(0.4 + (0.1**2 + 0.1**2) ** 0.5)


class Scratch:
    """A run on which phases do what they are told: weights gain 8 tasks, a search keeps the harness."""

    def __init__(self):
        self.rollouts, self.milestones, self.asked = 0, [], []
        self.policy = SimpleNamespace(committed=lambda step, weights: self.asked.append((step, weights)))

    async def evaluate(self, label, pair, split):
        self.asked.append((label, pair))
        return evaluation(18 if pair.weights == "w2" else 10)


@pytest.fixture
def phases(monkeypatch):
    """The phases of the main loop, without their work; what was called, in order."""
    called = []

    async def weights(run, cycle, pair):
        called.append(("weights", cycle, pair.step))
        run.rollouts += 50
        return Pair(pair.step + 2, "w2", pair.harness), Decision(True, "", {})

    async def search(run, cycle, pair):
        called.append(("search", cycle, pair.step))
        run.rollouts += 20
        return pair

    for module in (probe, alternate):
        monkeypatch.setattr(module, "weight_phase", weights)
        monkeypatch.setattr(module, "search_phase", search)
    return called


def test_both_trials_start_from_the_same_pair(phases):
    scratch = Scratch()
    found = asyncio.run(run_trials(scratch, 4, PAIR))  # type: ignore[arg-type]
    assert phases == [("search", 4, 3), ("weights", 4, 3)]
    assert scratch.milestones[0].pair == PAIR  # which a checkpoint must not be removed for
    assert [item[0] for item in scratch.asked] == [3, "probe, before", "probe, weights"]
    assert (found.trials[Component.WEIGHTS].rollouts, found.trials[Component.SEARCH].rollouts) == (50, 20)
    assert found.trials[Component.SEARCH].gain.mean == 0
    assert found.trials[Component.WEIGHTS].gain.mean == pytest.approx(0.2)


def test_a_lent_checkpoint_is_read_and_never_removed(tmp_path):
    kept = tmp_path / "run" / "checkpoints" / "3"
    kept.mkdir(parents=True)
    (kept / "meta.json").write_text("{}")
    lend_checkpoint(kept.parent, tmp_path / "scratch", 3)
    assert (tmp_path / "scratch/checkpoints/3/meta.json").read_text() == "{}"
    lend_checkpoint(kept.parent, tmp_path / "none", 0)
    assert not (tmp_path / "none").exists()


def test_a_trial_is_so_many_steps_and_one_iteration():
    schedule = trial_schedule(step=3, steps=2)
    stops = [schedule.after_step(probe_signals([0.5] * n, 3)).stop for n in (1, 2)]
    assert stops == [False, True]
    assert [schedule.after_iteration(SimpleNamespace(best_scores=[0.5] * n)).stop for n in (1, 2)] == [False, True]  # type: ignore[arg-type]


def probe_signals(rewards, before):
    return SimpleNamespace(rewards=rewards, steps_before=before)


class FakeRun:
    """A run whose phases are fakes and whose probes find what `better` says, one after the other."""

    def __init__(self, directory, better, *, searches=(), budget=True, total_steps=6):
        settings = RunConfig().schedule
        self.config = SimpleNamespace(
            schedule=dataclasses.replace(settings, schedule="probe", search_budget_iterations=6),
            run=SimpleNamespace(stop_after="never"), training=RunConfig().training,
            evaluation=RunConfig().evaluation)  # fmt: skip
        schedule = make_schedule(self.config.schedule, num_tasks=48, prompts_per_step=24)
        self.schedule = dataclasses.replace(schedule, total_steps=total_steps)  # type: ignore[type-var]
        self.dir, self.journal = directory, Journal(directory / "journal")
        self.initial_pair = Pair(0, "w", "h")
        self.rollouts, self.spent, self.said, self.milestones = 0, 0, [], []
        self.searches = [{"iterations": count} for count in searches]
        self.progress = SimpleNamespace(show=lambda text: None, say=self.said.append)
        self.better, self.budget = list(better), budget
        self.probed: list[tuple[int, int, int]] = []

    def affords_probe(self, steps):
        return self.budget

    def affords_step(self):
        return True

    def affords_search(self):
        return True

    def spend(self, rollouts):
        self.spent += rollouts

    async def milestone(self, label, pair):
        self.milestones.append(Milestone(label, pair, 0, 0.0, evaluation(10), None, 0.25))

    async def test(self, milestone):
        return evaluation(10)

    @property
    def best(self):
        return self.milestones[0]


@pytest.fixture
def found(monkeypatch):
    """Replaces the work of a probe by the run's `better`."""

    async def work(run, cycle, pair, steps):
        run.probed.append((cycle, pair.step, steps))
        return {"better": run.better.pop(0), "rollouts": 7}

    monkeypatch.setattr(choose, "_probe", work)
    monkeypatch.setattr(FakeRun, "commit_account", lambda run: None, raising=False)


def test_the_schedule_goes_where_the_probes_say(tmp_path, found, phases):
    run = FakeRun(tmp_path, ["search", "weights", "weights", "search", "weights"])
    result = asyncio.run(alternate.alternate(run))  # type: ignore[arg-type]
    assert [kind for kind, *_ in phases] == ["search", "weights", "weights", "search", "weights"]
    assert [cycle for _, cycle, _ in phases] == [0, 1, 2, 3, 4]
    assert run.probed == [(0, 0, 2), (1, 0, 2), (2, 2, 2), (3, 4, 2), (4, 4, 2)]  # steps 6 ends the run: no probe there
    assert (run.spent, result.cycles) == (35, 5)


def test_recorded_probes_are_followed_and_not_made_again(tmp_path, found, phases):
    first = FakeRun(tmp_path, ["search", "weights", "weights", "weights"])
    asyncio.run(alternate.alternate(first))  # type: ignore[arg-type]
    done, again = list(phases), FakeRun(tmp_path, [])
    asyncio.run(alternate.alternate(again))  # type: ignore[arg-type]
    assert phases[len(done) :] == done
    assert (again.probed, again.spent) == ([], first.spent)


@pytest.mark.parametrize(
    "no_choice", [{"budget": False}, {"searches": (3, 3)}, {"total_steps": 0}], ids=["rollouts", "search", "weights"]
)
def test_no_probe_where_there_is_no_choice(tmp_path, found, no_choice):
    run = FakeRun(tmp_path, [], **no_choice)
    assert asyncio.run(choose.choose(run, 0, PAIR)) is Component.WEIGHTS  # type: ignore[arg-type]
    assert run.journal.entries == []


def test_a_probe_leaves_nothing_but_its_entry(tmp_path, phases):
    run = FakeRun(tmp_path, [])
    run.milestones = [Milestone("initial", Pair(0, "w", "h"), 0, 0.0, evaluation(10), None, 0.25)]
    (tmp_path / "probe").mkdir()
    (tmp_path / "probe" / "rest").write_text("of a job that was cut")
    forgotten, made = [], []

    @contextlib.contextmanager
    def scratch(directory, settings, schedule):
        assert list(directory.iterdir()) == []
        made.append((settings.training.checkpoint_every, schedule.total_steps))
        one = Scratch()
        one.journal = SimpleNamespace(entries=[])  # type: ignore[attr-defined]
        yield one

    run.config = RunConfig()  # type: ignore[assignment]
    run.scratch = scratch  # type: ignore[attr-defined]
    run.home = LocalHome(tmp_path)  # type: ignore[attr-defined]
    run.swap = SimpleNamespace(forget=lambda: forgotten.append(True))  # type: ignore[attr-defined]
    run.meter = SimpleNamespace(trained=lambda tokens: None)  # type: ignore[attr-defined]
    run.commit_account = lambda: None  # type: ignore[attr-defined]
    assert asyncio.run(choose.choose(run, 0, run.initial_pair)) is Component.WEIGHTS  # type: ignore[arg-type]
    assert not (tmp_path / "probe").exists()
    assert (forgotten, run.spent, made[0][1]) == ([True], 70, 2)
    (entry,) = run.journal.entries
    assert (entry["kind"], entry["better"], entry["rollouts"]) == ("probe", "weights", 70)
    assert "probe · bottleneck now" in run.said[0]
