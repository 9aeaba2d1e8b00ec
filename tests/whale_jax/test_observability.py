"""What a run says of itself besides its results: stages, memory, saves, profiles, and why training stopped."""

import asyncio
import json
import threading

import pytest

import whale_jax.hand_over
from harness_search.proposers.base import Proposal
from tests.whale_jax.small_world import Gradient, export, settings, small_run, whole
from whale_jax.alternate import alternate
from whale_jax.assemble import make_policy, optimizer_settings
from whale_jax.config import ConfigError, RunConfig
from whale_jax.domains.task import Split
from whale_jax.journal import Journal
from whale_jax.stages import ClockedDomain, ClockedProposer, Stage, StageClock, memory
from whale_jax.training.optimizer import OptimizerName
from whale_jax.training.step import TrainingDiverged


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    """metrics.jsonl of a run that profiles its second step, and the folder."""
    directory = tmp_path_factory.mktemp("observed") / "run"
    with pytest.MonkeyPatch.context() as patch, small_run(directory, settings(profile_step=2)) as run:
        patch.setattr(whale_jax.hand_over, "export_checkpoint", export)
        asyncio.run(whole(run))
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()], directory


def test_every_step_says_where_its_time_went_and_what_changed(lines):
    steps = [line for line in lines[0] if line["kind"] == "weight"]
    assert len(steps) == 5
    for line in steps:
        assert {f"{stage}_seconds" for stage in Stage} <= line.keys()
        assert line["rollout_seconds"] > 0
        assert line["host_peak_bytes"] > 1e7
        assert {"harness_share", "harness_ms_per_episode"} <= line.keys()
        assert 0 < line["packed_tokens"] <= line["packed_positions"] or line["accepted"] == 0
    assert sum(line["pack_seconds"] for line in steps) > 0
    assert steps[0]["bf16_changed_share"] is None  # nothing was swapped yet
    assert steps[1]["bf16_changed_share"] > 0.9  # the stand-in for a gradient moves nearly every weight
    evaluations = [line for line in lines[0] if line["kind"] == "evaluation_validation"]
    assert evaluations[1]["bf16_changed_share"] > 0.9


def test_every_commit_says_what_was_saved_and_how_long_it_took(lines):
    accounts = [line for line in lines[0] if line["kind"] == "account"]
    size = {
        path.name: sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        for path in (lines[1] / "checkpoints").iterdir()
    }
    assert sum(line["checkpoint_bytes"] for line in accounts) == sum(size.values())
    assert sum(line["checkpoint_write_seconds"] for line in accounts) > 0
    assert sum(line["checkpoint_seconds"] for line in accounts) > 0
    assert all({f"{stage}_seconds" for stage in Stage} <= line.keys() for line in accounts)


def test_the_step_that_is_named_is_profiled_and_no_other(lines):
    (session,) = (lines[1] / "profile" / "plugins" / "profile").iterdir()
    assert any(path.name.endswith(".xplane.pb") for path in session.iterdir())


class Exploding(Gradient):
    """Its third update is not finite."""

    updates = 0

    def update(self, state, batches):
        self.updates += 1
        if self.updates == 3:
            raise TrainingDiverged("optimizer step 2: loss nan, gradient norm nan")
        return super().update(state, batches)


def test_training_has_the_memory_of_the_engines_states(tmp_path, monkeypatch):
    monkeypatch.setattr(whale_jax.hand_over, "export_checkpoint", export)
    with small_run(tmp_path / "run", settings()) as run:
        given_up = []
        train = run.policy.train
        monkeypatch.setattr(
            run.policy, "train", lambda traces: (given_up.append(run.driver.suspensions), train(traces))[1]
        )
        asyncio.run(whole(run))
    assert given_up == [1, 2, 3, 4, 5]


def test_divergence_names_the_step_and_the_last_good_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.whale_jax.small_world.Gradient", Exploding)
    with (
        pytest.raises(TrainingDiverged, match=r"training step \d: optimizer step 2: .* The last good") as caught,
        small_run(tmp_path / "run", settings(minibatch=1, checkpoint_every=1)) as run,
    ):
        asyncio.run(alternate(run))
    entries = [entry for entry in Journal(tmp_path / "run/journal").entries if entry["kind"] == "weight"]
    step = entries[-1]["step"] if entries else 0
    assert f"(training step {step}), and the journal stands there" in str(caught.value)
    assert step == 0 or str(tmp_path / "run/checkpoints" / str(step)) in str(caught.value)


def test_a_stage_counts_once_however_many_are_in_it():
    clock = StageClock()
    inside, leave = threading.Barrier(3), threading.Event()

    def stay():
        with clock.of(Stage.VERIFY):
            inside.wait()
            leave.wait()

    threads = [threading.Thread(target=stay) for _ in range(2)]
    for thread in threads:
        thread.start()
    inside.wait()
    assert clock.since("a")["verify_seconds"] == 0.0  # it counts when it is over
    leave.set()
    for thread in threads:
        thread.join()
    clock.add(Stage.PACK, 2.0)
    first = clock.since("a")
    assert (first["pack_seconds"], first["verify_seconds"] > 0) == (2.0, True)
    assert clock.since("a") == {f"{stage}_seconds": 0.0 for stage in Stage}
    assert clock.since("b") == first


def test_proposer_and_verifier_are_what_they_stand_in_for():
    clock = StageClock()

    class Slow:
        name = "slow"

        async def propose(self, workspace, *, iteration, slots, seed):
            await asyncio.sleep(0)
            yield Proposal(0, "A = 1\n", "000", "it helps")

        def usage(self, iteration):
            return f"usage {iteration}"

    class Domain:
        h0 = "source"

        def verify(self, task, answer_text, *, protocol="honest"):
            return (task, answer_text, protocol)

    proposer = ClockedProposer(Slow(), clock)  # type: ignore[arg-type]
    domain = ClockedDomain(Domain(), clock).as_domain()  # type: ignore[arg-type]

    async def all_of():
        return [item async for item in proposer.propose(None, iteration=1, slots=1, seed=0)]  # type: ignore[arg-type]

    assert [item.slot for item in asyncio.run(all_of())] == [0]
    assert (proposer.name, proposer.usage(3)) == ("slow", "usage 3")
    assert domain.verify("t", "a", protocol="paper") == ("t", "a", "paper")  # type: ignore[arg-type]
    assert domain.h0 == "source"
    spent = clock.since("all")
    assert spent["proposer_seconds"] > 0
    assert spent["verify_seconds"] > 0
    assert memory()["host_peak_bytes"] > 0


CHANGED = {
    "optimizer": "lion", "max_grad_norm": 5.0, "pack_shapes": 3, "keep_last": 4, "keep_every": 7, "grace_seconds": 2.0,
    "profile_step": 3, "fork_from": "runs/0000@3",
}  # fmt: skip
DECIDING = {"optimizer", "pack_shapes"}
"""Of these, the settings that change what a run computes."""


@pytest.mark.parametrize("name", CHANGED)
def test_settings_that_came_late_change_nothing_at_their_default(name):
    base, other = RunConfig(), RunConfig.from_values({name: CHANGED[name]})
    assert (other.hash() != base.hash()) is (name in DECIDING)
    assert RunConfig.from_values({name: base.values()[name]}).hash() == base.hash()


@pytest.mark.parametrize(
    ("name", "value"),
    [("optimizer", "sgd"), ("max_grad_norm", -1.0), ("pack_shapes", 0), ("keep_last", 0), ("keep_every", -1),
     ("grace_seconds", 0.0), ("profile_step", -1)],
)  # fmt: skip
def test_values_out_of_range_are_named(name, value):
    with pytest.raises(ConfigError, match=f"--{name} must be"):
        RunConfig.from_values({name: value})


def test_settings_of_training_reach_what_they_set(tmp_path):
    config = RunConfig.from_values(CHANGED)
    with small_run(tmp_path / "run", settings()) as run:
        parts = type("Parts", (), {"initial": run.policy._initial, "splits": {Split.WEIGHT: run.splits[Split.WEIGHT]}})
        policy = make_policy(config, parts, tmp_path, clock=None)  # type: ignore[arg-type]
    assert policy._train_step._max_grad_norm == 5.0
    assert (policy._checkpoints._keep_last, policy._checkpoints._keep_every) == (4, 7)
    assert optimizer_settings(config.training).name is OptimizerName.LION
